"""The attempts to execute a run: which worker, from when to when, and how each ended."""

from datetime import datetime
from typing import Literal

import msgspec

from holdfast.checkpoint.attempts import StoredAttempt
from holdfast.checkpoint.codec import Progress, decode
from holdfast.checkpoint.errors import RecordDecodeError
from holdfast.checkpoint.record import RunRecord, RunStatus

AttemptEnd = Literal["", "done", "failed", "cancelled", "parked", "waited", "stopped", "died"]

_ENDS: dict[str, AttemptEnd] = {
    RunStatus.DONE: "done",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
    RunStatus.PARKED: "parked",
    RunStatus.WAITING: "waited",
    RunStatus.INTERRUPTED: "stopped",
}


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to execute a run: from the claim of a worker to the end of that claim."""

    #: Counts from 1. A run keeps its newest attempts; those that ended by waiting are dropped first.
    number: int
    worker: str
    #: `None` if the worker died before its first save.
    began_at: datetime | None
    #: When the attempt ended; its last save if it works or died.
    last_at: datetime | None
    #: `done`, `failed`, `cancelled`, `parked`, `waited`; `stopped`: left to another worker; `died`: its process ended,
    #: or another worker took the run from it. Empty: it works.
    ended: AttemptEnd


def read_attempts(record: RunRecord) -> tuple[Attempt, ...]:
    """Return the newest attempts of a run, oldest first. Empty if a version that did not record them executed it."""
    try:
        progress = decode(record.progress, Progress)
    except RecordDecodeError:  # only a newer holdfast can decode it
        return ()
    stored = progress.attempts
    if record.status is RunStatus.QUEUED or (not stored and progress.steps):
        return ()
    attempts = [_describe(attempt) for attempt in stored]
    if record.status is not RunStatus.RUNNING or record.owner is None:
        return tuple(attempts)
    last = stored[-1] if stored else None
    if last is None or last.left or last.worker_id != record.owner:  # the present attempt has not saved yet
        number, at = (1 if last is None else last.number + 1), record.updated_at
        attempts.append(Attempt(number=number, worker=record.owner, began_at=at, last_at=at, ended="died"))
    if record.owner_alive:
        attempts[-1] = msgspec.structs.replace(attempts[-1], ended="")
    return tuple(attempts)


def _describe(attempt: StoredAttempt) -> Attempt:
    """Describe an attempt. One that has not ended has died, unless the record says that it works."""
    return Attempt(
        number=attempt.number,
        worker=attempt.worker_id,
        began_at=attempt.began_at,
        last_at=attempt.saved_at,
        ended=_ENDS.get(attempt.left, "died"),
    )
