"""Writes that the server committed after their callers had got an error because it did not answer.

Those callers believe that nothing changed, and may repeat the call. Claims that such a write took are released again.
Other writes cannot be undone: they are remembered until the caller repeats them. So are submitted runs, because
another process may have seen them meanwhile.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, TypeGuard

from msgspec import structs

from holdfast.checkpoint.record import RELEASE_STATUSES, RunStatus
from holdfast.stores.postgres.database import unescape_text
from holdfast.stores.postgres.write_requests import AppendRequest, Command, Response, WriteRequest

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
            elif _is_submission(request) or (isinstance(request, Command) and "queued" in response):
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
        if isinstance(late, AppendRequest):
            _overwrite(late, request)
        return False

    def acknowledge(self, requests: Sequence[WriteRequest], responses: MutableMapping[WriteRequest, Response]) -> None:
        """Forget the late commits of requests that are committed now, and whose callers will learn of it."""
        for request in requests:
            if request.token is not None:
                if _has_effect(request) and responses.get(request, _NO_RESPONSE).get("error") != "order":
                    self._latest.pop(request.token, None)
            elif isinstance(request, Command) and _is_same_command(self._submitted.get(request.run_id), request):
                del self._submitted[request.run_id]
                responses[request] = {"queued": True}  # not "exists": the run that exists is this one


def _has_effect(request: WriteRequest) -> bool:
    """Return whether it writes anything. An append of nothing only verifies its claim."""
    return request.first_seq is not None or bool(request.consumed) or isinstance(request, Command)


def _overwrite(late: AppendRequest, request: WriteRequest) -> None:
    """Let the request overwrite the late append if it repeats it: the same first entry, and the same mail consumed."""
    if not set(late.consumed) <= set(request.consumed):
        return
    if request.first_seq is None or late.first_seq != request.first_seq:
        if late.first_seq is None:
            request.consumed = _subtract(request.consumed, late.consumed)
        return
    if late.rewrite and not (isinstance(request, AppendRequest) and request.rewrite):
        # The entries before a rewrite may be deleted already, so only another rewrite can take its place. A release
        # follows it instead.
        if isinstance(request, Command):
            count = len(late.entries)
            request.entries = [structs.replace(entry, seq=entry.seq + count) for entry in request.entries]
            request.first_seq += count
            request.consumed = _subtract(request.consumed, late.consumed)
        return
    is_rewrite = isinstance(request, AppendRequest) and request.rewrite
    request.overwrite_to = request.first_seq + len(late.entries)
    request.overwritten_bytes = 0 if is_rewrite else late.size
    request.consumed = _subtract(request.consumed, late.consumed)


def _subtract(mail_ids: Sequence[str], consumed: Sequence[str]) -> list[str]:
    """Return the mail that is not consumed yet."""
    return [mail_id for mail_id in mail_ids if mail_id not in consumed]


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
                "yields_to_cancel": claim.get("was") in (RunStatus.WAITING, RunStatus.PARKED),
                "wake_at": claim.get("wake_at"),
                "wake_on": claim.get("wake_on", []),
                "restores": True,
            },
            token=claim["token"],
        )
        for claim in taken
    ]
