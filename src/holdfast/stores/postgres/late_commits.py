"""Writes that the server committed after their callers had been told that it did not answer.

Those callers believe that nothing changed, and may repeat the call. Claims that such a write took are released again.
Other writes cannot be undone: they are remembered until the caller repeats them. So are submitted runs, because
another process may have seen them meanwhile.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, TypeGuard

from msgspec import structs

from holdfast.checkpoint.record import RELEASE_STATUSES
from holdfast.stores.postgres.database import unescape_text
from holdfast.stores.postgres.requests import AppendRequest, Command, Response, WriteRequest

_NO_RESPONSE: Response = {}


class LateCommits:
    """Remembers late commits, and adapts repeated requests to them."""

    def __init__(self) -> None:
        #: The newest write of each claim, by its token.
        self._latest: dict[int, WriteRequest] = {}
        #: Commands that submitted a run, by its id.
        self._submitted: dict[str | None, Command] = {}
        #: Commands that release claims whose callers do not know of them.
        self.compensations: list[Command] = []

    def record(self, requests: Sequence[WriteRequest], responses: Mapping[int, Response]) -> None:
        """Remember requests that were committed, with their responses by item."""
        for item, request in enumerate(requests, 1):
            response = responses.get(item) or {}
            if request in self.compensations:
                self.compensations.remove(request)
            elif "error" in response:
                continue
            elif _is_submission(request):
                self._submitted[request.run_id] = request
            elif isinstance(request, Command) and request.kind in ("create", "claim", "take"):
                self.compensations += _make_compensations(request, response)
            elif request.token is not None and _has_effect(request):
                self._latest[request.token] = request

    def __bool__(self) -> bool:
        return bool(self._latest or self._submitted)

    def rewrite_request(self, request: WriteRequest) -> bool:
        """Adapt the request to a late commit of its claim. Return True if nothing is left to do for it."""
        late = self._latest.get(request.token) if request.token is not None else None
        if isinstance(late, Command) and isinstance(request, Command):
            return (late.kind, *_get_end_state(late)) == (request.kind, *_get_end_state(request))
        if isinstance(late, AppendRequest) and late.first_seq == request.first_seq:
            _overwrite(late, request)
        return False

    def acknowledge(self, requests: Sequence[WriteRequest], responses: MutableMapping[WriteRequest, Response]) -> None:
        """Forget the late commits of requests that are committed now, and whose callers will learn of it."""
        for request in requests:
            if isinstance(request, Command) and request.prepended_append is not None:
                responses.pop(request.prepended_append, None)  # the command's own response says the same
            if request.token is not None:
                if _has_effect(request) and responses.get(request, _NO_RESPONSE).get("error") != "order":
                    self._latest.pop(request.token, None)
            elif _is_submission(request) and _is_same_command(self._submitted.get(request.run_id), request):
                del self._submitted[request.run_id]
                responses.pop(request, None)  # "exists": the run that exists is this one


def _has_effect(request: WriteRequest) -> bool:
    """Return whether it writes anything. An append without entries only verifies its claim."""
    return request.first_seq is not None or isinstance(request, Command)


def _overwrite(late: AppendRequest, request: WriteRequest) -> None:
    """Let the request overwrite the late append, which begins at the same entry."""
    if request.first_seq is None:
        return
    count = len(late.entries)
    if isinstance(request, AppendRequest):
        # The entries before a rewrite may be deleted already, so only another rewrite can take its place.
        if request.rewrite or not late.rewrite:
            request.overwrite_to = request.first_seq + count
            request.overwritten_bytes = 0 if request.rewrite else late.size
    elif isinstance(request, Command):  # releases the run
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
    """Return the status and reason of a release; nothing for a removal."""
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
