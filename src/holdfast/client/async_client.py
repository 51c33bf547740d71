"""AsyncClient: an App's operations over HTTP, and its conversations."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any, Self, Unpack
from urllib.parse import quote

import httpx
import msgspec

from holdfast.client.errors import ServerUnavailable, make_error
from holdfast.client.transport import PAUSES, STREAM_TIMEOUT, Requests, read_frames
from holdfast.core.agents.calls import NOT_EXECUTED, UNKNOWN
from holdfast.core.run.info import RequestOptions
from holdfast.core.run.run_events import Event
from holdfast.core.run.waiting import Answer, Approve, Deny
from holdfast.ids import make_id
from holdfast.runtime.operations.conversations import When
from holdfast.runtime.operations.verdicts import Verdict
from holdfast.runtime.reading.query_fields import encode_query
from holdfast.runtime.reading.run_views import RunDetails, RunList, RunQuery
from holdfast.web.wire import (
    AnswerRequest,
    ApproveRequest,
    ConversationForkRequest,
    ConversationHistory,
    DenyRequest,
    ForkRequest,
    MailReference,
    MessageRequest,
    NotExecutedResolution,
    PickRequest,
    PickResponse,
    ResultResolution,
    RunReference,
    RunRequestBody,
    RunResult,
    SignalRequest,
    TurnReference,
    TurnRequest,
    TurnSummary,
    UnknownResolution,
    UnparkRequest,
    ValueRequest,
)


class AsyncConversation:
    """A conversation with an agent of the server. `AsyncClient.conversation` returns it."""

    def __init__(self, requests: Requests, agent: str, key: str) -> None:
        self._requests, self.agent, self.key = requests, agent, key
        self._path = f"conversations/{quote(agent, safe='')}/{quote(key, safe='')}"

    async def post(self, content: str | Sequence[Any], *, id: str | None = None, when: When = "queue") -> str:
        """Send a message. Durable when this returns. Returns the id of its turn."""
        sent = content if isinstance(content, str) else list(content)
        body = TurnRequest(content=sent, id=id or make_id(), when=when)
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
        """Remove the conversation from the store. A turn in progress is cancelled."""
        await self._requests.delete(self._path)


class AsyncClient:
    """A client of the HTTP API. Its methods do what those of `App` do, and raise the same errors.

    Used as `async with AsyncClient(url) as client:`.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: timedelta = timedelta(seconds=30)) -> None:
        """Make a client.

        Args:
            url: of the API, with the prefix under which it is mounted, such as `http://localhost:8000/api`.
            token: sent as `Authorization: Bearer`.
            timeout: of one request. Streams and `result` wait longer.
        """
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/") + "/", headers=headers, timeout=timeout.total_seconds(), trust_env=False
        )
        self._requests = Requests(self._http)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    # -- runs ---------------------------------------------------------------------------------------------------

    async def submit(
        self,
        agent: str,
        prompt: str | Sequence[Any],
        *,
        inputs: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        not_before: datetime | None = None,
        **options: Unpack[RequestOptions],
    ) -> str:
        """Queue a run. Durable when this returns.

        The id is made here, so that a request whose response was lost is repeated without a second run.
        """
        fields: dict[str, Any] = {
            "agent": agent,
            "input": prompt if isinstance(prompt, str) else list(prompt),
            "inputs": None if inputs is None else dict(inputs),
            "not_before": not_before,
            **options,
        }
        body = RunRequestBody(**fields)
        headers = {"idempotency-key": run_id or make_id()}
        return (await self._requests.post("runs", body, RunReference, headers, repeat=True)).run_id

    async def get(self, run_id: str) -> RunDetails:
        """Return the current state of a run."""
        return await self._requests.get(_make_path(run_id), RunDetails)

    async def list(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        **query: Unpack[RunQuery],
    ) -> RunList:
        """Return a page of runs, newest first."""
        parameters = {"limit": limit, **encode_query(query)}
        if cursor is not None:
            parameters["cursor"] = cursor
        return await self._requests.get("runs", RunList, parameters)

    async def result(self, run_id: str) -> RunResult:
        """Wait for the result of a run.

        Raises:
            RunFailed: it failed. RunCancelled: it was cancelled. RunParked: it needs a person.
            RunWaiting: it waits for a person, a signal or a result from outside.
        """
        path = f"{_make_path(run_id)}/result"
        return await self._requests.get_when_ended(path, RunResult)

    async def events(self, run_id: str, after: str | None = None) -> AsyncGenerator[Event]:
        """Yield the events of a run until it ends, as `App.events` does.

        If the connection is lost, the client connects again and continues after the last durable event.
        """
        attempt = 0
        while True:
            try:
                async with aclosing(self._read_stream(run_id, after)) as events:
                    async for event in events:
                        attempt = 0
                        after = event.cursor or after
                        yield event
                return
            except (ServerUnavailable, httpx.TransportError):
                await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
                attempt += 1

    async def _read_stream(self, run_id: str, after: str | None) -> AsyncGenerator[Event]:
        """Yield the events of one connection.

        Raises:
            ServerUnavailable: the stream was cut off. TransportError: there is no connection.
        """
        headers = {} if after is None else {"last-event-id": after}
        path = f"{_make_path(run_id)}/events"
        async with self._http.stream("GET", path, headers=headers, timeout=STREAM_TIMEOUT) as response:
            if response.status_code == httpx.codes.NO_CONTENT:
                return
            if response.headers.get("content-type", "").partition(";")[0] != "text/event-stream":
                await response.aread()
                raise make_error(response)
            async for frame in read_frames(response.aiter_raw()):
                if frame.event == "end":
                    return
                yield msgspec.json.decode(frame.data, type=Event, strict=False)
        raise ServerUnavailable(f"the events of run {run_id} were cut off")

    def conversation(self, agent: str, key: str) -> AsyncConversation:
        """Return the conversation with this agent and key. It begins with its first message."""
        return AsyncConversation(self._requests, agent, key)

    # -- mail and control ---------------------------------------------------------------------------------------

    async def send(self, run_id: str, text: str, *, id: str | None = None) -> str:
        """Send a message to a run. Returns its id."""
        body = MessageRequest(text=text, id=id or make_id())
        return (await self._requests.post(f"{_make_path(run_id)}/messages", body, MailReference, repeat=True)).id

    async def signal(self, run_id: str, name: str, payload: Any = None, *, id: str | None = None) -> str:
        """Send a signal to a run. Returns its id."""
        body = SignalRequest(name=name, payload=payload, id=id or make_id())
        return (await self._requests.post(f"{_make_path(run_id)}/signals", body, MailReference, repeat=True)).id

    async def answer(self, run_id: str, call_id: str, answer: Answer, *, digest: str | None = None) -> None:
        """Answer a call that waits for a person. The server records who it was.

        Args:
            digest: of the call that the person saw. An answer for another one is refused.
        """
        await self._requests.post(f"{_make_path(run_id)}/answers", _make_answer(call_id, answer, digest), RunReference)

    async def cancel(self, run_id: str) -> None:
        """Cancel a run and its child runs."""
        await self._requests.post(f"{_make_path(run_id)}/cancel", None, RunReference)

    async def requeue(self, run_id: str) -> None:
        """Leave a parked, failed or cancelled run to the workers, which resume it."""
        await self._requests.post(f"{_make_path(run_id)}/resume", None, RunReference)

    async def unpark(self, run_id: str, resolutions: Mapping[str, Any] | None = None) -> None:
        """Leave a parked run to the workers. The server records who it was.

        Args:
            resolutions: outcomes of calls in doubt, as for `App.unpark`.
        """
        body = UnparkRequest(resolutions=tuple(itertools.starmap(_make_resolution, (resolutions or {}).items())))
        await self._requests.post(f"{_make_path(run_id)}/unpark", body, RunReference)

    async def fork(
        self,
        run_id: str,
        at_step: int,
        *,
        edited: str | Sequence[Any] | None = None,
        results: Mapping[str, Any] | None = None,
        new_id: str | None = None,
    ) -> str:
        """Queue a new run that starts with the state of `run_id` after `at_step`. Arguments as for `App.fork`."""
        body = ForkRequest(
            at_step=at_step,
            edited=edited if edited is None or isinstance(edited, str) else [*edited],
            results=dict(results) if results is not None else None,
            run_id=new_id,
        )
        return (await self._requests.post(f"{_make_path(run_id)}/fork", body, RunReference)).run_id

    # -- several results ----------------------------------------------------------------------------------------

    async def pick(self, run_id: str, result: str) -> Verdict | None:
        """Pick one of several results, and return the pick. The server records who it was.

        Args:
            run_id: a fan-out, a run with forks, or the parent of several runs.
            result: the id of a model of the fan-out, or the id of a run. Empty: none of them; then returns `None`.

        Raises:
            RunNotFound: there is no such run. DefinitionError: the fan-out has no such model.
        """
        body = PickRequest(result=result)
        return (await self._requests.post(f"{_make_path(run_id)}/pick", body, PickResponse)).pick

    async def get_pick(self, run_id: str) -> Verdict | None:
        """Return the newest pick among the results of a run; `None` if a person has picked none."""
        return (await self._requests.get(f"{_make_path(run_id)}/pick", PickResponse)).pick


def _make_path(run_id: str) -> str:
    return f"runs/{quote(run_id, safe=':')}"


def _make_answer(call_id: str, answer: Answer, digest: str | None) -> AnswerRequest:
    if isinstance(answer, Approve):
        return ApproveRequest(call_id=call_id, digest=digest, arguments=answer.arguments, comment=answer.comment)
    if isinstance(answer, Deny):
        return DenyRequest(call_id=call_id, digest=digest, reason=answer.reason)
    return ValueRequest(call_id=call_id, digest=digest, value=answer.value)


def _make_resolution(call_id: str, outcome: Any) -> ResultResolution | NotExecutedResolution | UnknownResolution:
    if outcome is NOT_EXECUTED:
        return NotExecutedResolution(call_id=call_id)
    if outcome is UNKNOWN:
        return UnknownResolution(call_id=call_id)
    return ResultResolution(call_id=call_id, value=outcome)
