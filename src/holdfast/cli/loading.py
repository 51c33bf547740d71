"""From MODULE:ATTR, which a user typed, to an App. Nothing that a store says is ever looked up this way."""

import dataclasses
import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from holdfast.app import App, AppOptions
from holdfast.cli.errors import CommandError, UsageError, format_error, is_debug_enabled
from holdfast.cli.stores import make_store
from holdfast.config import CheckpointSettings, WorkerSettings
from holdfast.core.agent import Agent, AgentSource
from holdfast.core.ports import RunListener

#: A run that failed is kept for so long, so that a person can go on with it. An App of a user's own decides for itself.
FAILED_RETENTION = timedelta(days=7)


def load_object(path: str) -> Any:
    """What `MODULE:ATTR` names. Modules are looked for in the working directory, too.

    Raises:
        UsageError: it is not written so, or there is no such module or attribute.
        CommandError: the module is there and cannot be imported.
    """
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{path!r} names no code: write MODULE:ATTR, such as agents:app")
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
            raise UsageError(f"no module {name!r} in {os.getcwd()} or among the installed ones") from exc
        raise CommandError(f"{name} cannot be imported: {format_error(exc)}{_format_location(exc, name)}") from exc
    except Exception as exc:  # the user's module may raise anything while it is imported
        if is_debug_enabled():
            raise
        raise CommandError(f"{name} cannot be imported: {format_error(exc)}{_format_location(exc, name)}") from exc


def _format_location(error: BaseException, module_name: str) -> str:
    """Where in the user's own code it went wrong."""
    if isinstance(error, SyntaxError):
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename != __file__]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _format_alternatives(module: Any) -> str:
    usable = [name for name, value in vars(module).items() if isinstance(value, App) or _is_agent_source(value)]
    return f": it has {', '.join(usable)}" if usable else ""


def _is_agent_source(value: Any) -> bool:
    return not isinstance(value, type) and isinstance(getattr(value, "name", None), str) and hasattr(value, "build")


def build_app(found: Any, path: str, *, store: str, create: bool, listener: RunListener | None = None) -> App:
    """An App of what was found, not open: signals and recovery are the command's business, so it does neither.

    Args:
        store: a URL in place of the App's own store, or nothing.
        create: whether a store on disk may be made now.

    Raises:
        UsageError: it is neither an App nor an agent.
    """
    if isinstance(found, App):
        worker = dataclasses.replace(found.worker_settings, recover_on_start=False, handle_signals=False)
        changes: AppOptions = {"worker": worker}
        if store:
            changes["store"] = make_store(store, create=create)
        if listener is not None:
            changes["listener"] = ListenerPair(found.ports.listener, listener) if found.ports.listener else listener
        return found.replace(**changes)
    return App(
        [_to_agent_source(found, path)],
        make_store(store, create=create),
        checkpoint=CheckpointSettings(failed_retention=FAILED_RETENTION),
        worker=WorkerSettings(recover_on_start=False, handle_signals=False),
        listener=listener,
    )


def load_agents(path: str) -> Mapping[str, AgentSource]:
    """The agents of the App or agent that `path` names, by name; none if it is empty."""
    if not path:
        return {}
    found = load_object(path)
    if isinstance(found, App):
        return found.agents
    source = _to_agent_source(found, path)
    return {source.name: source}


def _to_agent_source(found: Any, path: str) -> AgentSource:
    if _is_agent_source(found):
        source: AgentSource = found
        return source
    if _is_pydantic_ai(found):
        from holdfast.adapters.pydantic_ai import durable

        return durable(found, name=found.name or path.partition(":")[2])
    raise UsageError(f"{path} is a {type(found).__name__}, neither an App nor an agent")


def _is_pydantic_ai(found: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "pydantic_ai" for kind in type(found).__mro__)


def build_model_app(model: str, *, store: str, create: bool, listener: RunListener | None = None) -> App:
    """An App whose one agent asks this model, with neither instructions nor tools.

    Raises:
        CommandError: pydantic-ai is not installed, or does not know the model or its key.
    """
    try:
        from holdfast.adapters.pydantic_ai import durable
    except ModuleNotFoundError as exc:
        raise CommandError(f'--model needs {exc.name}: pip install "holdfast[pydantic-ai]"') from exc
    try:
        source = durable(model, stream=True)
    except Exception as exc:  # an unknown provider, a missing key: pydantic-ai says which
        raise CommandError(f"--model {model}: {format_error(exc)}") from exc
    return build_app(source, "", store=store, create=create, listener=listener)


def select_agent_name(app: App, wanted: str) -> str:
    """The agent that is meant: the one named, or the only one there is.

    Raises:
        UsageError: there is no such agent, or several and none is named.
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
    """Delivers to the App's own delivery, and to the command that watches."""

    def __init__(self, first: RunListener, second: RunListener) -> None:
        self._first, self._second = first, second

    async def on_event(self, info: Any, event: Any) -> None:
        await self._second.on_event(info, event)
        await self._first.on_event(info, event)

    async def on_output(self, info: Any, output: Any) -> None:
        await self._second.on_output(info, output)
        await self._first.on_output(info, output)

    async def on_error(self, info: Any, error: BaseException) -> None:
        await self._second.on_error(info, error)
        await self._first.on_error(info, error)


def get_tool_effects(source: AgentSource | None) -> dict[str, str]:
    """What the tools of an agent do to the world, by name, as far as it tells without being built."""
    if not isinstance(source, Agent):
        return {}
    profiles = [source.profile(), *(source.profile(phase) for phase in source.phases)]
    return {name: tool.effect.value for profile in profiles for name, tool in profile.tools.items()}
