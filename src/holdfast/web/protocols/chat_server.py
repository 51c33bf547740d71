"""What both protocols have in common: who asks, which conversation, new messages and approvals."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_ai.tools import DeferredToolResults, ToolApproved, ToolDenied
from starlette.requests import Request
from starlette.responses import Response

from holdfast.app import App
from holdfast.core.run.waiting import Answer, Approve, Deny
from holdfast.runtime.operations.conversations import Conversation
from holdfast.runtime.operations.mailing import AlreadyAnswered, NotWaiting
from holdfast.web.api.conversation_operations import open_conversation, post_message
from holdfast.web.api.operation import Context, InvalidBody, read_body
from holdfast.web.auth import Authorize, Principal, Scope, authenticate, check_decider


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message of the user. Its id is that of the turn that it begins."""

    id: str
    text: str


class ChatServer:
    """Opens the conversations of one App for the requests of front ends."""

    def __init__(self, app: App, authorize: Authorize | None, allowed_origins: frozenset[str]) -> None:
        self.app, self._authorize, self._allowed_origins = app, authorize, allowed_origins

    async def authenticate(self, request: Request, scope: Scope) -> Principal:
        principal = await authenticate(request, self._authorize, allowed_origins=self._allowed_origins)
        principal.require(scope)
        return principal

    async def open(self, request: Request, principal: Principal, key: str) -> Conversation[Any]:
        """Return the conversation of the agent in the path with this key. Raises `RunNotFound`."""
        context = Context(self.app, principal, request, None)
        return await open_conversation(context, request.path_params["agent"], key)

    async def post(
        self, request: Request, principal: Principal, conversation: Conversation[Any], text: str, id: str
    ) -> str:
        """Send a message, and return its id. Raises `RunNotFound`."""
        context = Context(self.app, principal, request, None)
        return await post_message(context, conversation, text, id=id)

    async def answer(self, conversation: Conversation[Any], principal: Principal, given: DeferredToolResults) -> None:
        """Give the approvals of a request. Those that were given before change nothing."""
        principal.require("answer")
        for call_id, approval in given.approvals.items():
            # A request that is repeated, because its response was lost.
            with suppress(NotWaiting, AlreadyAnswered):
                answer, run_id, store = _to_answer(approval), conversation.run_id, self.app.store
                digest = None if store is None else await check_decider(store, principal, run_id, call_id, None)
                await self.app.answer(run_id, call_id, answer, by=principal.caller_id, via="http", digest=digest)


def _to_answer(approval: Any) -> Answer:
    if isinstance(approval, ToolDenied):
        return Deny(reason=approval.message)
    if isinstance(approval, ToolApproved):
        return Approve(arguments=approval.override_args)
    return Approve() if approval is True else Deny()


async def read_input(request: Request, build: Any) -> Any:
    """Return the body of a request as `build` decodes it.

    Raises:
        InvalidBody: it is not what the protocol says.
    """
    body = await read_body(request, msgspec.Raw)
    try:
        return build(bytes(body))
    except ValidationError as exc:
        raise InvalidBody(f"the body does not follow the protocol: {exc.error_count()} errors") from exc


def make_json(models: Iterable[BaseModel]) -> Response:
    """Return messages of a protocol as JSON."""
    content = [model.model_dump(mode="json", by_alias=True, exclude_none=True) for model in models]
    return Response(msgspec.json.encode(content), media_type="application/json")


async def encode_frames(frames: AsyncIterator[str]) -> AsyncGenerator[bytes]:
    """Return the frames of a stream as bytes."""
    async for frame in frames:
        yield frame.encode()
