"""The life of a stored run, as one table. The picture in docs/architecture.md is asserted equal to it."""

from enum import StrEnum


class Status(StrEnum):
    """Where a stored run stands.

    `RUNNING` with a dead owner counts as interrupted wherever runs are listed or claimed.
    """

    QUEUED = "queued"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    PARKED = "parked"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: Not stored: the run and all its entries are gone.
    REMOVED = "removed"


#: What `claim` may take without being told more. A running run only once its owner is dead.
CLAIMABLE = frozenset({Status.QUEUED, Status.RUNNING, Status.INTERRUPTED})

#: Ends of a run. Nothing but a person's claim brings it back.
OVER = frozenset({Status.DONE, Status.FAILED, Status.CANCELLED})

#: (from, what happens, to). `REMOVED` as a start means: no such run yet.
TRANSITIONS = frozenset(
    {
        (Status.REMOVED, "submit", Status.QUEUED),
        (Status.REMOVED, "begin", Status.RUNNING),
        (Status.QUEUED, "claim", Status.RUNNING),
        (Status.QUEUED, "remove", Status.REMOVED),
        (Status.RUNNING, "claim", Status.RUNNING),
        (Status.RUNNING, "release", Status.INTERRUPTED),
        (Status.RUNNING, "park", Status.PARKED),
        (Status.RUNNING, "complete", Status.DONE),
        (Status.RUNNING, "fail", Status.FAILED),
        (Status.RUNNING, "cancel", Status.CANCELLED),
        (Status.RUNNING, "remove", Status.REMOVED),
        (Status.INTERRUPTED, "claim", Status.RUNNING),
        (Status.INTERRUPTED, "remove", Status.REMOVED),
        (Status.PARKED, "claim", Status.RUNNING),
        (Status.PARKED, "remove", Status.REMOVED),
        (Status.FAILED, "claim", Status.RUNNING),
        (Status.FAILED, "remove", Status.REMOVED),
        (Status.DONE, "remove", Status.REMOVED),
        (Status.CANCELLED, "claim", Status.RUNNING),
        (Status.CANCELLED, "remove", Status.REMOVED),
    }
)

#: The statuses in which a claim may leave a run.
ENDINGS = frozenset(
    to for start, what, to in TRANSITIONS if start is Status.RUNNING and what not in {"claim", "remove"}
)
