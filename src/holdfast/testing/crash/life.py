"""One life of a tested run: a process that begins it, or goes on with it, and perhaps crashes."""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import isawaitable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.run.agent import AgentSource
from holdfast.run.errors import RunParked
from holdfast.run.native import loop_of
from holdfast.testing.crash.foreign import ForeignLoops
from holdfast.testing.crash.importing import Place, load
from holdfast.testing.crash.instrument import Instruments
from holdfast.testing.crash.notes import Found, Journal, Left, Notebook, Parked
from holdfast.testing.crash.ports import NotedAudit, NotedBudget, NotedDelivery, NotedPalette
from holdfast.testing.crash.store import CrashingStore
from holdfast.testing.crash.trap import Trap

#: The environment variable that names the trial's own folder, for tools that need a world of their own to act on.
TRIAL_FOLDER = "HOLDFAST_TRIAL_FOLDER"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is tested: the same in every life."""

    agent: Place
    open_store: Place
    options: Place | None = None
    prompt: str
    run_id: str
    #: A life that takes longer hangs: it is ended, and says where it was.
    patience: float


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to do."""

    number: int
    url: str
    #: A folder of this trial's own: its notes, and what the process prints.
    folder: str
    #: Where to crash, if at all: at the first of these marks, or at the n-th point.
    at: Sequence[str] = ()
    nth: int | None = None
    #: Whether a store has acknowledged that the run exists, so that it must not vanish.
    accepted: bool = False

    @property
    def notes(self) -> Path:
        return notes_of(Path(self.folder))

    @property
    def log(self) -> Path:
        return log_of(Path(self.folder), self.number)


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a life ended: an exit code, or a signal's number below zero."""

    code: int


def notes_of(folder: Path) -> Path:
    return folder / "notes.jsonl"


def log_of(folder: Path, life: int) -> Path:
    return folder / f"life-{life}.log"


async def live(life: Life, subject: Subject) -> None:
    """Begin the run, or recover what an earlier life left; then note what is left in the store."""
    os.environ[TRIAL_FOLDER] = life.folder
    notebook = Notebook(life.notes, life.number)
    trap = Trap(notebook, at=life.at, nth=life.nth)
    open_store: Callable[[str], CheckpointStore] = load(subject.open_store)
    foreign = ForeignLoops()
    store = CrashingStore(open_store(life.url), trap, notebook, foreign)
    tested, app = await _app(subject, store, Instruments(trap, notebook, foreign), notebook, foreign)
    async with app:
        if life.number == 0:
            await app.run(tested, subject.prompt, run_id=subject.run_id)
        else:
            found = await _journals(store, foreign)
            notebook.write(Found(journals=found))
            await _recover(app, store, subject.run_id, notebook)
            if not life.accepted and not any(journal.run_id == subject.run_id for journal in found):
                # Nobody had promised anything: whoever wanted the run has to ask again.
                await app.run(tested, subject.prompt, run_id=subject.run_id)
    afterwards = open_store(life.url)
    await afterwards.open()
    notebook.write(Left(journals=await _journals(afterwards, foreign)))
    await afterwards.close()


async def _app(
    subject: Subject, store: CrashingStore, instruments: Instruments, notebook: Notebook, foreign: ForeignLoops
) -> tuple[str, App]:
    """The name of the tested agent, and an App in which all that it does is noted."""
    agents = await _agents(subject.agent)
    options: dict[str, Any] = dict(await _made(load(subject.options))) if subject.options is not None else {}
    if options.get("palette") is not None:
        options["palette"] = NotedPalette(options["palette"], instruments)
    options["delivery"] = NotedDelivery(
        subject.run_id, loop_of(agents[0]), notebook, instruments, foreign, options.get("delivery")
    )
    options["audit"] = NotedAudit(notebook, foreign, options.get("audit"))
    options["budget"] = NotedBudget(notebook, options.get("budget"))
    wrapped = [instruments.source(agent) for agent in agents]
    return agents[0].name, App(wrapped, store, **{"recover": False, "signals": False, **options})


async def _agents(place: Place) -> list[AgentSource]:
    """The agent to run, and after it the others that recovery has to know."""
    found = await _made(load(place))
    return list(found) if isinstance(found, Iterable) else [found]


async def _made(found: Any) -> Any:
    """`found` itself, or what it makes if it is a function."""
    if callable(found) and not isinstance(found, Mapping | Iterable) and not hasattr(found, "build"):
        found = found()
    return await found if isawaitable(found) else found


async def _recover(app: App, store: CheckpointStore, run_id: str, notebook: Notebook) -> None:
    """Go on with everything that was left behind, until the run is gone from the store."""
    await app.recover()
    while (record := await _record(store, run_id)) is not None:
        if record.status is Status.PARKED and record.reason.startswith("in doubt"):
            notebook.write(Parked(reason=record.reason))
            await app.unpark(run_id)
            await app.recover()
        else:
            # It waits for its backoff, or has struck out: both because of the crashes, which are not its fault.
            with contextlib.suppress(RunParked):
                await app.resume(run_id)


async def _journals(store: CheckpointStore, foreign: ForeignLoops) -> list[Journal]:
    return [foreign.journal(await store.load(record.run_id)) async for record in store.records()]


async def _record(store: CheckpointStore, run_id: str) -> RunRecord | None:
    found = [record async for record in store.records() if record.run_id == run_id]
    return found[0] if found else None
