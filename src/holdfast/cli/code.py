"""From MODULE:ATTR, which a user typed, to an App. Nothing that a store says is ever looked up this way."""

import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from holdfast.app import App
from holdfast.cli.errors import CommandError, WrongUsage, debugging, one_line
from holdfast.cli.stores import store_for
from holdfast.run.agent import Agent, AgentSource
from holdfast.run.ports import Delivery

#: A run that failed is kept for so long, so that a person can go on with it. An App of a user's own decides for itself.
KEEP_FAILED = timedelta(days=7)


def find(path: str) -> Any:
    """What `MODULE:ATTR` names. Modules are looked for in the working directory, too.

    Raises:
        WrongUsage: it is not written so, or there is no such module or attribute.
        CommandError: the module is there and cannot be imported.
    """
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        raise WrongUsage(f"{path!r} names no code: write MODULE:ATTR, such as agents:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = _imported(module_name)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise WrongUsage(f"{module_name} has no {attribute}{_others(found)}")
        found = getattr(found, name)
    return found


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            raise WrongUsage(f"no module {name!r} in {os.getcwd()} or among the installed ones") from exc
        raise CommandError(f"{name} cannot be imported: {one_line(exc)}{_place(exc, name)}") from exc
    except Exception as exc:  # the user's module may raise anything while it is imported
        if debugging():
            raise
        raise CommandError(f"{name} cannot be imported: {one_line(exc)}{_place(exc, name)}") from exc


def _place(error: BaseException, module_name: str) -> str:
    """Where in the user's own code it went wrong."""
    if isinstance(error, SyntaxError):
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename != __file__]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _others(module: Any) -> str:
    usable = [name for name, value in vars(module).items() if isinstance(value, App) or _is_source(value)]
    return f": it has {', '.join(usable)}" if usable else ""


def _is_source(value: Any) -> bool:
    return not isinstance(value, type) and isinstance(getattr(value, "name", None), str) and hasattr(value, "build")


def app_of(found: Any, path: str, *, store: str, create: bool, delivery: Delivery | None = None) -> App:
    """An App of what was found, not open: signals and recovery are the command's business, so it does neither.

    Args:
        store: a URL in place of the App's own store, or nothing.
        create: whether a store on disk may be made now.

    Raises:
        WrongUsage: it is neither an App nor an agent.
    """
    changes: dict[str, Any] = {"recover": False, "signals": False}
    if isinstance(found, App):
        if store:
            changes["store"] = store_for(store, create=create)
        if delivery is not None:
            changes["delivery"] = Both(found.ports.delivery, delivery) if found.ports.delivery else delivery
        return found.variant(**changes)
    return App(
        [_source(found, path)],
        store_for(store, create=create),
        keep_failed=KEEP_FAILED,
        delivery=delivery,
        **changes,
    )


def agents_of(path: str) -> Mapping[str, AgentSource]:
    """The agents of the App or agent that `path` names, by name; none if it is empty."""
    if not path:
        return {}
    found = find(path)
    if isinstance(found, App):
        return found.agents
    source = _source(found, path)
    return {source.name: source}


def _source(found: Any, path: str) -> AgentSource:
    if _is_source(found):
        source: AgentSource = found
        return source
    if _is_pydantic_ai(found):
        from holdfast.adapters.pydantic_ai import durable

        return durable(found, name=found.name or path.partition(":")[2])
    raise WrongUsage(f"{path} is a {type(found).__name__}, neither an App nor an agent")


def _is_pydantic_ai(found: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "pydantic_ai" for kind in type(found).__mro__)


def app_of_model(model: str, *, store: str, create: bool, delivery: Delivery | None = None) -> App:
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
        raise CommandError(f"--model {model}: {one_line(exc)}") from exc
    return app_of(source, "", store=store, create=create, delivery=delivery)


def agent_name(app: App, wanted: str) -> str:
    """The agent that is meant: the one named, or the only one there is.

    Raises:
        WrongUsage: there is no such agent, or several and none is named.
    """
    known = ", ".join(sorted(app.agents)) or "none"
    if wanted:
        if wanted not in app.agents:
            raise WrongUsage(f"no agent {wanted!r}: the App has {known}")
        return wanted
    if len(app.agents) != 1:
        raise WrongUsage(f"name one of the App's agents with --agent: {known}")
    return next(iter(app.agents))


class Both:
    """Delivers to the App's own delivery, and to the command that watches."""

    def __init__(self, own: Delivery, watching: Delivery) -> None:
        self._own, self._watching = own, watching

    async def progress(self, info: Any, event: Any) -> None:
        await self._watching.progress(info, event)
        await self._own.progress(info, event)

    async def output(self, info: Any, output: Any) -> None:
        await self._watching.output(info, output)
        await self._own.output(info, output)

    async def error(self, info: Any, error: BaseException) -> None:
        await self._watching.error(info, error)
        await self._own.error(info, error)


def effects_of(source: AgentSource | None) -> dict[str, str]:
    """What the tools of an agent do to the world, by name, as far as it tells without being built."""
    if not isinstance(source, Agent):
        return {}
    profiles = [source.profile(), *(source.profile(phase) for phase in source.phases)]
    return {name: tool.effect.value for profile in profiles for name, tool in profile.tools.items()}
