"""The page of one run: head, steps, side column, calls in doubt, related runs."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.progress import AttemptRecord
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.core.run.info import FORK_LABEL, WORKFLOW_LOOP_NAME
from holdfast.core.run.status import AttemptEnd
from holdfast.fanout.responses import is_fanout
from holdfast.runtime.reading.formatting import utc_now
from holdfast.runtime.reading.run_summary import RunSummary, describe_run, describe_times, summarize_run
from holdfast.runtime.reading.run_views import read_attempts
from holdfast.runtime.reading.transcript import get_loop_name, read_record_waits
from holdfast.web.auth import Principal, list_visible
from holdfast.web.ui.needs import count_needs
from holdfast.web.ui.run_view.actions import redirect
from holdfast.web.ui.run_view.call_tree import MAX_SHOWN, build_tree
from holdfast.web.ui.run_view.run_outline import build_outline
from holdfast.web.ui.run_view.run_pauses import describe_waited, note_steps
from holdfast.web.ui.run_view.run_steps import Content, StepView
from holdfast.web.ui.run_view.run_timeline import (
    ALL,
    ZOOMS,
    Bar,
    BarKind,
    TimelineView,
    build_call_timeline,
    build_timeline,
)
from holdfast.web.ui.run_view.run_window import (
    read_content,
    read_image,
    read_number,
    read_outcome,
    read_window,
    search,
)
from holdfast.web.ui.site import Site, get_principal
from holdfast.web.ui.tasks import Doubt, DoubtTask, list_tasks, read_doubts
from holdfast.web.ui.untaken import find_untaken

_MIN_COMPARED = 2


_LIMIT = 50


class Related(msgspec.Struct, frozen=True, kw_only=True):
    """The nearest runs."""

    run_id: str
    parent: str | None
    #: The run that this one is a fork of.
    origin: str | None
    children: Sequence[RunSummary]
    forks: Sequence[RunSummary]


async def read_related(store: RunStore, record: RunRecord, principal: Principal) -> Related:
    """Read the runs around a run that exist for the principal."""

    children, forks = await asyncio.gather(
        list_visible(store, principal, limit=_LIMIT, parent=record.run_id),
        list_visible(store, principal, limit=_LIMIT, forked_from=record.run_id),
    )
    return Related(
        run_id=record.run_id,
        parent=record.parent_run_id,
        origin=summarize_run(record).forked_from,
        children=[summarize_run(each) for each in children.records[::-1]],
        forks=[summarize_run(each) for each in forks.records[::-1]],
    )


async def read_children(store: RunStore, related: Related, principal: Principal) -> Related:
    """Read the children again."""
    page = await list_visible(store, principal, limit=_LIMIT, parent=related.run_id)
    return msgspec.structs.replace(related, children=[summarize_run(each) for each in page.records[::-1]])


#: The look of an attempt by how it ended.
_ATTEMPT_CLASSES: dict[AttemptEnd | None, str] = {
    None: "running",
    AttemptEnd.DIED: "failed",
    **{end: end.value for end in AttemptEnd if end is not AttemptEnd.DIED},
}

_RESUMABLE = (RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.PARKED, RunStatus.INTERRUPTED)


async def show_run(site: Site, request: Request) -> Response:
    """Show a run: the end of its transcript, or the part that the URL names."""
    record = await site.get_record(request)
    params = request.query_params
    if is_fanout(record) and not params:  # its comparison is its page; "Steps" there leads back here
        return redirect(request, f"/runs/{record.run_id}/compare", "")
    query = params.get("q", "").strip()
    principal = get_principal(request)
    related, doubts = await read_related(site.store, record, principal), await read_doubts(site.store, record)
    common: dict[str, Any] = {"query": query}
    common["pending_count"] = await count_needs(site.store, principal)
    if query:
        head = make_head(site, principal, record, related, doubts)
        head |= make_body(head["run"], record, [], [], is_end=True)
        hits = await search(site.store, record.run_id, query)
        return site.render(request, "run.html", **head, **common, hits=hits, window=None, outcome=None)
    before, step = read_number(params.get("before")), read_number(params.get("step"))
    with_traces = "control" in principal.scopes
    window = await read_window(site.store, record, before=before, step=step, with_traces=with_traces)
    head = make_head(site, principal, record, related, doubts, window.answered)
    head["untaken"] = await find_untaken(site, principal, [head["run"]], utc_now())
    head["outcome"] = await read_outcome(site.store, window)
    head["progress"] = [*window.steps.transcript.progress.values()] if window.later is None else []
    view = read_view(request)
    head |= make_body(head["run"], record, window.steps.steps, related.children, is_end=window.later is None, view=view)
    return site.render(request, "run.html", **head, **common, window=window, hits=[])


class BodyView(msgspec.Struct, frozen=True):
    """What the reader has chosen: a part of the timeline, and the calls of a workflow as a list."""

    timeline: TimelineView = ALL
    #: `list`, `failed`; empty: the tree.
    show: str = ""
    #: The window of the transcript: `step` or `before`, as the URL has it.
    window: Mapping[str, str] = {}

    def to_url(self, **changes: Any) -> str:
        """Return the query string of the page with some parts changed; `window=None`: at its end."""
        chosen = self.timeline
        zoom = {} if chosen.zoom == 1 else {"zoom": chosen.zoom, "at": chosen.at}
        marks = {"scale": "true" if chosen.to_scale else "", "rows": "all" if chosen.all_rows else ""}
        parts = {**self.window, "show": self.show, **marks, **zoom, **changes}
        dropped = {"zoom", "at"} if parts.get("zoom") in (None, 1) else set()
        return "?" + urlencode(
            {name: value for name, value in parts.items() if value not in (None, "") and name not in dropped}
        )


def read_view(request: Request) -> BodyView:
    """Return what the URL says. What it cannot say is ignored."""
    params = request.query_params
    zoom, at, show = params.get("zoom", ""), params.get("at", ""), params.get("show", "")
    timeline = TimelineView(
        to_scale="scale" in params,
        zoom=int(zoom) if zoom in map(str, ZOOMS) else 1,
        at=float(at) if re.fullmatch(r"\d{1,3}(\.\d{1,2})?", at) else None,
        all_rows=params.get("rows") == "all",
    )
    window = {name: params[name] for name in ("step", "before") if name in params}
    return BodyView(timeline, show if show in ("list", "failed") else "", window)


def make_body(
    run: RunSummary,
    record: RunRecord,
    steps: Sequence[StepView],
    children: Sequence[RunSummary],
    *,
    is_end: bool,
    view: BodyView = BodyView(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """Return the context of the timeline, and of the outline or the tree of calls. The steps may be the last."""
    attempts = [each for each in read_attempts(record) if is_end or not _is_later(each, steps)]
    now = utc_now()
    body: dict[str, Any] = {
        "view": view,
        "is_end": is_end,
        "tree": None,
        "outline": None,
        "input": "",
        "max_shown": MAX_SHOWN,
        "zooms": ZOOMS,
        "notes": note_steps(steps, attempts, now),
    }
    if get_loop_name(record) == WORKFLOW_LOOP_NAME:
        tree = build_tree(steps, children)
        timeline = build_call_timeline(tree.groups, attempts=attempts, now=now, view=view.timeline)
        started = steps[0].parts if steps and steps[0].first_seq == 0 else []
        body["input"] = next((part.content.text for part in started if part.kind == "user" and part.content), "")
        return body | {"tree": tree.select(view.show), "all_calls": tree, "timeline": timeline}
    open_bar = _make_open_bar(record, steps, attempts, now) if is_end and (steps or not run.steps) else None
    timeline = build_timeline(
        steps, attempts=attempts, children=children, open_bar=open_bar, now=now, view=view.timeline
    )
    outline = build_outline(run, steps, view.window.get("step", "")) if steps else None
    return body | {"outline": outline, "timeline": timeline}


def _make_open_bar(
    record: RunRecord, steps: Sequence[StepView], attempts: Sequence[AttemptRecord], now: datetime
) -> Bar | None:
    """Return what the run does now: it works on a step, waits, or is parked."""
    kind: BarKind
    since: datetime | None
    attempt = attempts[-1] if attempts else None
    if record.status is RunStatus.WAITING:
        kind, since = "wait", min((call.asked_at for call in read_record_waits(record)), default=None)
    elif record.status is RunStatus.PARKED:
        kind, since = "parked", None if attempt is None else attempt.saved_at
    elif record.status is RunStatus.RUNNING and record.owner_alive and attempt is not None and attempt.end is None:
        ended = [step.at for step in steps if step.at is not None]
        kind, since = "now", max([*ended[-1:], *([attempt.began_at] if attempt.began_at else [])], default=None)
    else:
        return None
    return None if since is None else Bar(kind=kind, start=since, end=max(now, since))


def _is_later(attempt: AttemptRecord, steps: Sequence[StepView]) -> bool:
    """Whether the attempt began after these steps."""
    end = max((step.at for step in steps if step.at is not None), default=None)
    return attempt.began_at is not None and end is not None and attempt.began_at > end


def make_head(
    site: Site,
    principal: Principal,
    record: RunRecord,
    related: Related,
    doubts: Sequence[Doubt],
    answered: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Return the context of everything but the transcript. Calls that wait for a topic in `answered` need no person."""
    run = summarize_run(record)
    waits = () if record.is_terminal else read_record_waits(record)
    known_agent = record.agent_name in site.app.agents
    now, attempts = utc_now(), read_attempts(record)
    return {
        "run": run,
        "times": describe_times(run),
        "is_workflow": get_loop_name(record) == WORKFLOW_LOOP_NAME,
        "waited": describe_waited(run, attempts, now, is_terminal=record.is_terminal),
        "why": describe_run(run, waits, now),
        "tasks": list_tasks(record, [call for call in waits if call.topic not in answered]),
        "related": related,
        "can_compare": can_compare(record, len(related.forks), len(related.children)),
        "is_terminal": record.is_terminal,
        "is_live": not record.is_terminal,
        "can_answer": "answer" in principal.scopes,
        "can_control": "control" in principal.scopes,
        "can_resume": known_agent and run.status in _RESUMABLE,
        "can_request": True,
        "can_fork": "start" in principal.scopes and principal.run_id is None and not run.conversation,
        "doubt_task": DoubtTask(run=run, doubts=doubts) if doubts and "control" in principal.scopes else None,
        "attempts": attempts,
        "died": sum(attempt.end is AttemptEnd.DIED for attempt in attempts),
        "attempt_classes": _ATTEMPT_CLASSES,
        # Shown for a run without recorded attempts.
        "worker": record.owner,
        # Only the agent's code can begin a turn.
        "can_send": "send" in principal.scopes and (known_agent or not run.conversation),
        "back": "run",
        "show_run": False,
        "untaken": None,
        # The last events of each `map_items`.
        "progress": (),
    }


async def show_content(site: Site, request: Request) -> Response:
    """Show one long text whole: as a page, or as the part of the page that takes the place of the cut one."""
    record = await site.get_record(request)
    seq, number = (read_number(request.path_params[name]) for name in ("seq", "number"))
    text = await read_content(site.store, record.run_id, seq, number)
    content = Content(text=text, length=len(text), seq=seq, number=number)
    template = "content_part.html" if "part" in request.query_params else "content_page.html"
    code = "code" in request.query_params
    render = partial(site.render, request, template, content=content, run_id=record.run_id, code=code)
    return await asyncio.to_thread(render)  # the text may be long


async def show_image(site: Site, request: Request) -> Response:
    """Return a picture of the transcript, of a type that a browser only draws."""
    record = await site.get_record(request)
    seq, number = (read_number(request.path_params[name]) for name in ("seq", "number"))
    media_type, content = await read_image(site.store, record.run_id, seq, number)
    return Response(content, media_type=media_type)


def can_compare(record: RunRecord, forks: int, children: int) -> bool:
    """Whether there is more than one result to show."""
    return is_fanout(record) or forks > 0 or FORK_LABEL in record.labels or children >= _MIN_COMPARED
