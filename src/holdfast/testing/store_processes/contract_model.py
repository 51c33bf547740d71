"""A model of the contract in lists and dictionaries, for comparison with a store."""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from holdfast.checkpoint.errors import (
    ClaimLost,
    RunBusy,
    RunEnded,
    RunExists,
    RunNotClaimable,
    RunNotFound,
    StoreError,
    UnreadMail,
)
from holdfast.checkpoint.journal import Append, Entry
from holdfast.checkpoint.record import TERMINAL_STATUSES, Mail, NewRun, Release, RunRecord, RunStatus
from holdfast.checkpoint.workers import Claim, backoff
from holdfast.clock import SYSTEM_CLOCK

#: The year of a `wake_at` that has passed.
PAST_YEAR = 2000


@dataclass
class ModelRun:
    """A run in the model."""

    new: NewRun
    entries: list[Entry]
    next_seq: int
    progress: bytes
    #: The earliest and the latest end of its backoff, on the monotonic clock.
    ready_between: tuple[float, float]
    status: RunStatus = RunStatus.QUEUED
    owner: str | None = None
    #: `None`: claimed by a call whose result is unknown. The next comparison reads it from the store.
    token: int | None = 0
    strikes: int = 0
    reason: str = ""
    cancel_requested: bool = False
    retention: timedelta | None = None
    wake_on: Sequence[str] = ()
    #: Long past or far ahead, so that the model needs no clock of the store.
    wake_at: datetime | None = None
    #: By id, in the order of posting.
    unread: dict[str, Mail] = field(default_factory=dict)
    consumed: set[str] = field(default_factory=set)

    def check_consumed(self, mail_ids: Sequence[str]) -> None:
        if not self.unread.keys() >= set(mail_ids):
            raise StoreError("not unread mail")

    def check_unread(self, topics: Sequence[str], consumed: Sequence[str]) -> None:
        if any(self.unread[mail_id].topic in topics for mail_id in self.unread.keys() - set(consumed)):
            raise UnreadMail(self.new.run_id)

    def consume(self, mail_ids: Sequence[str]) -> None:
        self.consumed.update(mail_ids)
        for mail_id in mail_ids:
            del self.unread[mail_id]


