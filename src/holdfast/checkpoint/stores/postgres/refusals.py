"""What the server's refusals mean to a caller."""

from collections.abc import Sequence
from typing import NoReturn

from holdfast.checkpoint.errors import (
    CheckpointError,
    ClaimLost,
    RunBusy,
    RunExists,
    RunNotClaimable,
    RunNotFound,
    StoreError,
)
from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.stores.postgres.operations import Answer, Operation
from holdfast.checkpoint.stores.postgres.text import from_text


def refuse(operation: Operation, answer: Answer) -> NoReturn:
    """Raise what the answer says. Nothing was written."""
    raise _refusal(operation, operation.run_id or "", answer)


def _refusal(operation: Operation, run_id: str, answer: Answer) -> CheckpointError:
    match answer["error"]:
        case "lost":
            return ClaimLost(run_id, operation.token or 0, answer["token"])
        case "order":
            return out_of_order(run_id, operation.first, answer["due"])
        case "exists":
            return RunExists(run_id)
        case "missing":
            return RunNotFound(run_id)
        case "busy":
            return RunBusy(run_id, from_text(answer["owner"]))
        case "status":
            return RunNotClaimable(run_id, answer["status"], from_text(answer["reason"]))
        case unknown:
            return StoreError(f"run {run_id}: the server refused for a reason this holdfast does not know: {unknown}")


def checked_size(run_id: str, entries: Sequence[Entry], first: int | None = None) -> int:
    """How many bytes are in the entries.

    Raises:
        StoreError: they do not count up by one, from `first` if that is given.
    """
    if not entries:
        return 0
    size, due = 0, entries[0].seq if first is None else first
    for entry in entries:
        if entry.seq != due:
            raise out_of_order(run_id, entry.seq, due)
        due += 1
        size += len(entry.body)
    return size


def out_of_order(run_id: str, seq: int | None, due: int) -> StoreError:
    return StoreError(f"run {run_id}: entry {seq} came where {due} is due; nothing was written")
