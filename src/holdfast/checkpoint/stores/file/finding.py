"""Looking through all runs of the folder: their heads only. Blocking; called from the store's threads."""

import contextlib
import logging
import os
import time
from collections.abc import Collection, Iterator, Sequence

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import RunFilter, RunRecord
from holdfast.checkpoint.stores.file.access import Access
from holdfast.checkpoint.stores.file.layout import Layout
from holdfast.checkpoint.stores.file.reading import Damaged, Head
from holdfast.checkpoint.stores.file.runs import Runs
from holdfast.checkpoint.stores.file.transitions import fits, record_of
from holdfast.checkpoint.stores.file.workers import Workers
from holdfast.clock import Clock

#: Nanoseconds. What changed a moment ago may change again, or be another file, without any sign of it: file systems
#: count time in steps of some milliseconds, and use inodes again.
_SETTLED_AFTER = 1_000_000_000

_logger = logging.getLogger(__name__)


class Finder:
    """Reads of each journal the first line, the last, and the last state, whatever lies between them."""

    def __init__(self, layout: Layout, access: Access, runs: Runs, workers: Workers, *, clock: Clock) -> None:
        self._layout, self._access, self._runs = layout, access, runs
        self._workers, self._clock = workers, clock
        #: Said once, not at every look.
        self._reported: set[str] = set()
        #: By name, a journal's inode, length and time at the last look, and what was in it.
        self._known: dict[str, tuple[tuple[int, int, int], Head]] = {}

    def records(self, wanted: RunFilter | None = None) -> Sequence[RunRecord]:
        """The records that fit, oldest first."""
        known: dict[str, bool] = {}
        found = [self._record(head, known) for head in self._heads()]
        if wanted is not None:
            found = [record for record in found if fits(record, wanted)]
        return sorted(found, key=lambda record: (record.created_at, record.run_id))

    def record(self, head: Head) -> RunRecord:
        return self._record(head, {})

    def claim_next(self, worker_id: str, agents: Collection[str], limit: int) -> Sequence[Claim]:
        self._runs.keep_promises()
        claims: list[Claim] = []
        if limit > 0 and agents:
            for record in self._fairly(self._ready(agents)):
                claim = self._runs.claim_if_waiting(record.run_id, worker_id)
                if claim is not None:
                    claims.append(claim)
                if len(claims) == limit:
                    break
        return tuple(claims)

    def cancels(self, worker_id: str) -> Sequence[str]:
        asked: list[str] = []
        for name in os.listdir(self._layout.cancels):
            with contextlib.suppress(FileNotFoundError, Damaged):
                head = self._access.head(name)
                state = head.state
                if state.cancel_requested and state.status is Status.RUNNING and state.owner == worker_id:
                    asked.append(head.origin.run_id)
        return tuple(asked)

    def purge(self, limit: int) -> int:
        self._runs.keep_promises()
        now, records = self._clock.now(), self.records()
        may_go_on = {record.run_id for record in records if record.status is not Status.DONE}
        expired = [
            record.run_id
            for record in records
            if record.over
            and record.expires_at is not None
            and record.expires_at <= now
            # A parent that may go on has to meet its child again.
            and record.parent_run_id not in may_go_on
        ]
        return sum(self._runs.remove_expired(run_id) for run_id in expired[: max(0, limit)])

    def _heads(self) -> Iterator[Head]:
        """The head of every run. What did not change since the last look is not read again."""
        known, self._known = self._known, {}
        for name in self._layout.run_names():
            try:
                seen = os.stat(self._layout.journal(name))
                file = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
                last = known.get(name)
                head = last[1] if last is not None and last[0] == file else self._access.head(name)
            except FileNotFoundError:
                continue
            except Damaged as damage:
                if name not in self._reported:
                    self._reported.add(name)
                    _logger.warning("left out of listings: %s is damaged: %s", self._layout.journal(name), damage)
                continue
            if time.time_ns() - seen.st_mtime_ns > _SETTLED_AFTER:
                self._known[name] = file, head
            yield head

    def _record(self, head: Head, known: dict[str, bool]) -> RunRecord:
        owner, alive = head.state.owner, False
        if head.state.status is Status.RUNNING and owner is not None:
            if owner not in known:
                known[owner] = self._workers.alive(owner)
            alive = known[owner]
        return record_of(head, owner_alive=alive)

    def _ready(self, agents: Collection[str]) -> Iterator[RunRecord]:
        now, names = self._clock.now(), frozenset(agents)
        records = self.records()
        unfinished = {record.run_id for record in records if not record.over}
        for record in records:
            if record.interrupted and record.agent_name in names and record.not_before <= now:
                left_to_parent = record.parent_run_id in unfinished
                if not left_to_parent:
                    yield record

    @staticmethod
    def _fairly(records: Iterator[RunRecord]) -> Sequence[RunRecord]:
        """The oldest of each caller, then the second oldest of each, and so on."""
        turns: dict[str, int] = {}
        in_turn: list[tuple[int, RunRecord]] = []
        for record in records:
            turns[record.caller_id] = turn = turns.get(record.caller_id, 0) + 1
            in_turn.append((turn, record))
        return [record for _, record in sorted(in_turn, key=lambda pair: pair[0])]
