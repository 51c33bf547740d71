"""A store with a crash point before and after every write."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Collection, Sequence
from datetime import timedelta
from typing import TypeVar

from holdfast.checkpoint.claim import Claim, Worker
from holdfast.checkpoint.codec import Progress, RecordedResult, decode
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.journal import Entry, EntryKind, Write
from holdfast.checkpoint.lifecycle import CLAIMABLE, Status
from holdfast.checkpoint.record import Ending, NewRun, RunFilter, RunRecord, StoredRun
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.crash.foreign import ForeignLoops
from holdfast.testing.crash.notes import Acknowledged, Closing, Notebook
from holdfast.testing.crash.trap import Trap

_T = TypeVar("_T")


class CrashingStore:
    """Hands every call on to another store, through a trap. Notes what that store has acknowledged."""

    def __init__(self, inner: CheckpointStore, trap: Trap, notebook: Notebook, foreign: ForeignLoops) -> None:
        self._inner, self._trap, self._notebook, self._foreign = inner, trap, notebook, foreign
        self.durable = inner.durable

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        await self._inner.close()

    async def enlist(self, worker: Worker) -> None:
        await self._inner.enlist(worker)

    async def discharge(self, worker_id: str) -> None:
        await self._inner.discharge(worker_id)

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        note = Acknowledged(run_id=run.run_id, entries=run.entries, replace=True)
        return await self._write(self._inner.create(run, worker_id=worker_id), note, ["creation"])

    async def append(self, claim: Claim, write: Write) -> None:
        if not write.entries:
            # The mere proof that the claim holds. It changes nothing; the tool that follows is a point of its own.
            await self._inner.append(claim, write)
            return
        marks, step = _marks(write.entries, decode(write.progress, Progress))
        note = Acknowledged(run_id=claim.run_id, entries=write.entries, replace=write.replace)
        await self._write(self._inner.append(claim, write), note, marks, at_the_latest=step)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        return await self._inner.load(run_id, after=after)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        await self._note_closing(claim.run_id)
        note = Acknowledged(run_id=claim.run_id, entries=ending.entries)
        await self._write(self._inner.settle(claim, ending), note, [f"end ({ending.status})"])

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        await self._note_closing(run_id)
        note = Acknowledged(run_id=run_id, removed=True)
        await self._write(self._inner.remove(run_id, claim=claim), note, ["removal"])

    def records(self, wanted: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        return self._inner.records(wanted)

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[Status] = CLAIMABLE, steal: bool = False
    ) -> Claim:
        claim = await self._inner.claim(run_id, worker_id, statuses=statuses, steal=steal)
        self._trap.reach(f"after claim of {run_id}")
        return claim

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        claims = await self._inner.claim_next(worker_id, agents=agents, limit=limit)
        for claim in claims:
            self._trap.reach(f"after claim of {claim.run_id}")
        return claims

    async def request_cancel(self, run_id: str) -> None:
        await self._inner.request_cancel(run_id)

    async def cancels(self, worker_id: str) -> Sequence[str]:
        return await self._inner.cancels(worker_id)

    async def changed(self, within: timedelta) -> bool:
        return await self._inner.changed(within)

    async def purge(self, *, limit: int = 100) -> int:
        return await self._inner.purge(limit=limit)

    async def _note_closing(self, run_id: str) -> None:
        with contextlib.suppress(RunNotFound):
            stored = await self._inner.load(run_id)
            if stored.record.agent_name in self._foreign:
                self._notebook.write(Closing(journal=self._foreign.journal(stored)))

    async def _write(
        self, write: Awaitable[_T], note: Acknowledged, what: Sequence[str], at_the_latest: str | None = None
    ) -> _T:
        for side in ("before", "after"):
            if side == "after":
                written = await write
                self._notebook.write(note)
            marks = [f"{side} {each} of {note.run_id}" for each in what]
            latest = f"{side} {at_the_latest} of {note.run_id}" if at_the_latest else None
            self._trap.reach(*marks, at_the_latest=latest)
        return written


def _marks(entries: Sequence[Entry], progress: Progress) -> tuple[list[str], str]:
    """What becomes durable with this write, the most telling first; and the step it belongs to."""
    kinds = {entry.kind for entry in entries}
    finished = EntryKind.STEP in kinds
    step = f"step {progress.iteration if finished else progress.iteration + 1}"
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
