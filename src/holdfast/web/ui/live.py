"""Live updates: parts of a page as server-sent events, rendered again when the store has changed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple

from starlette.responses import StreamingResponse

from holdfast.checkpoint.store import RunStore

#: A change of a run's steps is not notified: look that often.
_POLL_INTERVAL = timedelta(seconds=1)
#: At most one update in this time.
UPDATE_PAUSE = timedelta(milliseconds=250)
#: Texts such as "since 2 h" are rendered again after this many looks without a change; that also keeps proxies from
#: closing the connection.
_REFRESH_AFTER = 20


#: Proxies pass each event on at once.
EVENT_STREAM_HEADERS = {"x-accel-buffering": "no"}


class Fragment(NamedTuple):
    """A part of a page at one moment."""

    #: Equal if the part has not changed.
    key: Any
    html: Callable[[], str]


def stream_fragments(store: RunStore, read: Callable[[], Awaitable[Fragment | None]]) -> StreamingResponse:
    """Send a fragment whenever it has changed, until the reader leaves. `read` returns `None` at the end."""
    return StreamingResponse(
        _generate(store, read),
        media_type="text/event-stream",
        headers=EVENT_STREAM_HEADERS,
    )


async def _generate(store: RunStore, read: Callable[[], Awaitable[Fragment | None]]) -> AsyncIterator[str]:
    last: Any = None
    unchanged = 0
    while (fragment := await read()) is not None:
        if fragment.key != last or unchanged >= _REFRESH_AFTER:
            last, unchanged = fragment.key, 0
            yield format_event(fragment.html())
        unchanged += 1
        await asyncio.sleep(UPDATE_PAUSE.total_seconds())
        await store.wait_for_change(_POLL_INTERVAL)


def format_event(html: str) -> str:
    """Return an unnamed event. htmx swaps its data into the page."""
    lines = "\n".join(f"data: {line}" for line in html.splitlines())
    return f"{lines}\n\n"
