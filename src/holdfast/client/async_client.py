"""AsyncClient: runs on a server, with the methods and errors of an `App`."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from holdfast.client.errors import ServerUnavailable, make_error
from holdfast.client.sse import read_frames
from holdfast.core.events import Event
from holdfast.core.info import new_run_id
from holdfast.core.waiting import Answer, Approve, Deny
from holdfast.runtime.reading import RunDetails, RunList
from holdfast.web.wire import (
    AnswerRequest,
    ApproveRequest,
    DenyRequest,
    ForkRequest,
    MailReference,
    MessageRequest,
    RunReference,
    RunRequest,
    RunResult,
    SignalRequest,
    ValueRequest,
)

T = TypeVar("T")

#: The pauses between attempts to connect again. Then the last one, for as long as the caller waits.
_PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0)
#: How many seconds the server waits for a result before it asks the client to ask again.
_RESULT_WAIT = 20
#: A stream is silent for 15 s at most: the server sends heartbeats.
_STREAM_TIMEOUT = httpx.Timeout(10.0, read=45.0)


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
        labels: Mapping[str, str] | None = None,
        priority: int = 0,
        key: str = "",
    ) -> str:
        """Queue a run. Durable when this returns.

        The id is made here, so that a request whose response was lost is repeated without a second run.
        """
        body = RunRequest(
            agent=agent,
            input=prompt if isinstance(prompt, str) else list(prompt),
            inputs=None if inputs is None else dict(inputs),
            labels=None if labels is None else dict(labels),
            not_before=not_before,
            priority=priority,
            key=key,
        )
        headers = {"idempotency-key": run_id or new_run_id()}
        return (await self._post("runs", body, RunReference, headers, repeat=True)).run_id

    async def get(self, run_id: str) -> RunDetails:
        """Return the present state of a run."""
        return await self._get(_make_path(run_id), RunDetails)

    async def list(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        status: Sequence[str] = (),
        agent: str | None = None,
        caller: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> RunList:
        """Return a page of runs, newest first."""
        query: dict[str, Any] = {
            "limit": limit,
            "cursor": cursor,
            "status": [status] if isinstance(status, str) else list(status),
            "agent": agent,
            "caller": caller,
            "label": [f"{name}={value}" for name, value in (labels or {}).items()],
        }
        return await self._get("runs", RunList, {name: value for name, value in query.items() if value is not None})

    async def result(self, run_id: str) -> RunResult:
        """Wait for the result of a run.

        Raises:
            RunFailed: it failed. RunCancelled: it was cancelled. RunParked: it needs a person.
            RunWaiting: it waits for a person, a signal or a result from outside.
        """
        path = f"{_make_path(run_id)}/result"
        while True:
            response = await self._send(
                "GET", path, params={"wait": _RESULT_WAIT}, timeout=_STREAM_TIMEOUT, repeat=True
            )
            if response.status_code == httpx.codes.OK:
                return msgspec.json.decode(response.content, type=RunResult)

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
                await asyncio.sleep(_PAUSES[min(attempt, len(_PAUSES) - 1)])
                attempt += 1

    async def _read_stream(self, run_id: str, after: str | None) -> AsyncGenerator[Event]:
        """Yield the events of one connection.

        Raises:
            ServerUnavailable: the stream was cut off. TransportError: there is no connection.
        """
        headers = {} if after is None else {"last-event-id": after}
        path = f"{_make_path(run_id)}/events"
        async with self._http.stream("GET", path, headers=headers, timeout=_STREAM_TIMEOUT) as response:
            if response.status_code == httpx.codes.NO_CONTENT:
                return
            if response.is_error:
                await response.aread()
                raise make_error(response)
            async for frame in read_frames(response.aiter_raw()):
                if frame.event == "end":
                    return
                yield msgspec.json.decode(frame.data, type=Event)
        raise ServerUnavailable(f"the events of run {run_id} were cut off")

    # -- mail and control ---------------------------------------------------------------------------------------

    async def send(self, run_id: str, text: str, *, id: str | None = None) -> str:
        """Send a message to a run. Returns its id."""
        body = MessageRequest(text=text, id=id or new_run_id())
        return (await self._post(f"{_make_path(run_id)}/messages", body, MailReference, repeat=True)).id

    async def signal(self, run_id: str, name: str, payload: Any = None, *, id: str | None = None) -> str:
        """Send a signal to a run. Returns its id."""
        body = SignalRequest(name=name, payload=payload, id=id or new_run_id())
        return (await self._post(f"{_make_path(run_id)}/signals", body, MailReference, repeat=True)).id

    async def answer(self, run_id: str, call_id: str, answer: Answer, *, digest: str | None = None) -> None:
        """Answer a call that waits for a person. The server records who it was."""
        await self._post(f"{_make_path(run_id)}/answers", _make_answer(call_id, answer, digest), RunReference)

    async def cancel(self, run_id: str) -> None:
        """Cancel a run and its child runs."""
        await self._post(f"{_make_path(run_id)}/cancel", None, RunReference)

    async def requeue(self, run_id: str) -> None:
        """Leave a parked, failed or cancelled run to the workers, which resume it."""
        await self._post(f"{_make_path(run_id)}/resume", None, RunReference)

    async def fork(self, run_id: str, at_step: int, *, new_id: str | None = None) -> str:
        """Queue a new run that starts with the state of `run_id` after `at_step`."""
        body = ForkRequest(at_step=at_step, run_id=new_id)
        return (await self._post(f"{_make_path(run_id)}/fork", body, RunReference)).run_id

    # -- requests -----------------------------------------------------------------------------------------------

    async def _get(self, path: str, expected: type[T], query: Mapping[str, Any] | None = None) -> T:
        return await self._request("GET", path, expected, params=query, repeat=True)

    async def _post(
        self,
        path: str,
        body: Any,
        expected: type[T],
        headers: Mapping[str, str] | None = None,
        *,
        repeat: bool = False,
    ) -> T:
        content = None if body is None else msgspec.json.encode(body)
        sent = {**(headers or {}), **({} if content is None else {"content-type": "application/json"})}
        return await self._request("POST", path, expected, content=content, headers=sent, repeat=repeat)

    async def _request(self, method: str, path: str, expected: type[T], *, repeat: bool, **options: Any) -> T:
        response = await self._send(method, path, repeat=repeat, **options)
        return msgspec.json.decode(response.content, type=expected)

    async def _send(self, method: str, path: str, *, repeat: bool, **options: Any) -> httpx.Response:
        """Send a request. One that may be repeated is repeated while the server is not available, for some seconds."""
        pauses = iter(_PAUSES[:4] if repeat else ())
        while True:
            try:
                response = await self._http.request(method, path, **options)
                if not response.is_error:
                    return response
                raise make_error(response)
            except httpx.TransportError as exc:
                text = f"{self._http.base_url} does not answer: {type(exc).__name__}: {exc}"
                error = ServerUnavailable(text)
                error.__cause__ = exc
            except ServerUnavailable as exc:
                error = exc
            pause = next(pauses, None)
            if pause is None:
                raise error
            await asyncio.sleep(pause)


def _make_path(run_id: str) -> str:
    return f"runs/{quote(run_id, safe=':')}"


def _make_answer(call_id: str, answer: Answer, digest: str | None) -> AnswerRequest:
    if isinstance(answer, Approve):
        return ApproveRequest(call_id=call_id, digest=digest, arguments=answer.arguments, comment=answer.comment)
    if isinstance(answer, Deny):
        return DenyRequest(call_id=call_id, digest=digest, reason=answer.reason)
    return ValueRequest(call_id=call_id, digest=digest, value=answer.value)
