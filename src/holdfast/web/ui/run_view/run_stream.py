"""Live updates of the page of one run: its head, its new steps, and the text of the reply in progress."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from holdfast.app import App
from holdfast.checkpoint.record import RunRecord
from holdfast.core.run.run_events import DraftRetracted, ReplyAdded, TextDelta
from holdfast.root_error import HoldfastError
from holdfast.runtime.streams.entry_events import Cursor, get_incarnation
from holdfast.web.ui.live import EVENT_STREAM_HEADERS, UPDATE_PAUSE, format_event
from holdfast.web.ui.run_view.run_page import make_timeline, read_head, read_number
from holdfast.web.ui.run_view.run_steps import StepView
from holdfast.web.ui.run_view.run_window import read_window
from holdfast.web.ui.site import Site

#: Times and ages are rendered again after this many seconds without an event.
_REFRESH_SECONDS = 20
#: After all events of an entry.
_LAST_INDEX = 999_999_999


async def stream_run(site: Site, request: Request) -> Response:
    """Send what has changed since the page was rendered. The steps up to the entry `after` do not change any more."""
    record = await site.get_record(request)
    after = read_number(request.query_params.get("after"), default=-1)
    updates = _Updates(site, request, after)
    return StreamingResponse(
        _generate(updates, _Feed(site.app, record)), media_type="text/event-stream", headers=EVENT_STREAM_HEADERS
    )


async def _generate(updates: "_Updates", feed: "_Feed") -> AsyncIterator[str]:
    collecting = asyncio.create_task(feed.collect())
    try:
        while True:
            feed.changed.clear()
            yield format_event(await updates.render(feed.draft))
            await asyncio.sleep(UPDATE_PAUSE.total_seconds())
            with suppress(TimeoutError):
                async with asyncio.timeout(_REFRESH_SECONDS):
                    await feed.changed.wait()
    except HoldfastError:  # the run was removed, or the store is closed: the browser connects again
        return
    finally:
        collecting.cancel()


class _Feed:
    """Collects the events of a run between two updates."""

    def __init__(self, app: App, record: RunRecord) -> None:
        end = Cursor(get_incarnation(record.created_at), record.next_seq - 1, _LAST_INDEX)
        self._events = app.events(record.run_id, str(end))
        self.changed = asyncio.Event()
        #: The text of the reply in progress.
        self.draft = ""

    async def collect(self) -> None:
        """Collect until the run has ended."""
        with suppress(HoldfastError):  # the next update meets it too
            async for event in self._events:
                if isinstance(event, TextDelta):
                    self.draft += event.text
                elif isinstance(event, DraftRetracted | ReplyAdded):
                    self.draft = ""
                self.changed.set()
        self.changed.set()


class _Updates:
    """What one reader has, so that only changes are sent."""

    def __init__(self, site: Site, request: Request, after: int) -> None:
        self._site, self._request, self._after = site, request, after
        self._key: tuple[Any, ...] | None = None
        #: The steps that the reader has, by their anchors. `None`: not known yet.
        self._sent: dict[str, str] | None = None

    async def render(self, draft: str) -> str:
        """Return what has changed, as parts with their targets."""
        record = await self._site.get_record(self._request)
        key = (record.next_seq, record.status, record.updated_at, record.owner_alive, record.cancel_requested)
        if key == self._key:
            return self._site.render_text(self._request, "draft.html", draft=draft)
        self._key = key
        window = await read_window(self._site.store, record)
        head = await read_head(self._site, self._request, record)
        head["timeline"] = make_timeline(record, window.steps.steps, is_end=True)
        tail = [step for step in window.steps.steps if step.first_seq > self._after]
        return self._render_changes(head, tail, draft)

    def _render_changes(self, head: dict[str, Any], tail: list[StepView], draft: str) -> str:
        rendered = {step.anchor: self._site.render_text(self._request, "step.html", **head, step=step) for step in tail}
        known, self._sent = self._sent, rendered
        changed = {} if known is None else {name: html for name, html in rendered.items() if known.get(name) != html}
        return self._site.render_text(
            self._request,
            "run_live.html",
            **head,
            replace_all=known is None,
            rendered=rendered,
            changed=changed,
            known=known or {},
            draft=draft,
        )
