"""One attempt of a crash test: a process that starts or resumes the tested run, and crashes at its crash point."""

import contextlib
import dataclasses
import importlib
import importlib.util
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from inspect import isawaitable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore, get_record, iter_runs
from holdfast.config import CheckpointSettings, WorkerSettings
from holdfast.core.agents.agent import AgentSource
from holdfast.core.errors import DefinitionError, RunParked
from holdfast.core.execution.native_loop import get_loop
from holdfast.testing.crash.injection import CrashingStore, CrashInjector
from holdfast.testing.crash.instrument import (
    Instrumentation,
    InstrumentedToolProvider,
    RecordingAudit,
    RecordingBudget,
    RecordingListener,
)
from holdfast.testing.crash.recording import (
    EventLog,
    OtherLoops,
    OutputEvent,
    RunParkedEvent,
    StoredJournal,
    StoreFoundEvent,
    StoreLeftEvent,
)


class ImportPath(msgspec.Struct, frozen=True, kw_only=True):
    """The module and name under which another process finds an object."""

    module: str
    attribute: str
    #: The file of the module, if known: most test modules cannot be imported by name.
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"


def find_import_path(given: Any) -> ImportPath:
    """Return the import path of an object at the top of a module, or of `"module:attribute"`.

    Raises:
        DefinitionError: the object is not at the top of a module.
    """
    if isinstance(given, str):
        module_name, _, attribute = given.partition(":")
        if not module_name or not attribute:
            raise DefinitionError(f"{given!r} is not an import path: write 'module:attribute'")
        return ImportPath(module=module_name, attribute=attribute)
    # `__main__` comes last: importing it runs the program again.
    for name in sorted(sys.modules, key="__main__".__eq__):
        module = sys.modules[name]
        for attribute, value in list(vars(module).items()) if isinstance(module, ModuleType) else ():
            if value is given:
                return ImportPath(module=name, attribute=attribute, file=getattr(module, "__file__", None))
    raise DefinitionError(
        f"another process cannot import {given!r:.80}: assign it to a name at the top of a module, "
        "or pass a function at the top of a module that builds it"
    )


def import_object(path: ImportPath) -> Any:
    """Import the object in this process.

    Raises:
        DefinitionError: the module or the name does not exist.
    """
    try:
        return operator.attrgetter(path.attribute)(_import_module(path))
    except (ModuleNotFoundError, AttributeError) as exc:
        raise DefinitionError(f"cannot import {path}: {exc}") from exc


