"""Live updates: parts of a page as server-sent events, rendered again when the store has changed."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple

from holdfast.runtime.changes import ChangeSignal
from holdfast.web.auth import Principal
from holdfast.web.sse import EventStreamResponse, encode_html

#: At most one update in this time.
UPDATE_PAUSE = timedelta(milliseconds=250)
#: Texts such as "since 2 h" are rendered again after this many looks without a change.
_REFRESH_AFTER = 20


class Fragment(NamedTuple):
    """A part of a page at one moment."""

    #: Equal if the part has not changed.
    key: Any
    html: Callable[[], str]


def stream_fragments(
    changes: ChangeSignal, principal: Principal, read: Callable[[], Awaitable[Fragment | None]]
) -> EventStreamResponse:
    """Send a fragment whenever it has changed, until the reader leaves. `read` returns `None` at the end."""
    return EventStreamResponse(_generate(changes, read), expires_at=principal.expires_at)


async def _generate(changes: ChangeSignal, read: Callable[[], Awaitable[Fragment | None]]) -> AsyncGenerator[bytes]:
    last: Any = None
    unchanged = 0
    with changes.listen() as changed:
        while (fragment := await read()) is not None:
            if fragment.key != last or unchanged >= _REFRESH_AFTER:
                last, unchanged = fragment.key, 0
                yield encode_html(fragment.html())
            unchanged += 1
            await asyncio.sleep(UPDATE_PAUSE.total_seconds())
            await changed.wait()  # or for the time to poll: a change of a run's steps is not notified
