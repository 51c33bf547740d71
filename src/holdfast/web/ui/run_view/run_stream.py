"""Live updates of the page of one run: its head, its new steps, and the text of the reply in progress."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast.app import App
from holdfast.checkpoint.record import RunRecord
from holdfast.core.run.info import WORKFLOW_LOOP_NAME
from holdfast.core.run.run_events import (
    ChildFinished,
    ChildStarted,
    DraftRetracted,
    ItemProgress,
    ReasoningDelta,
    ReplyAdded,
    TextDelta,
)
from holdfast.root_error import HoldfastError
from holdfast.runtime.reading.formatting import utc_now
from holdfast.runtime.reading.run_summary import summarize_run
from holdfast.runtime.reading.transcript import get_loop_name
from holdfast.runtime.streams.entry_events import EventCursor, get_incarnation
from holdfast.web.sse import EventStreamResponse, encode_html
from holdfast.web.ui.live import UPDATE_PAUSE
from holdfast.web.ui.run_view.run_page import make_body, make_head, read_children, read_related, read_view
from holdfast.web.ui.run_view.run_steps import StepView
from holdfast.web.ui.run_view.run_window import TranscriptWindow, read_number, read_tail, read_window
from holdfast.web.ui.site import Site, get_principal
from holdfast.web.ui.tasks import list_doubts
from holdfast.web.ui.untaken import find_untaken, waits_too_long

#: Times and ages are rendered again after this many seconds without an event.
_REFRESH_SECONDS = 20
#: After all events of an entry.
_LAST_INDEX = 999_999_999
#: Finished steps that the timeline may show.
_KEPT_STEPS = 30


async def stream_run(site: Site, request: Request) -> Response:
    """Send what has changed since the page was rendered. The steps up to the entry `after` no longer change."""
    record = await site.get_record(request)
    updates = RunUpdates(site, request, after=read_number(request.query_params.get("after"), default=-1))
    frames = generate_updates(updates, record, RunChanges(site.app, record))
    return EventStreamResponse(frames, expires_at=get_principal(request).expires_at)


class LiveUpdates(ABC):
    """Renders what has changed of one run, for one reader."""

    @abstractmethod
    async def begin(self, record: RunRecord) -> str:
        """Return the whole part that changes."""

    @abstractmethod
    async def render(self, changes: "RunChanges") -> str:
        """Return what has changed, as parts with their targets."""


async def generate_updates(updates: LiveUpdates, record: RunRecord, changes: "RunChanges") -> AsyncGenerator[bytes]:
    """Yield a frame whenever something has changed, until the run is gone."""
    collecting = asyncio.create_task(changes.collect())
    try:
        yield encode_html(await updates.begin(record))
        while True:
            await asyncio.sleep(UPDATE_PAUSE.total_seconds())
            await changes.wait()
            yield encode_html(await updates.render(changes))
    except HoldfastError:  # the run was removed, or the store is closed: the browser connects again
        return
    finally:
        collecting.cancel()


class RunChanges:
    """Collects the events of a run between two updates."""

    def __init__(self, app: App, record: RunRecord) -> None:
        end = EventCursor(get_incarnation(record.created_at), record.next_seq - 1, _LAST_INDEX)
        self._events = app.events(record.run_id, str(end))
        self._changed = asyncio.Event()
        #: The text of the reply in progress.
        self.draft = ""
        #: The journal or the record has changed. Child runs have begun or ended.
        self.has_entries = self.has_children = False

    async def collect(self) -> None:
        """Collect until the run has ended."""
        with suppress(HoldfastError):  # the next update meets it too
            async for event in self._events:
                if isinstance(event, TextDelta):
                    self.draft += event.text
                elif isinstance(event, DraftRetracted | ReplyAdded):
                    self.draft = ""
                self.has_entries = self.has_entries or not isinstance(event, TextDelta | ReasoningDelta)
                self.has_children = self.has_children or isinstance(event, ChildStarted | ChildFinished)
                self._changed.set()
        self.has_entries = True
        self._changed.set()

    async def wait(self) -> None:
        """Wait for a change, or until times and ages are to be rendered again."""
        try:
            async with asyncio.timeout(_REFRESH_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            self.has_entries = True
        if not (self.has_entries and self.has_children):  # an update takes one of them
            self._changed.clear()


class RunUpdates(LiveUpdates):
    """What one reader has, so that only changes are sent. After the first update each one reads the store once."""

    def __init__(self, site: Site, request: Request, *, after: int) -> None:
        self._site, self._request, self._after = site, request, after
        self._principal = get_principal(request)
        self._key: tuple[Any, ...] | None = None
        self._view, self._with_traces = read_view(request), "control" in self._principal.scopes
        self._steps: list[StepView] = []
        #: As it was read last.
        self._record: RunRecord | None = None
        #: The entry that ends the last finished step.
        self._last_step_seq = -1
        #: The steps that the reader has, by their anchors.
        self._sent: dict[str, str] = {}
        self._progress: dict[str, ItemProgress] = {}

    async def begin(self, record: RunRecord) -> str:
        """Return the whole part that changes."""
        self._related = await read_related(self._site.store, record, self._principal)
        self._untaken = await find_untaken(self._site, self._principal, [summarize_run(record)], utc_now())
        window = await read_window(self._site.store, record, with_traces=self._with_traces)
        return self._render_window(window, replace_all=True)

    async def render(self, changes: RunChanges) -> str:
        """Return what has changed, as parts with their targets."""
        if changes.has_children:
            changes.has_children, self._key = False, None
            self._related = await read_children(self._site.store, self._related, self._principal)
        elif changes.has_entries:
            changes.has_entries = False
            window = await self._read_window()
            if window.key != self._key:
                return self._render_window(window, draft=changes.draft)
        return self._site.render_text(self._request, "draft.html", draft=changes.draft)

    async def _read_window(self) -> TranscriptWindow:
        """Read what follows the last finished step. Of a workflow the window: its calls end in any order."""
        if self._record is not None and get_loop_name(self._record) == WORKFLOW_LOOP_NAME:
            return await read_window(self._site.store, self._record, with_traces=self._with_traces)
        run_id = self._request.path_params["run_id"]
        return await read_tail(self._site.store, run_id, self._last_step_seq, with_traces=self._with_traces)

    def _render_window(self, window: TranscriptWindow, *, replace_all: bool = False, draft: str = "") -> str:
        record, steps = window.record, window.steps
        self._key, self._last_step_seq, self._record = window.key, steps.last_step_seq, record
        self._principal.check_visible(record.run_id, record.caller_id)
        numbers = {step.number for step in steps.steps}
        finished = [step for step in self._steps if step.finished and step.number not in numbers]
        self._steps = [*finished, *steps.steps][-_KEPT_STEPS:]
        doubts = list_doubts(record, steps.transcript)
        head = make_head(self._site, self._principal, record, self._related, doubts, window.answered)
        head["outcome"] = steps.outcome
        self._progress |= steps.transcript.progress
        head["progress"] = [*self._progress.values()]
        if self._untaken is not None and waits_too_long(head["run"], utc_now()):
            head["untaken"] = self._untaken
        shown = steps.steps if head["is_workflow"] else self._steps
        head |= make_body(head["run"], record, shown, self._related.children, is_end=True, view=self._view)
        tail = [step for step in steps.steps if step.first_seq > self._after and not head["is_workflow"]]
        return self._render_changes(head, tail, draft, replace_all=replace_all)

    def _render_changes(self, head: dict[str, Any], tail: list[StepView], draft: str, *, replace_all: bool) -> str:
        rendered = {step.anchor: self._site.render_text(self._request, "step.html", **head, step=step) for step in tail}
        known = self._sent
        changed = {} if replace_all else {name: html for name, html in rendered.items() if known.get(name) != html}
        self._sent = known | rendered
        return self._site.render_text(
            self._request,
            "run_live.html",
            **head,
            replace_all=replace_all,
            rendered=rendered,
            changed=changed,
            known=known,
            draft=draft,
        )
