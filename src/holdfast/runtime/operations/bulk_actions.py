"""What can be done to many runs at once: by the web UI and by commands with a filter."""

from collections.abc import Awaitable, Callable

import msgspec

from holdfast.checkpoint.record import TERMINAL_STATUSES, RunStatus
from holdfast.runtime.operations.run_client import RunClient


class BulkAction(msgspec.Struct, frozen=True, kw_only=True):
    """What can be done to many runs, and to which."""

    verb: str
    #: For the sentence that follows the number of runs.
    past: str
    statuses: frozenset[RunStatus]
    #: Takes a client and the id of a run.
    apply: Callable[..., Awaitable[None]]
    is_destructive: bool = False


async def _remove(client: RunClient, run_id: str) -> None:
    await client.open_store.remove(run_id)


BULK_ACTIONS = {
    "cancel": BulkAction(
        verb="Cancel",
        past="cancelled, or asked to stop",
        statuses=frozenset(RunStatus) - TERMINAL_STATUSES - {RunStatus.REMOVED},
        apply=RunClient.cancel,
        is_destructive=True,
    ),
    "resume": BulkAction(
        verb="Resume",
        past="left to the workers, which resume them",
        statuses=frozenset({RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.PARKED}),
        apply=RunClient.requeue,
    ),
    "unpark": BulkAction(
        verb="Unpark",
        past="unparked",
        statuses=frozenset({RunStatus.PARKED}),
        apply=RunClient.unpark,
    ),
    "remove": BulkAction(
        verb="Remove",
        past="removed",
        statuses=TERMINAL_STATUSES,
        apply=_remove,
        is_destructive=True,
    ),
}
