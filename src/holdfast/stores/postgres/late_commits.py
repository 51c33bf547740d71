"""Writes whose callers were told that the server did not answer, though it turned out later that they were committed.

To those callers nothing was changed, and they may make the same call again. So what can be undone is undone: runs that
were begun or taken are given back. What cannot is remembered until its caller comes again. So are runs that were
submitted: somebody else may have been told meanwhile that they are there.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, TypeGuard

from msgspec import structs

from holdfast.checkpoint.record import RELEASE_STATUSES
from holdfast.stores.postgres.connection import unescape_text
from holdfast.stores.postgres.requests import AppendRequest, Command, Response, WriteRequest

_NO_RESPONSE: Response = {}


class LateCommits:
    """What is known of such writes."""

    def __init__(self) -> None:
        #: The newest of each claim, by its token.
        self._latest: dict[int, WriteRequest] = {}
        #: Those that submitted a run, by its id.
        self._submitted: dict[str | None, Command] = {}
        #: What gives back the runs that nobody knows to be his.
        self.compensations: list[Command] = []

    def record(self, requests: Sequence[WriteRequest], responses: Mapping[int, Response]) -> None:
        """These were committed, with these answers by item."""
        for item, operation in enumerate(requests, 1):
            answer = responses.get(item) or {}
            if operation in self.compensations:
                self.compensations.remove(operation)
            elif "error" in answer:
                continue
            elif _is_submission(operation):
                self._submitted[operation.run_id] = operation
            elif isinstance(operation, Command) and operation.kind in ("create", "claim", "take"):
                self.compensations += _make_compensations(operation, answer)
            elif operation.token is not None and _has_effect(operation):
                self._latest[operation.token] = operation

    def __bool__(self) -> bool:
        return bool(self._latest or self._submitted)

    def rewrite_request(self, request: WriteRequest) -> bool:
        """Make the operation fit what is there already. True: nothing is left to be done for it."""
        late = self._latest.get(request.token) if request.token is not None else None
        if isinstance(late, Command) and isinstance(request, Command):
            return (late.kind, *_get_end_state(late)) == (request.kind, *_get_end_state(request))
        if isinstance(late, AppendRequest) and late.first_seq == request.first_seq:
            _overwrite(late, request)
        return False

    def acknowledge(self, requests: Sequence[WriteRequest], responses: MutableMapping[WriteRequest, Response]) -> None:
        """These were committed with these answers, and their callers are about to know."""
        for operation in requests:
            if isinstance(operation, Command) and operation.prepended_append is not None:
                responses.pop(operation.prepended_append, None)  # its own says the same
            if operation.token is not None:
                if _has_effect(operation) and responses.get(operation, _NO_RESPONSE).get("error") != "order":
                    self._latest.pop(operation.token, None)
            elif _is_submission(operation) and _is_same_command(self._submitted.get(operation.run_id), operation):
                del self._submitted[operation.run_id]
                responses.pop(operation, None)  # that there is such a run already: it is this one


def _has_effect(request: WriteRequest) -> bool:
    """Not only that its claim still holds."""
    return request.first_seq is not None or isinstance(request, Command)


def _overwrite(late: AppendRequest, request: WriteRequest) -> None:
    """Make an operation fit whose first entry has the number that the first of the late one had."""
    if request.first_seq is None:
        return
    count = len(late.entries)
    if isinstance(request, AppendRequest):
        # What a rewrite replaced may be gone already, so that only another rewrite can follow in its place.
        if request.rewrite or not late.rewrite:
            request.overwrite_to = request.first_seq + count
            request.overwritten_bytes = 0 if request.rewrite else late.size
    elif isinstance(request, Command):  # the run's end
        if late.rewrite:
            request.entries = [structs.replace(entry, seq=entry.seq + count) for entry in request.entries]
            request.first_seq += count
        else:
            request.prepend_append(
                overwrite_to=request.first_seq + count, overwritten_bytes=late.size, progress=late.progress
            )


def _is_submission(request: WriteRequest | None) -> TypeGuard[Command]:
    return isinstance(request, Command) and request.kind == "create" and request.parameters["worker_id"] is None


def _is_same_command(late: Command | None, command: Command) -> bool:
    return late is not None and (late.parameters, late.entries) == (command.parameters, command.entries)


def _get_end_state(command: Command) -> tuple[Any, Any]:
    """How a run was left; nothing if it was removed."""
    return command.parameters.get("status"), command.parameters.get("reason")


def _make_compensations(command: Command, response: Response) -> list[Command]:
    if command.kind == "create":
        return [Command("remove", command.run_id, {}, token=response["token"])]
    taken = response["taken"] if command.kind == "take" else [response]
    return [
        Command(
            "settle",
            unescape_text(claim["run_id"]),
            {
                "status": claim["was"] if claim.get("was") in RELEASE_STATUSES else "interrupted",
                "reason": claim.get("reason", ""),
                "strikes": claim["strikes"] - 1,
                "delay": 0,
                "keep": command.parameters.get("keep"),
            },
            token=claim["token"],
        )
        for claim in taken
    ]
