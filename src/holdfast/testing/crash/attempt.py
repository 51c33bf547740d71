"""From an object to words by which another process finds it, and back.

One life of a tested run: a process that begins it, or goes on with it, and perhaps crashes.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import isawaitable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.config import WorkerSettings
from holdfast.core.agent import AgentSource
from holdfast.core.errors import DefinitionError, RunParked
from holdfast.core.execution.native import get_loop
from holdfast.testing.crash.events import (
    EventLog,
    OtherLoops,
    RunParkedEvent,
    StoredJournal,
    StoreFoundEvent,
    StoreLeftEvent,
)
from holdfast.testing.crash.injection import CrashingStore, CrashInjector
from holdfast.testing.crash.instrument import (
    Instrumentation,
    InstrumentedToolProvider,
    RecordingAudit,
    RecordingBudget,
    RecordingListener,
)


class ImportPath(msgspec.Struct, frozen=True, kw_only=True):
    """A name in a module."""

    module: str
    attribute: str
    #: Where the module is from, if that is known: test modules can seldom be imported by their name.
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"


def find_import_path(given: Any) -> ImportPath:
    """Where another process finds `given`: an object at the top of a module, or `"module:attribute"`.

    Raises:
        DefinitionError: it cannot be found that way.
    """
    if isinstance(given, str):
        module, colon, attribute = given.partition(":")
        if not colon or not module or not attribute:
            raise DefinitionError(f"{given!r} is no place: write 'module:attribute'")
        return ImportPath(module=module, attribute=attribute)
    # The program that was started is the last choice: it would have to be run again to be imported.
    for name, module_object in sorted(sys.modules.items(), key=lambda each: each[0] == "__main__"):
        for attribute, value in list(vars(module_object).items()) if isinstance(module_object, ModuleType) else ():
            if value is given:
                return ImportPath(module=name, attribute=attribute, file=getattr(module_object, "__file__", None))
    raise DefinitionError(
        f"another process cannot find {given!r:.80}: it has to be a name at the top of a module; "
        "or make it in a function at the top of a module and give that"
    )


def import_object(path: ImportPath) -> Any:
    """What is at the place, in this process.

    Raises:
        DefinitionError: there is no such module or name.
    """
    try:
        return operator.attrgetter(path.attribute)(_import_module(path))
    except (ModuleNotFoundError, AttributeError) as exc:
        raise DefinitionError(f"nothing to crash at {path}: {exc}") from exc


def _import_module(path: ImportPath) -> ModuleType:
    if path.file is None:
        return importlib.import_module(path.module)
    if path.module != "__main__":
        try:
            module = importlib.import_module(path.module)
            if Path(getattr(module, "__file__", None) or "").resolve() == Path(path.file).resolve():
                return module
        except ModuleNotFoundError:
            pass  # a module that its test runner has loaded from its file: so do we
    name = "__crash_tested__" if path.module == "__main__" else path.module
    spec = importlib.util.spec_from_file_location(name, path.file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


#: The environment variable that names the trial's own folder, for tools that need a world of their own to act on.
TRIAL_FOLDER = "HOLDFAST_TRIAL_FOLDER"


class CrashTestConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is tested: the same in every life."""

    agent: ImportPath
    open_store: ImportPath
    options: ImportPath | None = None
    prompt: str
    run_id: str
    #: A life that takes longer hangs: it is ended, and says where it was.
    timeout: float


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to do."""

    number: int
    url: str
    #: A folder of this trial's own: its notes, and what the process prints.
    folder: str
    #: Where to crash, if at all: at the first of these marks, or at the n-th point.
    crash_at: Sequence[str] = ()
    crash_at_nth: int | None = None
    #: Whether a store has acknowledged that the run exists, so that it must not vanish.
    run_acknowledged: bool = False

    @property
    def events_path(self) -> Path:
        return get_events_path(Path(self.folder))

    @property
    def log_path(self) -> Path:
        return get_log_path(Path(self.folder), self.number)


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a life ended: an exit code, or a signal's number below zero."""

    exit_code: int


def get_events_path(folder: Path) -> Path:
    return folder / "events.jsonl"


