"""The state of one run in a memory store, and the limits of the store."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from holdfast.checkpoint.errors import InvalidCursor, RunEnded, StoreError, UnreadMail
from holdfast.checkpoint.journal import Append, Entry
from holdfast.checkpoint.record import TERMINAL_STATUSES, Mail, NewRun, Receipt, Release, RunRecord, RunStatus
from holdfast.checkpoint.workers import Claim, LimitName, LimitUsage, Slots, backoff, list_limit_names, make_limit
from holdfast.config import ConcurrencyLimit, LimitKind
from holdfast.core.run.info import RunIndex

#: More digits than any number of runs has.
_CURSOR_DIGITS = 18


@dataclass(slots=True)
class MemoryRun:
    """The mutable state of a run. Never returned to callers."""

    #: Without its entries, which are in `journal`.
    new: NewRun
    created_at: datetime
    updated_at: datetime
    not_before: datetime
    progress: bytes
    status: RunStatus = RunStatus.QUEUED
    owner: str | None = None
    token: int = 0
    strikes: int = 0
    wake_at: datetime | None = None
    wake_on: tuple[str, ...] = ()
    reason: str = ""
    cancel_requested: bool = False
    expires_at: datetime | None = None
    next_seq: int = 0
    size: int = 0
    journal: list[Entry] = field(default_factory=list)
    #: By id, in the order of arrival; consumed mail without its body.
    mail: dict[str, Mail] = field(default_factory=dict)
    #: Ids, in the order of arrival.
    unread: dict[str, None] = field(default_factory=dict)
    #: Counts up over the store, in the order of creation: the cursor of listings.
    number: int = 0

    @property
    def limit_names(self) -> tuple[LimitName, ...]:
        new = self.new
        return list_limit_names(new.agent_name, new.concurrency_key, shares_parent_slot=new.shares_parent_slot)

    def copy(self) -> "MemoryRun":
        """Return a copy that later changes of this run do not affect."""
        return replace(self, journal=list(self.journal), mail=dict(self.mail), unread=dict(self.unread))

    def extend(self, entries: Sequence[Entry]) -> None:
        """Add entries to the journal.

        Raises:
            StoreError: they do not continue it. Nothing was changed.
        """
        self._check_sequence(entries)
        self.journal.extend(entries)
        self.next_seq += len(entries)
        self.size += sum(len(entry.body) for entry in entries)

    def apply_append(self, write: Append, now: datetime) -> None:
        """Make the whole write.

        Raises:
            StoreError: it does not fit the journal or the mail. Nothing was changed.
            UnreadMail: there is unread mail of a topic in `unless_mail`. Nothing was changed.
        """
        self._check_sequence(write.entries)
        self._check_mail(write.consumed, write.unless_mail)
        self.consume(write.consumed)
        if write.rewrite:
            self.journal.clear()
            self.size = 0
        self.extend(write.entries)
        self.progress, self.updated_at = write.progress, now
        if write.step_finished:
            self.strikes = 0
            self.not_before = min(self.not_before, now)

    def apply_release(self, release: Release, now: datetime) -> None:
        """Leave the run as `release` says.

        Raises:
            StoreError: it does not fit the journal or the mail. Nothing was changed.
            UnreadMail: there is unread mail of a topic in `wake_on`, or a cancel was requested of a run that would be
                done. Nothing was changed.
        """
        self._check_sequence(release.entries)
        self._check_mail(release.consumed, release.wake_on)
        if release.status is RunStatus.DONE and self.cancel_requested:
            raise UnreadMail(self.new.run_id)
        self.consume(release.consumed)
        self.extend(release.entries)
        if release.progress is not None:
            self.progress = release.progress
        self.status, self.reason, self.strikes = release.status, release.reason, release.strikes
        self.not_before = now + release.delay
        if release.yields_to_cancel and self.cancel_requested:
            self.status, self.not_before = RunStatus.INTERRUPTED, now
        elif release.status is RunStatus.WAITING:
            self.wake_at, self.wake_on = release.wake_at, tuple(release.wake_on)
        self.expires_at = None if release.retention is None else now + release.retention
        self.updated_at = now
        if release.status in TERMINAL_STATUSES:
            self.cancel_requested = False

    def is_awake(self, now: datetime) -> bool:
        """Whether it waits for a time that has come."""
        return self.status is RunStatus.WAITING and self.wake_at is not None and self.wake_at <= now

    def take(self, worker_id: str, token: int, now: datetime) -> Claim:
        """Give the run to the worker, under this token."""
        taken_from = self.owner if self.status is RunStatus.RUNNING else None
        self.status, self.owner, self.token = RunStatus.RUNNING, worker_id, token
        self.strikes += 1
        self.not_before = now + backoff(self.strikes)
        self.reason, self.expires_at, self.updated_at = "", None, now
        self.wake_at, self.wake_on = None, ()
        return Claim(
            run_id=self.new.run_id, worker_id=worker_id, token=token, strikes=self.strikes, taken_from=taken_from
        )

    def post(self, mail: Mail, now: datetime) -> Receipt:
        """Add mail, unless there was mail with its id before. Wake the run if it waits for the topic.

        Raises:
            RunEnded: the run is terminal. Nothing was changed.
        """
        if (known := self.mail.get(mail.mail_id)) is not None:
            return Receipt(is_new=False, mail=known, consumed=mail.mail_id not in self.unread)
        if self.status in TERMINAL_STATUSES:
            raise RunEnded(self.new.run_id, self.status)
        posted = self.mail[mail.mail_id] = msgspec.structs.replace(mail, posted_at=now)
        self.unread[mail.mail_id] = None
        if self.status is RunStatus.WAITING and mail.topic in self.wake_on:
            self.status, self.reason, self.wake_at, self.wake_on = RunStatus.INTERRUPTED, "", None, ()
            self.not_before = self.updated_at = now
        return Receipt(is_new=True, mail=posted)

    def consume(self, mail_ids: Sequence[str]) -> None:
        """Mark unread mail as consumed.

        Raises:
            StoreError: one of the ids is not unread mail. Nothing was changed.
        """
        self._check_mail(mail_ids)
        for mail_id in mail_ids:
            self.unread.pop(mail_id, None)
            self.mail[mail_id] = msgspec.structs.replace(self.mail[mail_id], body=b"")

    def get_unread_mail(self) -> tuple[Mail, ...]:
        return tuple(self.mail[mail_id] for mail_id in self.unread)

    def _check_sequence(self, entries: Sequence[Entry]) -> None:
        for seq, entry in enumerate(entries, self.next_seq):
            if entry.seq != seq:
                raise StoreError(
                    f"run {self.new.run_id}: entry {entry.seq} came where {seq} is due; nothing was written"
                )

    def _check_mail(self, consumed: Sequence[str], topics: Sequence[str] = ()) -> None:
        """Check that `consumed` is unread, and that no other mail of the topics is."""
        if unknown := set(consumed) - self.unread.keys():
            raise StoreError(
                f"run {self.new.run_id}: {sorted(unknown)} is not among its unread mail; nothing was written"
            )
        if topics and any(self.mail[mail_id].topic in topics for mail_id in self.unread.keys() - set(consumed)):
            raise UnreadMail(self.new.run_id)

    def make_record(self, *, owner_alive: bool) -> RunRecord:
        index = {name: getattr(self.new, name) for name in RunIndex.__struct_fields__}
        return RunRecord(
            **index | {"labels": dict(self.new.labels)},
            status=self.status,
            created_at=self.created_at,
            updated_at=self.updated_at,
            owner=self.owner,
            owner_alive=owner_alive,
            token=self.token,
            strikes=self.strikes,
            not_before=self.not_before,
            wake_at=self.wake_at,
            wake_on=self.wake_on,
            reason=self.reason,
            cancel_requested=self.cancel_requested,
            expires_at=self.expires_at,
            next_seq=self.next_seq,
            size=self.size,
            info=self.new.info,
            progress=self.progress,
        )


#: A run that may be claimed, and the names of its limits.
_Candidate = tuple[Sequence[LimitName], MemoryRun]


def group_by_caller(runs: Iterable[MemoryRun]) -> Iterator[Iterable[list[_Candidate]]]:
    """Iterate over the priorities, highest first: the runs of each caller, oldest first."""
    queues: dict[int, dict[str, list[_Candidate]]] = {}
    for run in runs:
        callers = queues.setdefault(run.new.priority, {})
        callers.setdefault(run.new.caller_id, []).append((run.limit_names, run))
    return (queues[priority].values() for priority in sorted(queues, reverse=True))


class MemoryLimits:
    """Keeps the limits by agent and by key."""

    def __init__(self) -> None:
        self._limits: dict[LimitName, ConcurrencyLimit] = {}
        #: Those of them that are defaults.
        self._defaults: set[LimitName] = set()

    def set(self, kind: LimitKind, name: str, max_runs: int | None, *, default: bool) -> bool:
        """Set or remove a limit. Returns whether there was one."""
        key = kind, name
        existed = key in self._limits
        if default and existed and key not in self._defaults:
            return True
        self._defaults.discard(key)
        if max_runs is None:
            self._limits.pop(key, None)
        else:
            self._limits[key] = make_limit(kind, name, max_runs)
            if default:
                self._defaults.add(key)
        return existed

    def find_slots(self, running: Iterable[MemoryRun]) -> Slots:
        """Return the slots, given the runs that have a live owner."""
        caps = {name: limit.max_runs for name, limit in self._limits.items()}
        return Slots(caps, (run.limit_names for run in running) if caps else ())

    def list_usage(self, running: Iterable[MemoryRun]) -> tuple[LimitUsage, ...]:
        slots = self.find_slots(running)
        return tuple(
            LimitUsage(limit=limit, running=slots.used[name], is_default=name in self._defaults)
            for name, limit in sorted(self._limits.items())
        )


def parse_cursor(cursor: str) -> int:
    """Return the place that a cursor of a listing names.

    Raises:
        InvalidCursor: it is not one.
    """
    if not cursor.isdecimal() or len(cursor) > _CURSOR_DIGITS:
        raise InvalidCursor(cursor)
    return int(cursor)
