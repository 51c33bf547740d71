"""Requests to the server: retries, errors, and the frames of event streams."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, TypeVar

import httpx
import msgspec

from holdfast.client.errors import ServerUnavailable, make_error
from holdfast.core.run.waiting import RunWaiting
from holdfast.web.errors import RequestError
from holdfast.web.wire import Unfinished

T = TypeVar("T")

#: The pauses between attempts to connect again. Then the last one, for as long as the caller waits.
PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0)
#: A stream is silent for 15 s at most: the server sends heartbeats.
STREAM_TIMEOUT = httpx.Timeout(10.0, read=45.0)
#: How many seconds the server waits for a result before it asks the client to ask again.
_RESULT_WAIT = 20


class Requests:
    """Sends requests over one HTTP client."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def get(self, path: str, expected: type[T], query: Mapping[str, Any] | None = None) -> T:
        """Read something."""
        return _decode(await self._send("GET", path, params=query, repeat=True), expected)

    async def get_when_ended(self, path: str, expected: type[T]) -> T:
        """Read a result, and ask again until there is one.

        Raises:
            RunWaiting: the run waits for a person, a signal or a result from outside.
        """
        while True:
            response = await self._send("GET", path, params={"wait": _RESULT_WAIT}, timeout=STREAM_TIMEOUT, repeat=True)
            if response.status_code == httpx.codes.OK:
                return _decode(response, expected)
            unfinished = _decode(response, Unfinished)
            if unfinished.calls:
                raise RunWaiting(unfinished.run_id, unfinished.calls)

    async def post(
        self,
        path: str,
        body: Any,
        expected: type[T],
        headers: Mapping[str, str] | None = None,
        *,
        repeat: bool = False,
    ) -> T:
        """Change something. With `repeat` the server takes a second request for the first."""
        content = None if body is None else msgspec.json.encode(body)
        sent = {**(headers or {}), **({} if content is None else {"content-type": "application/json"})}
        return _decode(await self._send("POST", path, content=content, headers=sent, repeat=repeat), expected)

    async def delete(self, path: str) -> None:
        """Remove something."""
        response = await self._send("DELETE", path, repeat=False)
        if response.status_code != httpx.codes.NO_CONTENT:  # of a proxy: nothing was removed
            raise make_error(response)

    async def _send(self, method: str, path: str, *, repeat: bool, **options: Any) -> httpx.Response:
        """Send a request. One that may be repeated is repeated while the server is not available, for some seconds."""
        pauses = iter(PAUSES[:4] if repeat else ())
        while True:
            try:
                response = await self._http.request(method, path, **options)
                if response.is_success:
                    return response
                raise make_error(response)
            except httpx.RequestError as exc:
                text = f"{self._http.base_url} does not answer: {type(exc).__name__}: {exc}"
                error = ServerUnavailable(text)
                error.__cause__ = exc
            except ServerUnavailable as exc:
                error = exc
            pause = next(pauses, None)
            if pause is None:
                raise error
            await asyncio.sleep(pause)


def _decode(response: httpx.Response, expected: type[T]) -> T:
    """Return the body of a response. Raises `RequestError` if another server has answered, such as a proxy."""
    try:
        return msgspec.json.decode(response.content, type=expected, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise RequestError(f"{response.request.url} does not answer as the API does: {exc}") from exc


class Frame(NamedTuple):
    """One event of the stream."""

    event: str
    data: str


async def read_frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[Frame]:
    """Yield the complete frames of a stream. Comments, and a frame that is cut off, are ignored."""
    event, data = "", list[str]()
    async for line in _read_lines(chunks):
        name, _, value = line.partition(":")
        if not line:
            if data:
                yield Frame(event, "\n".join(data))
            event, data = "", []
        elif name == "event":
            event = value.removeprefix(" ")
        elif name == "data":
            data.append(value.removeprefix(" "))


async def _read_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield lines as they are completed. The parts of a long line are joined once."""
    parts: list[bytes] = []
    async for chunk in chunks:
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            parts.append(line)
            yield b"".join(parts).removesuffix(b"\r").decode()
            parts.clear()
        parts.append(rest)
