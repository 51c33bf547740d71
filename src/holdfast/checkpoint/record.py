"""Runs as a store keeps them: new runs, records, filters, pages, releases and receipts of mail.

A test compares the diagram in docs/architecture.md with `TRANSITIONS`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.workers import Claim
from holdfast.core.run.info import RunIndex, RunInfo
from holdfast.core.run.mail import Mail as Mail
from holdfast.core.run.status import CLAIMABLE_STATUSES as CLAIMABLE_STATUSES
from holdfast.core.run.status import RELEASE_STATUSES as RELEASE_STATUSES
from holdfast.core.run.status import TERMINAL_STATUSES as TERMINAL_STATUSES
from holdfast.core.run.status import RunStatus as RunStatus


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a store to posted mail."""

    #: Whether this call added the mail. Otherwise the run had mail with this id before.
    is_new: bool
    #: The mail that the store has under this id, from the first call that posted it.
    mail: Mail
    #: Whether the run has consumed it.
    consumed: bool = False


class NewRun(RunIndex, frozen=True, kw_only=True):
    """A run to be put into a store, with its first entries."""

    #: Workers leave the run alone until then. `None`: it is due at once.
    not_before: datetime | None = None
    #: The encoded `RunInfo.summarize()`. Opaque to stores; listings hand it out.
    info: bytes
    progress: bytes
    entries: Sequence[Entry]

    @classmethod
    def create(
        cls, info: RunInfo, progress: bytes, entries: Sequence[Entry], not_before: datetime | None = None
    ) -> "NewRun":
        """Return the run that `info` identifies."""
        index = {name: getattr(info, name) for name in RunIndex.__struct_fields__}
        index["labels"] = info.indexed_labels
        summary = msgspec.json.encode(info.summarize())
        return cls(**index, info=summary, progress=progress, entries=entries, not_before=not_before)


class RunRecord(RunIndex, frozen=True, kw_only=True):
    """A run as listings show it: no transcript, a few hundred bytes."""

    status: RunStatus
    created_at: datetime
    updated_at: datetime
    #: The worker that holds, or last held, the claim.
    owner: str | None
    #: Whether that worker is known to be alive. False when the run is not `RUNNING`.
    owner_alive: bool
    #: The fencing token of the newest claim; zero if there was none.
    token: int
    #: Claims in a row that ended without a finished step.
    strikes: int
    #: Recovery leaves the run alone until then: the backoff between strikes.
    not_before: datetime
    #: When a waiting run is resumed without mail; `None`: only mail resumes it, or it is not waiting.
    wake_at: datetime | None = None
    #: The topics of mail that resume a waiting run.
    wake_on: Sequence[str] = ()
    #: Why it is parked or failed, or what it waits for.
    reason: str
    cancel_requested: bool
    #: When a terminal run may be purged.
    expires_at: datetime | None
    #: The number that the next entry has to carry.
    next_seq: int
    #: Bytes of all entry bodies now in the journal.
    size: int
    #: As `NewRun` has them.
    info: bytes
    progress: bytes

    @property
    def current_status(self) -> RunStatus:
        """The status. A running run whose owner is dead is interrupted: no process could write that down."""
        return RunStatus.INTERRUPTED if self.status is RunStatus.RUNNING and not self.owner_alive else self.status

    @property
    def is_interrupted(self) -> bool:
        """Neither terminal nor parked, and without a live owner. A queued run counts."""
        return self.current_status in (RunStatus.QUEUED, RunStatus.INTERRUPTED)

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL_STATUSES