def get_log_path(folder: Path, attempt: int) -> Path:
    return folder / f"life-{attempt}.log"


async def execute_attempt(attempt: Attempt, config: CrashTestConfig) -> None:
    """Begin the run, or recover what an earlier life left; then note what is left in the store."""
    os.environ[TRIAL_FOLDER] = attempt.folder
    notebook = EventLog(attempt.events_path, attempt.number)
    trap = CrashInjector(notebook, at=attempt.crash_at, nth=attempt.crash_at_nth)
    open_store: Callable[[str], CheckpointStore] = import_object(config.open_store)
    foreign = OtherLoops()
    store = CrashingStore(open_store(attempt.url), trap, notebook, foreign)
    tested, app = await _build_app(config, store, Instrumentation(trap, notebook, foreign), notebook, foreign)
    async with app:
        if attempt.number == 0:
            await app.run(tested, config.prompt, run_id=config.run_id)
        else:
            found = await _read_journals(store, foreign)
            notebook.write(StoreFoundEvent(journals=found))
            await _recover_run(app, store, config.run_id, notebook)
            if not attempt.run_acknowledged and not any(journal.run_id == config.run_id for journal in found):
                # Nobody had promised anything: whoever wanted the run has to ask again.
                await app.run(tested, config.prompt, run_id=config.run_id)
    afterwards = open_store(attempt.url)
    await afterwards.open()
    notebook.write(StoreLeftEvent(journals=await _read_journals(afterwards, foreign)))
    await afterwards.close()


async def _build_app(
    config: CrashTestConfig,
    store: CrashingStore,
    instrumentation: Instrumentation,
    event_log: EventLog,
    other_loops: OtherLoops,
) -> tuple[str, App]:
    """The name of the tested agent, and an App in which all that it does is noted."""
    agents = await _load_agents(config.agent)
    options: dict[str, Any] = (
        dict(await _resolve_factory(import_object(config.options))) if config.options is not None else {}
    )
    if options.get("extra_tools") is not None:
        options["extra_tools"] = InstrumentedToolProvider(options["extra_tools"], instrumentation)
    options["listener"] = RecordingListener(
        config.run_id, get_loop(agents[0]), event_log, instrumentation, other_loops, options.get("listener")
    )
    options["audit"] = RecordingAudit(event_log, other_loops, options.get("audit"))
    options["budget"] = RecordingBudget(event_log, options.get("budget"))
    worker: WorkerSettings = options.get("worker", WorkerSettings())
    options["worker"] = dataclasses.replace(worker, recover_on_start=False, handle_signals=False)
    wrapped = [instrumentation.wrap_source(agent) for agent in agents]
    return agents[0].name, App(wrapped, store, **options)


async def _load_agents(path: ImportPath) -> list[AgentSource]:
    """The agent to run, and after it the others that recovery has to know."""
    found = await _resolve_factory(import_object(path))
    return list(found) if isinstance(found, Iterable) else [found]


async def _resolve_factory(found: Any) -> Any:
    """`found` itself, or what it makes if it is a function."""
    if callable(found) and not isinstance(found, Mapping | Iterable) and not hasattr(found, "build"):
        found = found()
    return await found if isawaitable(found) else found


async def _recover_run(app: App, store: CheckpointStore, run_id: str, event_log: EventLog) -> None:
    """Go on with everything that was left behind, until the run is gone from the store."""
    await app.recover()
    while (record := await _find_record(store, run_id)) is not None:
        if record.status is RunStatus.PARKED and record.reason.startswith("in doubt"):
            event_log.write(RunParkedEvent(reason=record.reason))
            await app.unpark(run_id)
            await app.recover()
        else:
            # It waits for its backoff, or has struck out: both because of the crashes, which are not its fault.
            with contextlib.suppress(RunParked):
                await app.resume(run_id)


async def _read_journals(store: CheckpointStore, other_loops: OtherLoops) -> list[StoredJournal]:
    return [other_loops.read_journal(await store.load(record.run_id)) async for record in store.list_runs()]


async def _find_record(store: CheckpointStore, run_id: str) -> RunRecord | None:
    found = [record async for record in store.list_runs() if record.run_id == run_id]
    return found[0] if found else None
