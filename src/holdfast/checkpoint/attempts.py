"""The attempts to execute a run, as its progress holds them.

Every save replaces the progress. So attempts cost no further write, survive a compaction, and are read without the
journal.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.checkpoint.claims import Claim
from holdfast.checkpoint.record import RunStatus

#: The number of attempts that a run keeps.
MAX_ATTEMPTS = 10


class StoredAttempt(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One attempt. Its times are milliseconds since 1970: a redaction of text does not change them."""

    number: int
    worker_id: str
    #: Zero if the worker died before its first save: no other process knows when it began.
    began: int = 0
    #: The last save.
    saved: int = 0
    #: The status in which the attempt left the run. Empty while it works, and if its process died.
    left: str = ""

    @property
    def began_at(self) -> datetime | None:
        return datetime.fromtimestamp(self.began / 1000, UTC) if self.began else None

    @property
    def saved_at(self) -> datetime | None:
        return datetime.fromtimestamp(self.saved / 1000, UTC) if self.saved else None


class AttemptLog(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of a run, as the process that holds its claim writes them."""

    earlier: tuple[StoredAttempt, ...] = ()
    #: `None`: the process does not execute the run.
    present: StoredAttempt | None = None

    @classmethod
    def begin(cls, worker_id: str, now: datetime, earlier: Sequence[StoredAttempt] = ()) -> "AttemptLog":
        """Begin an attempt. Its first save records it.

        If there are too many, one that waited is dropped first: a run may wait a thousand times, and its crashes are
        of interest.
        """
        kept = list(earlier)
        number = kept[-1].number + 1 if kept else 1
        while len(kept) >= MAX_ATTEMPTS:
            kept.remove(next((attempt for attempt in kept if attempt.left == RunStatus.WAITING), kept[0]))
        at = int(now.timestamp() * 1000)
        return cls(earlier=tuple(kept), present=StoredAttempt(number, worker_id, at, at))

    @classmethod
    def resume(cls, claim: Claim, now: datetime, earlier: Sequence[StoredAttempt]) -> "AttemptLog":
        """Begin the next attempt of a run, which `claim` may have taken from a worker that died."""
        last = earlier[-1] if earlier else None
        if claim.taken_from is None:
            if last is not None and not last.left and last.saved == last.began:
                earlier = earlier[:-1]  # a concurrency limit kept the process that made the run from executing it
        elif last is None or last.left or last.worker_id != claim.taken_from:
            died = StoredAttempt(last.number + 1 if last is not None else 1, claim.taken_from)
            earlier = (*earlier, died)
        return cls.begin(claim.worker_id, now, earlier)

    def at_create(self) -> tuple[StoredAttempt, ...]:
        """Return the attempts for the write that creates the run. It may leave the run queued."""
        return () if self.present is None else (self.present,)

    def at_save(self, now: datetime, left: str = "") -> tuple[StoredAttempt, ...]:
        """Return the attempts for a save. `left`: the status in which the present one leaves the run with it."""
        present = self.present
        if present is None:
            return self.earlier
        at = int(now.timestamp() * 1000)
        return (*self.earlier, StoredAttempt(present.number, present.worker_id, present.began, at, left))
