"""Loads the App or agent that a user names as MODULE:ATTR. Nothing in a store is ever loaded this way."""

import dataclasses
import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from holdfast.app import App
from holdfast.cli.opening import make_store
from holdfast.cli.output import CommandError, UsageError, format_error, is_debug_enabled
from holdfast.config import WorkerSettings
from holdfast.core.agents.agent import Agent, AgentSource
from holdfast.core.ports import RunListener
from holdfast.core.run.info import RunInfo
from holdfast.core.run.run_events import Event
from holdfast.runtime.app_options import AppOptions


def load_object(path: str) -> Any:
    """Return the object that `MODULE:ATTR` names. The working directory is on the import path.

    Raises:
        UsageError: the path has another form, or the module or attribute does not exist.
        CommandError: the import of the module failed.
    """
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{path!r} is not an import path: write MODULE:ATTR, such as agents:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = _import_module(module_name)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise UsageError(f"{module_name} has no {attribute}{_format_alternatives(found)}")
        found = getattr(found, name)
    return found


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            raise UsageError(f"no module {name!r} in {os.getcwd()} or among the installed modules") from exc
        raise CommandError(f"{name} cannot be imported: {format_error(exc)}{_format_location(exc, name)}") from exc
    except Exception as exc:  # user code may raise anything
        if is_debug_enabled():
            raise
        raise CommandError(f"{name} cannot be imported: {format_error(exc)}{_format_location(exc, name)}") from exc


def _format_location(error: BaseException, module_name: str) -> str:
    """Format the place of the error in the user's code."""
    if isinstance(error, SyntaxError):
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename != __file__]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _format_alternatives(module: Any) -> str:
    usable = [name for name, value in vars(module).items() if _is_app_or_agent(value)]
    return f": it has {', '.join(usable)}" if usable else ""


def _is_app_or_agent(value: Any) -> bool:
    return isinstance(value, App | AgentSource) and not isinstance(value, type)


def build_app(found: Any, path: str, *, store: str, create: bool, listener: RunListener | None = None) -> App:
    """Return an App of the loaded object, not open. The command handles signals and recovery itself.

    Args:
        store: a URL that replaces the App's store, or an empty string.
        create: permit a SQLite file that does not exist yet.

    Raises:
        UsageError: the object is neither an App nor an agent.
    """
    if isinstance(found, App):
        worker = dataclasses.replace(found.worker_settings, take_runs=False, handle_signals=False)
        changes: AppOptions = {"worker": worker}
        if store:
            changes["store"] = make_store(store, create=create)
        if listener is not None:
            changes["listener"] = ListenerPair(found.ports.listener, listener) if found.ports.listener else listener
        return found.replace(**changes)
    return App(
        [_to_agent_source(found, path)],
        make_store(store, create=create),
        worker=WorkerSettings(take_runs=False, handle_signals=False),
        listener=listener,
    )


def load_agents(path: str) -> Mapping[str, AgentSource]:
    """Return the agents of the App or agent that `path` names, by name; none for an empty path."""
    if not path:
        return {}
    found = load_object(path)
    if isinstance(found, App):
        return found.agents
    source = _to_agent_source(found, path)
    return {source.name: source}


def _to_agent_source(found: Any, path: str) -> AgentSource:
    if isinstance(found, AgentSource) and not isinstance(found, type):
        return found
    if _is_pydantic_ai(found):
        from holdfast.adapters.pydantic_ai import durable

        return durable(found, name=found.name or path.partition(":")[2])
    raise UsageError(f"{path} is neither an App nor an agent: its type is {type(found).__name__}")


def _is_pydantic_ai(found: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "pydantic_ai" for kind in type(found).__mro__)


def build_model_app(model: str, *, store: str, create: bool, listener: RunListener | None = None) -> App:
    """Return an App whose only agent is this model, without instructions and tools.

    Raises:
        CommandError: pydantic-ai is not installed, or the model or its key is unknown.
    """
    try:
        from holdfast.adapters.pydantic_ai import durable
    except ModuleNotFoundError as exc:
        raise CommandError(f'--model needs {exc.name}: pip install "holdfast[pydantic-ai]"') from exc
    try:
        source = durable(model, stream=True)
    except Exception as exc:  # such as an unknown provider or a missing key
        raise CommandError(f"--model {model}: {format_error(exc)}") from exc
    return build_app(source, "", store=store, create=create, listener=listener)


def select_agent_name(app: App, wanted: str) -> str:
    """Return the given name, or the name of the App's only agent.

    Raises:
        UsageError: the App has no such agent, or has several and the name is empty.
    """
    known = ", ".join(sorted(app.agents)) or "none"
    if wanted:
        if wanted not in app.agents:
            raise UsageError(f"no agent {wanted!r}: the App has {known}")
        return wanted
    if len(app.agents) != 1:
        raise UsageError(f"name one of the App's agents with --agent: {known}")
    return next(iter(app.agents))


class ListenerPair:
    """Forwards to the App's own listener and to the command's."""

    def __init__(self, first: RunListener, second: RunListener) -> None:
        self._first, self._second = first, second

    async def on_event(self, info: RunInfo, event: Event) -> None:
        await self._second.on_event(info, event)
        await self._first.on_event(info, event)

    async def on_output(self, info: RunInfo, output: Any) -> None:
        await self._second.on_output(info, output)
        await self._first.on_output(info, output)

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        await self._second.on_error(info, error)
        await self._first.on_error(info, error)


def get_tool_effects(source: AgentSource | None) -> dict[str, str]:
    """Return the effects of an agent's tools, by name; none if the agent has to be built first."""
    if not isinstance(source, Agent):
        return {}
    profiles = [source.profile(), *(source.profile(phase) for phase in source.phases)]
    return {name: tool.effect.value for profile in profiles for name, tool in profile.tools.items()}
