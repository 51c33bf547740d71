"""RunStatus, TRANSITIONS, AttemptEnd, classify_error: where a run stands, and how an attempt ends.

A test compares the diagram in docs/architecture.md with `TRANSITIONS`.
"""

import asyncio
from enum import StrEnum

from holdfast.core.errors import RunCancelled, RunInterrupted, RunLost, RunParked, Shutdown
from holdfast.core.run.waiting import RunWaiting


class RunStatus(StrEnum):
    """Where a stored run stands.

    `RUNNING` with a dead owner counts as interrupted wherever runs are listed or claimed. `WAITING` whose `wake_at` has
    passed counts as interrupted wherever runs are claimed.
    """

    QUEUED = "queued"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    #: For a time or for mail. Resumes by itself; holds no claim.
    WAITING = "waiting"
    PARKED = "parked"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: Not stored: the run and all its entries are gone.
    REMOVED = "removed"


#: The statuses that `claim` takes by default. A running run is taken only when its owner is dead. A waiting run counts
#: as interrupted once its `wake_at` has passed.
CLAIMABLE_STATUSES = frozenset({RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.INTERRUPTED})

#: Ends of a run. Only a person's claim resumes it.
TERMINAL_STATUSES = frozenset({RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED})

#: (from, what happens, to). `REMOVED` as a start means: no such run yet.
TRANSITIONS = frozenset(
    {
        (RunStatus.REMOVED, "submit", RunStatus.QUEUED),
        (RunStatus.REMOVED, "begin", RunStatus.RUNNING),
        (RunStatus.QUEUED, "claim", RunStatus.RUNNING),
        (RunStatus.QUEUED, "remove", RunStatus.REMOVED),
        (RunStatus.RUNNING, "claim", RunStatus.RUNNING),
        (RunStatus.RUNNING, "release", RunStatus.INTERRUPTED),
        (RunStatus.RUNNING, "wait", RunStatus.WAITING),
        (RunStatus.RUNNING, "park", RunStatus.PARKED),
        (RunStatus.RUNNING, "complete", RunStatus.DONE),
        (RunStatus.RUNNING, "fail", RunStatus.FAILED),
        (RunStatus.RUNNING, "cancel", RunStatus.CANCELLED),
        (RunStatus.RUNNING, "remove", RunStatus.REMOVED),
        (RunStatus.INTERRUPTED, "claim", RunStatus.RUNNING),
        (RunStatus.INTERRUPTED, "remove", RunStatus.REMOVED),
        (RunStatus.WAITING, "post", RunStatus.INTERRUPTED),
        (RunStatus.WAITING, "claim", RunStatus.RUNNING),
        (RunStatus.WAITING, "remove", RunStatus.REMOVED),
        (RunStatus.PARKED, "claim", RunStatus.RUNNING),
        (RunStatus.PARKED, "remove", RunStatus.REMOVED),
        (RunStatus.FAILED, "claim", RunStatus.RUNNING),
        (RunStatus.FAILED, "remove", RunStatus.REMOVED),
        (RunStatus.DONE, "remove", RunStatus.REMOVED),
        (RunStatus.CANCELLED, "claim", RunStatus.RUNNING),
        (RunStatus.CANCELLED, "remove", RunStatus.REMOVED),
    }
)

#: The statuses in which a claim may leave a run.
RELEASE_STATUSES = frozenset(
    to for start, what, to in TRANSITIONS if start is RunStatus.RUNNING and what not in {"claim", "remove"}
)


class AttemptEnd(StrEnum):
    """How an attempt ended: with the status in which it left its run, or in one of two further ways."""

    #: The run is kept with its result for its retention, or removed if that is zero.
    DONE = "done"
    #: Recovery ignores the run. A person may resume it.
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: The run waits for a time or for mail.
    WAITING = "waiting"
    #: The run waits for a person or a condition.
    PARKED = "parked"
    #: A worker resumes the run.
    INTERRUPTED = "interrupted"
    #: Another worker owns the run: nothing is written.
    LOST = "lost"
    #: Only for readers: the process of the attempt died without recording an end.
    DIED = "died"

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended with the attempt."""
        return self in (AttemptEnd.DONE, AttemptEnd.FAILED, AttemptEnd.CANCELLED)


def classify_error(
    error: BaseException | None, shutdown_exceptions: tuple[type[BaseException], ...] = ()
) -> AttemptEnd:
    """Return how an attempt ends that raised `error`, or returned.

    Args:
        shutdown_exceptions: exceptions by which the host announces a shutdown. One of them or `Shutdown` as the cause
            of `error`, or within an exception group, announces it too.
    """
    if error is None:
        return AttemptEnd.DONE
    if isinstance(error, RunLost):
        return AttemptEnd.LOST
    if isinstance(error, RunWaiting):
        return AttemptEnd.WAITING
    if isinstance(error, RunParked):
        return AttemptEnd.PARKED
    if isinstance(error, RunInterrupted | KeyboardInterrupt | SystemExit):
        return AttemptEnd.INTERRUPTED
    if _contains(error, (Shutdown, *shutdown_exceptions)):
        return AttemptEnd.INTERRUPTED
    if isinstance(error, RunCancelled | asyncio.CancelledError):
        return AttemptEnd.CANCELLED
    return AttemptEnd.FAILED


def _contains(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether `error`, an exception of its group, or a cause of one of them is of these kinds."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        if isinstance(each, kinds):
            return True
        seen.add(id(each))
        left.append(each.__cause__)
        if isinstance(each, BaseExceptionGroup):
            left.extend(each.exceptions)
    return False