@dataclass
class Model:
    """Each method has the effect, and raises the errors, that the contract demands of the store's method."""

    runs: dict[str, ModelRun] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    #: The largest token so far.
    token: int = 0

    def is_executing(self, run: ModelRun) -> bool:
        return run.status is RunStatus.RUNNING and run.owner in self.alive

    def next_seq(self, run_id: str) -> int:
        return self.runs[run_id].next_seq if run_id in self.runs else 0

    def has_children(self, run_id: str) -> bool:
        return any(run.new.parent_run_id == run_id for run in self.runs.values())

    def is_valid(self, claim: Claim) -> bool:
        """Return whether the claim is the newest and its worker is alive and executes the run."""
        return self._is_newest(claim) and self.is_executing(self.runs[claim.run_id])

    def is_released(self, claim: Claim) -> bool:
        return self._is_newest(claim) and self.runs[claim.run_id].status is not RunStatus.RUNNING

    def is_abandoned(self, claim: Claim) -> bool:
        """Return whether the claim is the newest and its worker is dead."""
        return self._is_newest(claim) and not self.is_valid(claim) and not self.is_released(claim)

    def _is_newest(self, claim: Claim) -> bool:
        return claim.run_id in self.runs and self.runs[claim.run_id].token == claim.token

    def is_interrupted(self, run: ModelRun) -> bool:
        unfinished = run.status in (RunStatus.QUEUED, RunStatus.INTERRUPTED, RunStatus.RUNNING)
        return unfinished and not self.is_executing(run)

    def is_awake(self, run: ModelRun) -> bool:
        """Return whether the run waits until a time that has passed."""
        return run.status is RunStatus.WAITING and run.wake_at is not None and run.wake_at.year == PAST_YEAR

    def create(self, began: float, run: NewRun, worker_id: str | None) -> None:
        if run.run_id in self.runs:
            raise RunExists(run.run_id)
        self.runs[run.run_id] = ModelRun(
            new=run,
            entries=list(run.entries),
            next_seq=len(run.entries),
            progress=run.progress,
            ready_between=(began, SYSTEM_CLOCK.monotonic()),
        )
        if worker_id is not None:
            self.assign(began, run.run_id, worker_id)

    def assign(self, began: float, run_id: str, worker_id: str) -> None:
        """Give the run to the worker, under a token that the model does not know yet."""
        run = self.runs[run_id]
        run.status, run.owner, run.token = RunStatus.RUNNING, worker_id, None
        run.wake_on, run.wake_at = (), None
        run.strikes += 1
        wait = backoff(run.strikes).total_seconds()
        run.ready_between = (began + wait, SYSTEM_CLOCK.monotonic() + wait)

    def find_claimed(self, claim: Claim) -> ModelRun:
        run = self.runs.get(claim.run_id)
        if run is None or run.token != claim.token or run.status is not RunStatus.RUNNING:
            raise ClaimLost(claim.run_id, claim.token, None)
        return run

    def append(self, claim: Claim, write: Append) -> None:
        run = self.find_claimed(claim)
        run.check_consumed(write.consumed)
        run.check_unread(write.unless_mail, write.consumed)
        run.consume(write.consumed)
        run.entries = [*([] if write.rewrite else run.entries), *write.entries]
        run.next_seq += len(write.entries)
        run.progress = write.progress
        if write.step_finished:
            run.strikes = 0
            now = SYSTEM_CLOCK.monotonic()
            run.ready_between = (min(run.ready_between[0], now), min(run.ready_between[1], now))

    def release(self, began: float, claim: Claim, release: Release) -> None:
        run = self.find_claimed(claim)
        run.check_consumed(release.consumed)
        run.check_unread(release.wake_on, release.consumed)
        if release.status is RunStatus.DONE and run.cancel_requested:
            raise UnreadMail(claim.run_id)
        run.consume(release.consumed)
        status, wait = release.status, release.delay.total_seconds()
        if release.yields_to_cancel and run.cancel_requested:
            status, wait = RunStatus.INTERRUPTED, 0.0
        elif status is RunStatus.WAITING:
            run.wake_on, run.wake_at = release.wake_on, release.wake_at
        run.entries = [*run.entries, *release.entries]
        run.next_seq += len(release.entries)
        run.progress = run.progress if release.progress is None else release.progress
        run.status, run.reason, run.strikes, run.retention = (
            status,
            release.reason,
            release.strikes,
            release.retention,
        )
        run.ready_between = (began + wait, SYSTEM_CLOCK.monotonic() + wait)
        if release.status in TERMINAL_STATUSES:
            run.cancel_requested = False
        if (notice := release.notify) is not None:
            with suppress(RunNotFound, RunEnded):
                self.post(began, notice.run_id, notice.mail)

    def remove(self, run_id: str, claim: Claim | None) -> None:
        run = self.runs.get(run_id)
        if claim is not None and (run is None or run.token != claim.token):
            raise ClaimLost(run_id, claim.token, None)
        if run is not None:
            if claim is None and self.is_executing(run):
                raise RunBusy(run_id, run.owner or "")
            self.drop(run_id)

    def drop(self, run_id: str) -> None:
        self.runs.pop(run_id, None)
        for child in [name for name, run in self.runs.items() if run.new.parent_run_id == run_id]:
            self.drop(child)

    def claim(self, began: float, run_id: str, worker_id: str, statuses: Collection[RunStatus], steal: bool) -> None:
        run = self.runs.get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        if run.status not in statuses and not (self.is_awake(run) and RunStatus.INTERRUPTED in statuses):
            raise RunNotClaimable(run_id, run.status)
        if self.is_executing(run) and not steal:
            raise RunBusy(run_id, run.owner or "")
        self.assign(began, run_id, worker_id)

    def get_claim_order(self, agents: Collection[str], now: float) -> dict[str, int]:
        """Return the runs that `claim_next` may claim, each with its position among the runs of its caller."""
        turns: dict[str, int] = {}
        callers: dict[str, int] = {}
        for run_id, run in self.runs.items():
            parent = self.runs.get(run.new.parent_run_id or "")
            waits_for_parent = parent is not None and not run.new.background and parent.status not in TERMINAL_STATUSES
            if (
                (self.is_interrupted(run) or self.is_awake(run))
                and run.new.agent_name in agents
                and not waits_for_parent
                and run.ready_between[1] <= now
            ):
                turns[run_id] = callers[run.new.caller_id] = callers.get(run.new.caller_id, 0) + 1
        return turns

    def is_backoff_ambiguous(self, since: float, until: float) -> bool:
        """Return whether a backoff may have ended in between, so that the model cannot tell which runs were due."""
        return any(since < run.ready_between[1] and run.ready_between[0] <= until for run in self.runs.values())

    def request_cancel(self, run_id: str) -> None:
        if run_id not in self.runs:
            raise RunNotFound(run_id)
        self.runs[run_id].cancel_requested = self.runs[run_id].status not in TERMINAL_STATUSES

    def pending_cancels(self, worker_id: str) -> list[str]:
        return sorted(
            run_id
            for run_id, run in self.runs.items()
            if run.cancel_requested and run.status is RunStatus.RUNNING and run.owner == worker_id
        )

    def post(self, began: float, run_id: str, mail: Mail) -> None:
        run = self.runs.get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        if mail.mail_id in run.unread or mail.mail_id in run.consumed:
            return
        if run.status in TERMINAL_STATUSES:
            raise RunEnded(run_id, run.status)
        run.unread[mail.mail_id] = mail
        if run.status is RunStatus.WAITING and mail.topic in run.wake_on:
            run.status, run.reason, run.wake_on, run.wake_at = RunStatus.INTERRUPTED, "", (), None
            run.ready_between = (began, SYSTEM_CLOCK.monotonic())

    def pending_mail(self, worker_id: str) -> list[str]:
        held = (RunStatus.RUNNING, worker_id)
        return sorted(run_id for run_id, run in self.runs.items() if run.unread and (run.status, run.owner) == held)

    def purge(self) -> None:
        for run_id, run in list(self.runs.items()):
            parent = self.runs.get(run.new.parent_run_id or "")
            needed_by_parent = parent is not None and parent.status is not RunStatus.DONE
            if (
                run.status in TERMINAL_STATUSES
                and run.retention is not None
                and run.retention <= timedelta(0)
                and not needed_by_parent
            ):
                self.drop(run_id)

    def assert_matches(self, records: Iterable[RunRecord]) -> None:
        """Compare with all records of the store, and read the tokens that are unknown."""
        listed = {record.run_id: record for record in records}
        assert list(listed) == list(self.runs), "the runs, oldest first"
        for run_id, run in self.runs.items():
            record = listed[run_id]
            if run.token is None:
                assert record.token > self.token, "tokens only grow"
                run.token = record.token
            ownership = (record.status, record.owner, record.owner_alive, record.token, record.strikes)
            assert ownership == (run.status, run.owner, self.is_executing(run), run.token, run.strikes)
            identity = (record.agent_name, record.caller_id, record.parent_run_id, record.info)
            assert identity == (run.new.agent_name, run.new.caller_id, run.new.parent_run_id, run.new.info)
            size = sum(len(entry.body) for entry in run.entries)
            assert (record.progress, record.next_seq, record.size) == (run.progress, run.next_seq, size)
            assert (list(record.wake_on), record.wake_at) == (list(run.wake_on), run.wake_at)
            assert record.cancel_requested == run.cancel_requested
            if run.status is not RunStatus.RUNNING:
                assert (record.reason, record.expires_at is None) == (run.reason, run.retention is None)
        self.token = max([self.token, *(record.token for record in listed.values())])
