"""The page of one run: transcript, facts, actions."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.core.errors import DefinitionError
from holdfast.runtime.reading import summarize_run
from holdfast.runtime.transcript import read_record_waits
from holdfast.web.ui.live import Fragment, stream_fragments
from holdfast.web.ui.site import Site, get_principal
from holdfast.web.ui.views.explanation import explain_run
from holdfast.web.ui.views.formatting import utc_now
from holdfast.web.ui.views.journal import read_content, read_tail, read_window, search
from holdfast.web.ui.views.listing import count_pending
from holdfast.web.ui.views.related import read_related
from holdfast.web.ui.views.steps import Content, StepView
from holdfast.web.ui.views.tasks import list_tasks

#: What an action has said, by the name in the URL: text from elsewhere is never shown.
MESSAGES = {
    "approved": "Approved. The run continues as soon as a worker takes it.",
    "denied": "Denied. The model reads the reason.",
    "answered": "Answered. The run continues as soon as a worker takes it.",
    "cancelled": "The run is cancelled.",
    "cancelling": "The run is asked to stop; it ends at its next step.",
    "resumed": "The run is resumed in this process.",
    "unparked": "Unparked. A worker resumes the run.",
    "forked": "This is the fork. A worker starts it.",
    "sent": "Sent. The run reads the message before its next step.",
}

_RESUMABLE = (RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.PARKED, RunStatus.INTERRUPTED)


async def show_run(site: Site, request: Request) -> Response:
    """Show a run: the end of its transcript, or the part that the URL names."""
    record = await site.get_record(request)
    params = request.query_params
    query = params.get("q", "").strip()
    context = await read_head(site, request, record)
    context |= {"query": query, "said": MESSAGES.get(params.get("said", ""), "")}
    context["pending_count"] = await count_pending(site.store, get_principal(request))
    if query:
        hits = await search(site.store, record.run_id, query)
        return site.render(request, "run.html", **context, hits=hits, window=None)
    before, step = _read_number(params.get("before")), _read_number(params.get("step"))
    window = await read_window(site.store, record, before=before, step=step)
    return site.render(request, "run.html", **context, window=window, hits=[])


async def read_head(site: Site, request: Request, record: RunRecord) -> dict[str, Any]:
    """Return the context of everything but the transcript."""
    principal = get_principal(request)
    run = summarize_run(record)
    waits = () if record.is_terminal else read_record_waits(record)
    known_agent = record.agent_name in site.app.agents
    return {
        "run": run,
        "why": explain_run(run, waits, utc_now()),
        "tasks": list_tasks(record, waits),
        "related": await read_related(site.store, record, principal),
        "is_terminal": record.is_terminal,
        "is_live": not record.is_terminal,
        "can_answer": "answer" in principal.scopes,
        "can_control": "control" in principal.scopes,
        "can_resume": known_agent and run.status in _RESUMABLE,
        "can_fork": "start" in principal.scopes,
        "can_send": "send" in principal.scopes,
        "back": "run",
        "show_run": False,
    }


async def stream_run(site: Site, request: Request) -> Response:
    """Send the head of the page and the steps after entry `after` whenever the run has changed."""
    record = await site.get_record(request)
    updates = _RunUpdates(site, request, record.run_id, _read_number(request.query_params.get("after"), default=-1))
    return stream_fragments(site.store, updates.read)


class _RunUpdates:
    """What one reader of a run has, so that only changes are sent."""

    def __init__(self, site: Site, request: Request, run_id: str, after: int) -> None:
        self._site, self._request, self._run_id, self._after = site, request, run_id, after
        #: The steps that the reader has, by their anchors. `None`: not known yet.
        self._sent: dict[str, str] | None = None

    async def read(self) -> Fragment:
        record = await self._site.get_record(self._request)
        key = (record.next_seq, record.status, record.updated_at, record.owner_alive, record.cancel_requested)
        tail = await read_tail(self._site.store, record, self._after)
        head = await read_head(self._site, self._request, record)
        return Fragment(key, lambda: self._render(head, tail))

    def _render(self, head: dict[str, Any], tail: list[StepView]) -> str:
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
        )


async def show_content(site: Site, request: Request) -> Response:
    """Show one long text whole: as a page, or as the part of the page that takes the place of the cut one."""
    record = await site.get_record(request)
    seq, number = request.path_params["seq"], request.path_params["number"]
    text = await read_content(site.store, record.run_id, seq, number)
    content = Content(text=text, length=len(text), seq=seq, number=number)
    template = "content_part.html" if "part" in request.query_params else "content_page.html"
    code = "code" in request.query_params
    return site.render(request, template, content=content, run_id=record.run_id, code=code)


def _read_number(given: str | None, default: int | None = None) -> Any:
    if given is None:
        return default
    try:
        return int(given)
    except ValueError:
        raise DefinitionError(f"{given!r:.40} is not a number") from None
