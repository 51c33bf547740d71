"""Crash points: `CrashInjector` kills the process at one of them, `CrashingStore` adds them around every write."""

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

from holdfast.checkpoint.codec import RecordedResult, decode
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, Mail, NewRun, Receipt, Release, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.concurrency import THREADS
from holdfast.stores.wrapper import StoreWrapper
from holdfast.testing.crash.recording import (
    CrashEvent,
    EventLog,
    OtherLoops,
    PointReachedEvent,
    RunClosingEvent,
    WriteAcknowledgedEvent,
)


class CrashInjector:
    """Passes the crash points of one attempt and kills the process at the chosen one."""

    def __init__(self, event_log: EventLog, *, at: Collection[str] = (), nth: int | None = None) -> None:
        """Choose where to crash, if at all.

        Args:
            at: crash at the first point that has one of these marks.
            nth: crash at the n-th point of this attempt.
        """
        self._event_log, self._at, self._nth = event_log, frozenset(at), nth
        self._mark_counts: Counter[str] = Counter()
        self._points = 0
        self._lock = THREADS.get().make_lock()

    def reach(self, *marks: str, fallback_mark: str | None = None) -> None:
        """Pass a crash point. Its first mark is its name.

        The number of writes depends on the speed of the tools: two results may be written together or one by one.
        The content does not. So a point is identified by its marks, the things that become durable there.

        Args:
            fallback_mark: a mark that every attempt meets, at this point or after it.
        """
        with self._lock:
            self._points += 1
            numbered_marks = [self._number_mark(mark) for mark in marks]
            next_marks = [numbered_marks[0], *([fallback_mark] if fallback_mark else [])]
            if self._points == self._nth or not self._at.isdisjoint(numbered_marks):
                self._event_log.write(CrashEvent(point=numbered_marks[0]))
                _kill_process()
            self._event_log.write(PointReachedEvent(point=numbered_marks[0], marks=next_marks))

    def _number_mark(self, mark: str) -> str:
        self._mark_counts[mark] += 1
        return mark if self._mark_counts[mark] == 1 else f"{mark} ({self._mark_counts[mark]})"


def _kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # SIGKILL is pending: this thread must not run any further code


_T = TypeVar("_T")


class CrashingStore(StoreWrapper):
    """Wraps a store: adds crash points around its writes and logs every write it acknowledges."""

    def __init__(self, inner: RunStore, injector: CrashInjector, event_log: EventLog, other_loops: OtherLoops) -> None:
        super().__init__(inner)
        self._injector, self._event_log, self._other_loops = injector, event_log, other_loops

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        event = WriteAcknowledgedEvent(
            run_id=run.run_id, entries=run.entries, rewrite=True, parent_run_id=run.parent_run_id
        )
        return await self._write_with_crash_points(
            partial(self._store.create, run, worker_id=worker_id, connection=connection), event, ["creation"]
        )

    async def append(self, claim: Claim, write: Append) -> None:
        if not write.entries and not write.consumed:
            # A claim check: it changes nothing, and the tool call that follows has crash points of its own.
            await self._store.append(claim, write)
            return
        marks, step = _list_marks(write.entries, decode(write.progress, Progress))
        event = WriteAcknowledgedEvent(run_id=claim.run_id, entries=write.entries, rewrite=write.rewrite)
        marks = marks or [f"mail consumed in {step}"]
        await self._write_with_crash_points(partial(self._store.append, claim, write), event, marks, fallback_mark=step)

    async def transact(self, claim: Claim, function: Callable[[Any], Any], make_write: Callable[[Any], Append]) -> Any:
        event, marks, step = WriteAcknowledgedEvent(run_id=claim.run_id), ["transaction"], ""

        def make_logged_write(value: Any) -> Append:
            nonlocal event, marks, step
            write = make_write(value)
            marks, step = _list_marks(write.entries, decode(write.progress, Progress))
            event = WriteAcknowledgedEvent(run_id=claim.run_id, entries=write.entries, rewrite=write.rewrite)
            self._reach("before", claim.run_id, marks, step)  # the function has returned, nothing is committed
            return write

        value = await self._store.transact(claim, function, make_logged_write)
        self._event_log.write(event)
        self._reach("after", claim.run_id, marks, step)
        return value

    async def release(self, claim: Claim, release: Release) -> None:
        await self._record_closing(claim.run_id)
        event = WriteAcknowledgedEvent(run_id=claim.run_id, entries=release.entries)
        await self._write_with_crash_points(
            partial(self._store.release, claim, release), event, [f"end ({release.status})"]
        )

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        await self._record_closing(run_id)
        event = WriteAcknowledgedEvent(run_id=run_id, removed=True)
        remove = partial(self._store.remove, run_id, claim=claim, erase=erase)
        await self._write_with_crash_points(remove, event, ["removal"])

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        claim = await self._store.claim(run_id, worker_id, statuses=statuses, steal=steal, within_limits=within_limits)
        self._injector.reach(f"after claim of {run_id}")
        return claim

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        claims = await self._store.claim_next(worker_id, agents=agents, limit=limit)
        for claim in claims:
            self._injector.reach(f"after claim of {claim.run_id}")
        return claims

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        event = WriteAcknowledgedEvent(run_id=run_id)
        # Named by its topic: the id may differ from attempt to attempt.
        return await self._write_with_crash_points(
            partial(self._store.post, run_id, mail), event, [f"mail ({mail.topic})"]
        )

    async def purge(self, *, limit: int = 100) -> int:
        """Purge nothing: what a trial acknowledged has to be there until the agent's own run removes it."""
        return 0

    async def _record_closing(self, run_id: str) -> None:
        with contextlib.suppress(RunNotFound):
            stored = await self._store.load(run_id)
            if stored.record.agent_name in self._other_loops:
                self._event_log.write(RunClosingEvent(journal=self._other_loops.read_journal(stored)))

    async def _write_with_crash_points(
        self,
        write: Callable[[], Awaitable[_T]],
        event: WriteAcknowledgedEvent,
        names: Sequence[str],
        fallback_mark: str | None = None,
    ) -> _T:
        self._reach("before", event.run_id, names, fallback_mark)
        result = await write()
        self._event_log.write(event)
        self._reach("after", event.run_id, names, fallback_mark)
        return result

    def _reach(self, side: str, run_id: str, names: Sequence[str], fallback_mark: str | None) -> None:
        fallback = f"{side} {fallback_mark} of {run_id}" if fallback_mark else None
        self._injector.reach(*(f"{side} {name} of {run_id}" for name in names), fallback_mark=fallback)


def _list_marks(entries: Sequence[Entry], progress: Progress) -> tuple[list[str], str]:
    """Return the marks of a write, the most specific first, and the step it belongs to."""
    kinds = {entry.kind for entry in entries}
    finished = EntryKind.STEP in kinds
    step = f"step {progress.steps if finished else progress.steps + 1}"
    results = [
        f"result {decode(entry.body, RecordedResult).call}" for entry in entries if entry.kind is EntryKind.RESULT
    ]
    marks = [
        *([step] if finished else []),
        *([f"phase {progress.phases}"] if EntryKind.PHASE in kinds else []),
        *([f"messages of {step}"] if kinds & {EntryKind.MESSAGE, EntryKind.ADOPT} else []),
        *results,
    ]
    return marks, step
