"""What a store knows of a run without looking into its journal."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.lifecycle import ENDINGS, OVER, Status


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be put into a store, with its first entries."""

    run_id: str
    agent_name: str
    caller_id: str = ""
    parent_run_id: str | None = None
    #: Encoded meta, small (the prompt is cut short). Opaque to stores; listings hand it out.
    meta: bytes
    progress: bytes
    entries: Sequence[Entry]


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run as listings show it: no transcript, a few hundred bytes."""

    run_id: str
    agent_name: str
    caller_id: str
    parent_run_id: str | None
    status: Status
    created_at: datetime
    updated_at: datetime
    #: The worker that holds, or last held, the claim.
    owner: str | None
    #: Whether that worker is known to be alive. False when the run is not `RUNNING`.
    owner_alive: bool
    #: Of the newest claim; zero if there was none.
    token: int
    #: Claims in a row that ended without a finished step.
    strikes: int
    #: Recovery leaves the run alone until then: the backoff between strikes.
    not_before: datetime
    #: Why it is parked or failed.
    reason: str
    cancel_requested: bool
    #: When a run that is over may be purged.
    expires_at: datetime | None
    #: The number that the next entry has to carry.
    next_seq: int
    #: Bytes of all entry bodies now in the journal.
    size: int
    meta: bytes
    progress: bytes

    @property
    def interrupted(self) -> bool:
        """Not over, not parked, and no live worker drives it. A queued run counts."""
        if self.status is Status.RUNNING:
            return not self.owner_alive
        return self.status in (Status.QUEUED, Status.INTERRUPTED)

    @property
    def over(self) -> bool:
        return self.status in OVER


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its journal, entries in order."""

    record: RunRecord
    entries: Sequence[Entry]


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs a listing gives. Fields that are set all have to fit."""

    #: Only runs for which `RunRecord.interrupted` holds.
    interrupted: bool = False
    statuses: frozenset[Status] | None = None
    agent_name: str | None = None
    caller_id: str | None = None
    parent_run_id: str | None = None


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a claim ends while the run stays in the store."""

    status: Status
    reason: str = ""
    #: Last entries, written in the same transaction.
    entries: Sequence[Entry] = ()
    #: Replaces the run's progress unless `None`.
    progress: bytes | None = None
    #: The run's strikes from now on.
    strikes: int = 0
    #: Recovery leaves the run alone for so long.
    delay: timedelta = timedelta(0)
    #: May be purged after so long. `None`: stays until somebody removes it.
    keep: timedelta | None = None

    def __post_init__(self) -> None:
        if self.status not in ENDINGS:
            raise ValueError(f"a claim cannot leave a run {self.status}: use one of {sorted(ENDINGS)}")
