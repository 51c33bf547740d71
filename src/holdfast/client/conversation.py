"""A conversation on a server, with the methods of `holdfast.Conversation`."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from holdfast.client.requests import Requests
from holdfast.core.info import new_run_id
from holdfast.runtime.conversations.conversation import When
from holdfast.web.wire import (
    ConversationForkRequest,
    ConversationHistory,
    RunReference,
    TurnReference,
    TurnRequest,
    TurnSummary,
)


class AsyncConversation:
    """A conversation with an agent of the server. `AsyncClient.conversation` returns it."""

    def __init__(self, requests: Requests, agent: str, key: str) -> None:
        self._requests, self.agent, self.key = requests, agent, key
        self._path = f"conversations/{quote(agent, safe='')}/{quote(key, safe='')}"

    async def post(self, content: str | Sequence[Any], *, id: str | None = None, when: When = "queue") -> str:
        """Send a message. Durable when this returns. Returns the id of its turn."""
        sent = content if isinstance(content, str) else list(content)
        body = TurnRequest(content=sent, id=id or new_run_id(), when=when)
        return (await self._requests.post(f"{self._path}/messages", body, TurnReference, repeat=True)).turn_id

    async def send(self, content: str | Sequence[Any], *, id: str | None = None, when: When = "queue") -> TurnSummary:
        """Send a message and wait for the end of its turn."""
        return await self.result(await self.post(content, id=id, when=when))

    async def result(self, turn_id: str) -> TurnSummary:
        """Wait for the end of a turn.

        Raises:
            TurnFailed: it failed. RunWaiting: it waits for a person, a signal or a result from outside.
        """
        return await self._requests.get_when_ended(f"{self._path}/turns/{quote(turn_id, safe='')}", TurnSummary)

    async def history(self) -> Sequence[TurnSummary]:
        """Return the turns, oldest first."""
        return (await self._requests.get(self._path, ConversationHistory)).turns

    async def fork(self, at_turn: int, *, key: str, edited: str | None = None) -> "AsyncConversation":
        """Begin a new conversation with the turns up to this one, whose message may be `edited`."""
        body = ConversationForkRequest(at_turn=at_turn, edited=edited, key=key)
        await self._requests.post(f"{self._path}/fork", body, RunReference)
        return AsyncConversation(self._requests, self.agent, key)

    async def erase(self) -> None:
        """Remove the conversation from the store. A turn under way is cancelled."""
        await self._requests.delete(self._path)