def _import_module(path: ImportPath) -> ModuleType:
    if path.file is None:
        return importlib.import_module(path.module)
    if path.module != "__main__":
        try:
            module = importlib.import_module(path.module)
            if Path(getattr(module, "__file__", None) or "").resolve() == Path(path.file).resolve():
                return module
        except ModuleNotFoundError:
            pass  # a test runner loaded the module from its file: do the same
    name = "__crash_tested__" if path.module == "__main__" else path.module
    spec = importlib.util.spec_from_file_location(name, path.file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


#: The environment variable with the path of the trial's own folder, for tools whose effects are files.
TRIAL_FOLDER = "HOLDFAST_TRIAL_FOLDER"


class CrashTestConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is tested. The same for every attempt of every trial."""

    agent: ImportPath
    open_store: ImportPath
    options: ImportPath | None = None
    prompt: str
    run_id: str
    #: Seconds. An attempt that takes longer prints its stacks and is ended.
    timeout: float


class TrialProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions for one process."""

    number: int
    url: str
    #: The trial's own folder: its event log and the output of its processes.
    folder: str
    #: Where to crash, if at all: at the first point with one of these marks, or at the n-th point.
    crash_at: Sequence[str] = ()
    crash_at_nth: int | None = None
    #: The store acknowledged the creation of the run, so the run must still be there.
    run_acknowledged: bool = False

    @property
    def events_path(self) -> Path:
        return get_events_path(Path(self.folder))

    @property
    def log_path(self) -> Path:
        return get_log_path(Path(self.folder), self.number)


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the process of an attempt ended: its exit code, or minus the signal that killed it."""

    exit_code: int


def get_events_path(folder: Path) -> Path:
    return folder / "events.jsonl"


def get_log_path(folder: Path, attempt: int) -> Path:
    return folder / f"attempt-{attempt}.log"


async def execute_attempt(attempt: TrialProcess, config: CrashTestConfig) -> None:
    """Start the run, or recover what an earlier attempt left and ask for it again. Then log the store's contents."""
    os.environ[TRIAL_FOLDER] = attempt.folder
    event_log = EventLog(attempt.events_path, attempt.number)
    injector = CrashInjector(event_log, at=attempt.crash_at, nth=attempt.crash_at_nth)
    open_store: Callable[[str], RunStore] = import_object(config.open_store)
    other_loops = OtherLoops()
    store = CrashingStore(open_store(attempt.url), injector, event_log, other_loops)
    agent_name, app = await _build_app(
        config, store, Instrumentation(injector, event_log, other_loops), event_log, other_loops
    )
    async with app:
        if attempt.number == 0:
            await app.run(agent_name, config.prompt, run_id=config.run_id)
        else:
            found = await _read_journals(store, other_loops)
            event_log.write(StoreFoundEvent(journals=found))
            await _recover_run(app, store, config.run_id, event_log)
            never_created = not attempt.run_acknowledged and config.run_id not in {journal.run_id for journal in found}
            if never_created or await _find_record(store, config.run_id) is not None:
                # As a restarted caller does. A run that has ended returns its recorded result.
                result = await app.run(agent_name, config.prompt, run_id=config.run_id)
                event_log.write(OutputEvent(output=get_loop(app.agent(agent_name)).dump_output(result.output)))
    afterwards = open_store(attempt.url)
    await afterwards.open()
    event_log.write(StoreLeftEvent(journals=await _read_journals(afterwards, other_loops)))
    await afterwards.close()


async def _build_app(
    config: CrashTestConfig,
    store: CrashingStore,
    instrumentation: Instrumentation,
    event_log: EventLog,
    other_loops: OtherLoops,
) -> tuple[str, App]:
    """Build an App that logs everything its agents do. Return the name of the tested agent, and the App."""
    agents = await _load_agents(config.agent)
    options: dict[str, Any] = (
        dict(await _resolve_factory(import_object(config.options))) if config.options is not None else {}
    )
    options["tools"] = [InstrumentedToolProvider(each, instrumentation) for each in options.get("tools", ())]
    options["listener"] = RecordingListener(
        config.run_id, get_loop(agents[0]), event_log, instrumentation, other_loops, options.get("listener")
    )
    options["audit"] = RecordingAudit(event_log, other_loops, options.get("audit"))
    options["budget"] = RecordingBudget(event_log, options.get("budget"))
    worker: WorkerSettings = options.get("worker", WorkerSettings())
    options["worker"] = dataclasses.replace(worker, take_runs=False, handle_signals=False)
    options["checkpoint"] = _remove_when_done(options.get("checkpoint", CheckpointSettings()))
    wrapped = [instrumentation.wrap_source(agent) for agent in agents]
    return agents[0].name, App(wrapped, store, **options)


def _remove_when_done(settings: CheckpointSettings) -> CheckpointSettings:
    """Return the settings without retention: an empty store says that everything has ended."""
    retention = dataclasses.replace(settings.retention, done=timedelta(0), cancelled=timedelta(0))
    return dataclasses.replace(settings, retention=retention)


async def _load_agents(path: ImportPath) -> list[AgentSource]:
    """Return the agent to run, followed by the other agents that recovery needs."""
    found = await _resolve_factory(import_object(path))
    return list(found) if isinstance(found, Iterable) else [found]


async def _resolve_factory(found: Any) -> Any:
    """Call `found` if it is a function; await the result if it is awaitable."""
    if callable(found) and not isinstance(found, Mapping | Iterable) and not hasattr(found, "build"):
        found = found()
    return await found if isawaitable(found) else found


async def _recover_run(app: App, store: RunStore, run_id: str, event_log: EventLog) -> None:
    """Resume everything that was interrupted, until the run has ended."""
    await app.recover()
    while (record := await _find_record(store, run_id)) is not None and not record.is_terminal:
        if record.status is RunStatus.PARKED and record.reason.startswith("in doubt"):
            event_log.write(RunParkedEvent(reason=record.reason))
            await app.unpark(run_id)
            await app.recover()
        else:
            # The run waits for its backoff or is parked as poison. Both come from the crashes of the test.
            with contextlib.suppress(RunParked):
                await app.resume(run_id)


async def _read_journals(store: RunStore, other_loops: OtherLoops) -> list[StoredJournal]:
    return [other_loops.read_journal(await store.load(record.run_id)) async for record in iter_runs(store)]


async def _find_record(store: RunStore, run_id: str) -> RunRecord | None:
    try:
        return await get_record(store, run_id)
    except RunNotFound:
        return None
