"""Server-sent events: one frame for each event, with an id if it is durable."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.clock import CLOCK
from holdfast.core.json_value import lower_durations
from holdfast.core.run.run_events import Event
from holdfast.root_error import HoldfastError

log = logging.getLogger("holdfast.web")

#: Shorter than the idle timeout of common proxies.
HEARTBEAT_INTERVAL = timedelta(seconds=15)
#: A browser connects again after this many milliseconds.
_FIRST_FRAME = b"retry: 1000\n\n"
_HEARTBEAT_FRAME = b": heartbeat\n\n"
#: The last frame: the run has ended. A stream that ends without it was cut off.
END_FRAME = b"event: end\ndata: {}\n\n"
#: Proxies pass each event on at once.
HEADERS = {"x-accel-buffering": "no"}


def encode_event(event: Event) -> bytes:
    """Return the frame of an event. JSON has no raw line breaks, so nothing in the event can end its frame."""
    cursor = b"" if event.cursor is None else b"id: " + event.cursor.encode() + b"\n"
    return cursor + b"event: " + event.type.encode() + b"\ndata: " + encode_json(event) + b"\n\n"


def encode_json(value: Any) -> bytes:
    """Encode as JSON, durations in seconds. Half surrogate pairs, which a model may cut in its deltas, become `?`."""
    plain = lower_durations(value)
    try:
        return msgspec.json.encode(plain)
    except UnicodeEncodeError:
        return msgspec.json.encode(_replace_surrogates(plain))


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_surrogates(item) for item in value]
    return value


async def encode_events(events: AsyncGenerator[Event], first: Iterable[Event] = ()) -> AsyncGenerator[bytes]:
    """Return the frames of a run's events, beginning with the `first`, which were read from `events` before.

    An error ends them without the last frame: the client connects again.
    """
    try:
        async with aclosing(events):
            yield _FIRST_FRAME
            for event in first:
                yield encode_event(event)
            async for event in events:
                yield encode_event(event)
    except HoldfastError as exc:  # such as a store that does not answer, or a reader that is too slow
        log.info("an event stream was cut off: %s", exc)
        return
    yield END_FRAME


def encode_html(html: str) -> bytes:
    """Return the frame of a part of a page, which htmx swaps into it."""
    lines = "\n".join(f"data: {line}" for line in html.splitlines())
    return f"{lines}\n\n".encode(errors="replace")


class EventStreamResponse(Response):
    """Sends frames until they end, the client leaves or its token expires. That ends nothing but this response."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        *,
        expires_at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send `frames`, at the longest until `expires_at`."""
        super().__init__(headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._frames, self._expires_at = frames, expires_at

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        tasks = [
            asyncio.create_task(self._send_frames(send)),
            asyncio.create_task(self._send_heartbeats(send)),
            asyncio.create_task(_wait_for_disconnect(receive)),
        ]
        try:
            ended, _ = await asyncio.wait(tasks, timeout=self._seconds_left(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            errors = await asyncio.gather(*tasks, return_exceptions=True)
        if not ended:  # the token has expired
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        for error in errors:
            if isinstance(error, Exception) and not isinstance(error, OSError):
                raise error

    def _seconds_left(self) -> float | None:
        if self._expires_at is None:
            return None
        return max(0.0, (self._expires_at - CLOCK.get().now()).total_seconds())

    async def _send_frames(self, send: Send) -> None:
        async with aclosing(self._frames) as frames:
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_heartbeats(self, send: Send) -> None:
        # A frame is one message, so a heartbeat cannot come between the parts of another frame.
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL.total_seconds())
            await send({"type": "http.response.body", "body": _HEARTBEAT_FRAME, "more_body": True})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
