"""Client: the methods of `AsyncClient` for code without an event loop."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from holdfast.client.async_client import AsyncClient, AsyncConversation
from holdfast.core.errors import DefinitionError
from holdfast.core.run.info import RequestOptions
from holdfast.core.run.run_events import Event
from holdfast.core.run.waiting import Answer
from holdfast.runtime.operations.conversations import When
from holdfast.runtime.operations.verdicts import Verdict
from holdfast.runtime.reading.run_views import RunDetails, RunList, RunQuery
from holdfast.web.wire import RunResult, TurnSummary


class Client:
    """A client of the HTTP API, used as `with Client(url) as client:`. An event loop in a thread sends the requests.

    The methods do what those of `AsyncClient` do, and raise the same errors.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: timedelta = timedelta(seconds=30)) -> None:
        """Make a client. Arguments as for `AsyncClient`."""
        self._client = AsyncClient(url, token=token, timeout=timeout)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(self._portal.wrap_async_context_manager(self._client))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self._portal = None

    @property
    def _open_portal(self) -> BlockingPortal:
        if self._portal is None:
            raise DefinitionError("the client is not open: use it as `with Client(url) as client:`")
        return self._portal

    def submit(
        self,
        agent: str,
        prompt: str | Sequence[Any],
        *,
        inputs: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        not_before: datetime | None = None,
        **options: Unpack[RequestOptions],
    ) -> str:
        """Queue a run. Durable when this returns."""
        call = partial(
            self._client.submit,
            agent,
            prompt,
            inputs=inputs,
            run_id=run_id,
            not_before=not_before,
            **options,
        )
        return self._open_portal.call(call)

    def get(self, run_id: str) -> RunDetails:
        """Return the current state of a run."""
        return self._open_portal.call(self._client.get, run_id)

    def list(self, *, limit: int = 50, cursor: str | None = None, **query: Unpack[RunQuery]) -> RunList:
        """Return a page of runs, newest first."""
        return self._open_portal.call(partial(self._client.list, limit=limit, cursor=cursor, **query))

    def result(self, run_id: str) -> RunResult:
        """Wait for the result of a run."""
        return self._open_portal.call(self._client.result, run_id)

    def events(self, run_id: str, after: str | None = None) -> Generator[Event]:
        """Yield the events of a run until it ends. Connects again if the connection is lost."""
        portal, events = self._open_portal, self._client.events(run_id, after)
        try:
            while (event := portal.call(anext, events, None)) is not None:
                yield event
        finally:
            portal.call(events.aclose)

    def conversation(self, agent: str, key: str) -> "Conversation":
        """Return the conversation with this agent and key. It begins with its first message."""
        return Conversation(self._open_portal, self._client.conversation(agent, key))

    def send(self, run_id: str, text: str, *, id: str | None = None) -> str:
        """Send a message to a run. Returns its id."""
        return self._open_portal.call(partial(self._client.send, run_id, text, id=id))

    def signal(self, run_id: str, name: str, payload: Any = None, *, id: str | None = None) -> str:
        """Send a signal to a run. Returns its id."""
        return self._open_portal.call(partial(self._client.signal, run_id, name, payload, id=id))

    def answer(self, run_id: str, call_id: str, answer: Answer, *, digest: str | None = None) -> None:
        """Answer a call that waits for a person. The server records who it was."""
        self._open_portal.call(partial(self._client.answer, run_id, call_id, answer, digest=digest))

    def cancel(self, run_id: str) -> None:
        """Cancel a run and its child runs."""
        self._open_portal.call(self._client.cancel, run_id)

    def requeue(self, run_id: str) -> None:
        """Leave a parked, failed or cancelled run to the workers, which resume it."""
        self._open_portal.call(self._client.requeue, run_id)

    def unpark(self, run_id: str, resolutions: Mapping[str, Any] | None = None) -> None:
        """Leave a parked run to the workers. Arguments as for `AsyncClient.unpark`."""
        self._open_portal.call(self._client.unpark, run_id, resolutions)

    def fork(
        self,
        run_id: str,
        at_step: int,
        *,
        edited: str | Sequence[Any] | None = None,
        results: Mapping[str, Any] | None = None,
        new_id: str | None = None,
    ) -> str:
        """Queue a new run that starts with the state of `run_id` after `at_step`. Arguments as for `App.fork`."""
        call = partial(self._client.fork, run_id, at_step, edited=edited, results=results, new_id=new_id)
        return self._open_portal.call(call)

    def pick(self, run_id: str, result: str) -> Verdict | None:
        """Pick one of several results, and return the pick. Arguments as for `AsyncClient.pick`."""
        return self._open_portal.call(self._client.pick, run_id, result)

    def get_pick(self, run_id: str) -> Verdict | None:
        """Return the newest pick among the results of a run; `None` if a person has picked none."""
        return self._open_portal.call(self._client.get_pick, run_id)


class Conversation:
    """The methods of `AsyncConversation` for code without an event loop. `Client.conversation` returns it."""

    def __init__(self, portal: BlockingPortal, conversation: AsyncConversation) -> None:
        self._portal, self._conversation = portal, conversation

    def post(self, content: str | Sequence[Any], *, id: str | None = None, when: When = "queue") -> str:
        """Send a message. Durable when this returns. Returns the id of its turn."""
        return self._portal.call(partial(self._conversation.post, content, id=id, when=when))

    def send(self, content: str | Sequence[Any], *, id: str | None = None, when: When = "queue") -> TurnSummary:
        """Send a message and wait for the end of its turn."""
        return self._portal.call(partial(self._conversation.send, content, id=id, when=when))

    def result(self, turn_id: str) -> TurnSummary:
        """Wait for the end of a turn."""
        return self._portal.call(self._conversation.result, turn_id)

    def history(self) -> Sequence[TurnSummary]:
        """Return the turns, oldest first."""
        return self._portal.call(self._conversation.history)

    def fork(self, at_turn: int, *, key: str, edited: str | None = None) -> "Conversation":
        """Begin a new conversation with the turns up to this one, whose message may be `edited`."""
        fork = self._portal.call(partial(self._conversation.fork, at_turn, key=key, edited=edited))
        return Conversation(self._portal, fork)

    def erase(self) -> None:
        """Remove the conversation from the store. A turn in progress is cancelled."""
        self._portal.call(self._conversation.erase)