def make_damaged_record(index: RunIndex, created_at: datetime, error: Exception) -> RunRecord:
    """Return what a listing shows of a run whose row is not what was written. Loading it raises `RunDamaged`."""
    known = {name: getattr(index, name) for name in RunIndex.__struct_fields__}
    return RunRecord(
        **known,
        status=RunStatus.PARKED,
        created_at=created_at,
        updated_at=created_at,
        owner=None,
        owner_alive=False,
        token=0,
        strikes=0,
        not_before=created_at,
        reason=f"damaged: its record is not what was written ({error})",
        cancel_requested=False,
        expires_at=None,
        next_seq=0,
        size=0,
        info=b"",
        progress=b"",
    )


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its journal, entries in order, and its mail."""

    record: RunRecord
    entries: Sequence[Entry]
    #: Unread mail, in the order in which it was posted.
    mail: Sequence[Mail] = ()


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs a listing returns. A run has to match every field that is set."""

    #: Only runs for which `RunRecord.is_interrupted` holds.
    interrupted: bool = False
    statuses: frozenset[RunStatus] | None = None
    agent_name: str | None = None
    caller_id: str | None = None
    parent_run_id: str | None = None
    #: Empty: only runs without a tenant.
    tenant: str | None = None
    #: The run has all of these labels.
    labels: Mapping[str, str] = {}
    #: Created at this time or later.
    created_after: datetime | None = None
    #: Created before this time.
    created_before: datetime | None = None

    def matches(self, record: RunRecord) -> bool:
        """Return whether the record matches every field that is set."""
        return (
            (record.is_interrupted or not self.interrupted)
            and (self.statuses is None or record.status in self.statuses)
            and self.agent_name in (None, record.agent_name)
            and self.caller_id in (None, record.caller_id)
            and self.parent_run_id in (None, record.parent_run_id)
            and self.tenant in (None, record.tenant)
            and self.labels.items() <= record.labels.items()
            and (self.created_after is None or record.created_at >= self.created_after)
            and (self.created_before is None or record.created_at < self.created_before)
        )


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a listing."""

    records: Sequence[RunRecord]
    #: Pass this to get the next page. `None`: there are no further runs.
    cursor: str | None = None


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """What others want of the runs that a worker holds, as run ids."""

    #: Runs that have unread mail, those that were asked to cancel, and those whose drafts another process watches.
    mail: Sequence[str] = ()
    cancels: Sequence[str] = ()
    drafts: Sequence[str] = ()


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Mail for another run that the end of a claim posts."""

    run_id: str
    mail: Mail


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """How a claim ends while the run stays in the store."""

    status: RunStatus
    #: Leave the run parked although its cancel was requested: it could not be cancelled without a person.
    despite_cancel: bool = False
    reason: str = ""
    #: Last entries, written in the same transaction.
    entries: Sequence[Entry] = ()
    #: Replaces the run's progress unless `None`.
    progress: bytes | None = None
    #: The run's strikes from now on.
    strikes: int = 0
    #: Recovery does not take the run before this time has passed.
    delay: timedelta = timedelta(0)
    #: The run may be purged after this time. `None`: it stays until it is removed.
    retention: timedelta | None = None
    #: Ids of the mail that the entries use, as for `Append`.
    consumed: Sequence[str] = ()
    #: A waiting run is resumed at this time. `None`: only mail resumes it.
    wake_at: datetime | None = None
    #: The release is refused with `UnreadMail` while the run has unread mail of these topics, not counting `consumed`.
    #: Later mail of these topics resumes a waiting run.
    wake_on: Sequence[str] = ()
    #: Posted in the same transaction, as `RunStore.post` does; not if that run is gone or has ended.
    notify: Notice | None = None

    def __post_init__(self) -> None:
        if self.status not in RELEASE_STATUSES:
            raise ValueError(f"a claim cannot leave a run {self.status}: use one of {sorted(RELEASE_STATUSES)}")
        if self.wake_at is not None and self.status is not RunStatus.WAITING:
            raise ValueError(f"only a waiting run has a wake_at, this one is left {self.status}")

    @property
    def yields_to_cancel(self) -> bool:
        """Whether the run is interrupted instead if its cancel was requested."""
        return self.status is RunStatus.WAITING or (self.status is RunStatus.PARKED and not self.despite_cancel)


def restore_previous(
    claim: Claim,
    record: RunRecord | None = None,
    *,
    now: datetime | None = None,
    reason: str = "",
    delay: timedelta = timedelta(0),
) -> Release:
    """Return the release that leaves a run as it was before `claim`, without a strike.

    Args:
        record: the run before the claim. Without it the run was interrupted.
        now: the time of the release, if `record` may have an expiry.
    """
    strikes = max(0, claim.strikes - 1)
    if record is None or record.status not in RELEASE_STATUSES:
        reason = reason or (record.reason if record is not None else "")
        return Release(status=RunStatus.INTERRUPTED, reason=reason, strikes=strikes, delay=delay)
    retention = None
    if record.expires_at is not None and now is not None:
        retention = max(record.expires_at - now, timedelta(0))
    return Release(
        status=record.status,
        despite_cancel=record.cancel_requested,
        reason=record.reason,
        strikes=strikes,
        retention=retention,
        wake_at=record.wake_at,
        wake_on=record.wake_on,
    )
