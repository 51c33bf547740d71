"""Looking through all runs of the folder: their heads only. Blocking; called from the store's threads."""

import itertools
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import RunFilter, RunRecord
from holdfast.checkpoint.stores.file.access import Access
from holdfast.checkpoint.stores.file.disk import of_one_file, store_error
from holdfast.checkpoint.stores.file.layout import Layout
from holdfast.checkpoint.stores.file.names import file_name
from holdfast.checkpoint.stores.file.reading import Damaged, Head
from holdfast.checkpoint.stores.file.runs import Runs
from holdfast.checkpoint.stores.file.transitions import fits, record_of
from holdfast.checkpoint.stores.file.workers import Workers
from holdfast.clock import Clock

T = TypeVar("T")

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
        found, _ = self._look()
        return found if wanted is None else [record for record in found if fits(record, wanted)]

    def record(self, head: Head) -> RunRecord:
        return self._record(head, {})

    def claim_next(self, worker_id: str, agents: Collection[str], limit: int) -> Sequence[Claim]:
        promised = self._runs.keep_promises()
        if limit <= 0 or not agents:
            return ()
        ready = self._fairly(record for record in self._ready(agents) if file_name(record.run_id) not in promised)
        claims = self._each(ready, lambda record: self._runs.claim_if_waiting(record.run_id, worker_id))
        return tuple(itertools.islice(claims, limit))

    def cancels(self, worker_id: str) -> Sequence[str]:
        asked: list[str] = []
        for name in os.listdir(self._layout.cancels):
            try:
                head = self._access.head(name)
            except (FileNotFoundError, Damaged):
                continue
            except OSError as error:
                self._pass_over(name, error)
                continue
            state = head.state
            if state.cancel_requested and state.status is Status.RUNNING and state.owner == worker_id:
                asked.append(head.origin.run_id)
        return tuple(asked)

    def purge(self, limit: int) -> int:
        self._runs.keep_promises()
        now, (records, unread) = self._clock.now(), self._look()
        may_go_on = {record.run_id for record in records if record.status is not Status.DONE}
        expired = [
            record
            for record in records
            if record.over
            and record.expires_at is not None
            and record.expires_at <= now
            # A parent that may go on has to meet its child again.
            and not _is_child_of(record, may_go_on, unread)
        ]
        return sum(self._each(expired[: max(0, limit)], lambda record: self._runs.remove_expired(record.run_id)))

    def _each(self, records: Iterable[RunRecord], change: Callable[[RunRecord], T | None]) -> Iterator[T]:
        """What came of changing one after the other. A run that cannot be used keeps no other from its turn.

        What was changed counts: it raises only before the first of them.
        """
        changed = False
        for record in records:
            try:
                result = change(record)
            except (OSError, StoreError) as error:
                if isinstance(error, OSError) and of_one_file(error):
                    self._pass_over(file_name(record.run_id), error)
                    continue
                if changed:
                    return
                raise
            if result:
                changed = True
                yield result

    def _look(self) -> tuple[Sequence[RunRecord], Collection[str]]:
        """The records of all runs, oldest first, and the names of those that could not be read now."""
        self._access.take_back_refused()
        known: dict[str, bool] = {}
        unread: set[str] = set()
        records = [self._record(head, known) for head in self._heads(unread)]
        return sorted(records, key=lambda record: (record.created_at, record.run_id)), unread

    def _heads(self, unread: set[str]) -> Iterator[Head]:
        """The head of every run but the `unread`. What did not change since the last look is not read again."""
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
                self._report(name, "left out of listings: %s is damaged: %s", self._layout.journal(name), damage)
                continue
            except OSError as error:
                self._pass_over(name, error)
                unread.add(name)
                continue
            if time.time_ns() - seen.st_mtime_ns > _SETTLED_AFTER:
                self._known[name] = file, head
            yield head

    def _pass_over(self, name: str, error: OSError) -> None:
        """Raises:
        OSError: it is not of this run alone.
        """
        if not of_one_file(error):
            raise error
        self._report(name, "run passed over: %s", store_error(error, Path(self._layout.journal(name))))

    def _report(self, name: str, text: str, *words: object) -> None:
        if name not in self._reported:
            self._reported.add(name)
            _logger.warning(text, *words)

    def _record(self, head: Head, known: dict[str, bool]) -> RunRecord:
        owner, alive = head.state.owner, False
        if head.state.status is Status.RUNNING and owner is not None:
            if owner not in known:
                known[owner] = self._workers.alive(owner)
            alive = known[owner]
        return record_of(head, owner_alive=alive)

    def _ready(self, agents: Collection[str]) -> Iterator[RunRecord]:
        now, names = self._clock.now(), frozenset(agents)
        records, unread = self._look()
        unfinished = {record.run_id for record in records if not record.over}
        for record in records:
            if record.interrupted and record.agent_name in names and record.not_before <= now:
                left_to_parent = _is_child_of(record, unfinished, unread)
                if not left_to_parent:
                    yield record

    @staticmethod
    def _fairly(records: Iterable[RunRecord]) -> Sequence[RunRecord]:
        """The oldest of each caller, then the second oldest of each, and so on."""
        turns: dict[str, int] = {}
        in_turn: list[tuple[int, RunRecord]] = []
        for record in records:
            turns[record.caller_id] = turn = turns.get(record.caller_id, 0) + 1
            in_turn.append((turn, record))
        return [record for _, record in sorted(in_turn, key=lambda pair: pair[0])]


def _is_child_of(record: RunRecord, parents: Collection[str], unread: Collection[str]) -> bool:
    """Whether it was started by one of these, or by one that could not be read and may be like them."""
    parent = record.parent_run_id
    return parent is not None and (parent in parents or (bool(unread) and file_name(parent) in unread))
