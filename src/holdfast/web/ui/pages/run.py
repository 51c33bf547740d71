"""The page of one run: transcript, facts, actions."""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.core.errors import DefinitionError
from holdfast.runtime.attempts import Attempt, read_attempts
from holdfast.runtime.reading import summarize_run
from holdfast.runtime.transcript import read_record_waits
from holdfast.web.ui.site import Site, get_principal
from holdfast.web.ui.views.comparison import can_compare
from holdfast.web.ui.views.doubts import read_doubts
from holdfast.web.ui.views.explanation import explain_run
from holdfast.web.ui.views.formatting import utc_now
from holdfast.web.ui.views.journal import read_content, read_image, read_window, search
from holdfast.web.ui.views.listing import count_pending
from holdfast.web.ui.views.related import read_related
from holdfast.web.ui.views.steps import Content, StepView
from holdfast.web.ui.views.tasks import list_tasks
from holdfast.web.ui.views.timeline import Timeline, build_timeline

#: What an action has said, by the name in the URL: text from elsewhere is never shown.
MESSAGES = {
    "approved": "Approved. The run continues as soon as a worker takes it.",
    "denied": "Denied. The model reads the reason.",
    "answered": "Answered. The run continues as soon as a worker takes it.",
    "cancelled": "The run is cancelled.",
    "cancelling": "The run is asked to stop; it ends at its next step.",
    "resumed": "The run is resumed in this process.",
    "unparked": "Unparked. A worker resumes the run.",
    "started": "Queued. A worker starts the run.",
    "forked": "This is the fork. A worker starts it.",
    "sent": "Sent. The run reads the message before its next step.",
}

#: The look of an attempt by how it ended.
_ATTEMPT_CLASSES = {
    "": "running",
    "waited": "waiting",
    "stopped": "interrupted",
    "died": "failed",
    **{name: name for name in ("done", "failed", "cancelled", "parked")},
}

_RESUMABLE = (RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.PARKED, RunStatus.INTERRUPTED)


async def show_run(site: Site, request: Request) -> Response:
    """Show a run: the end of its transcript, or the part that the URL names."""
    record = await site.get_record(request)
    params = request.query_params
    query = params.get("q", "").strip()
    context = await read_head(site, request, record)
    context |= {"timeline": None, "query": query, "said": MESSAGES.get(params.get("said", ""), "")}
    context["pending_count"] = await count_pending(site.store, get_principal(request))
    if query:
        hits = await search(site.store, record.run_id, query)
        return site.render(request, "run.html", **context, hits=hits, window=None)
    before, step = read_number(params.get("before")), read_number(params.get("step"))
    window = await read_window(site.store, record, before=before, step=step)
    context["timeline"] = make_timeline(record, window.steps.steps, is_end=window.later is None)
    return site.render(request, "run.html", **context, window=window, hits=[])


def make_timeline(record: RunRecord, steps: Sequence[StepView], *, is_end: bool) -> Timeline | None:
    """Return the waterfall of these steps, which may be the last of the run."""
    waits = read_record_waits(record) if record.status is RunStatus.WAITING and is_end else ()
    waits_since = min((call.asked_at for call in waits), default=None)
    attempts = [each for each in read_attempts(record) if is_end or not _is_later(each, steps)]
    return build_timeline(steps, attempts=attempts, waits_since=waits_since, now=utc_now())


def _is_later(attempt: Attempt, steps: Sequence[StepView]) -> bool:
    """Whether the attempt began after these steps."""
    end = max((step.at for step in steps if step.at is not None), default=None)
    return attempt.began_at is not None and end is not None and attempt.began_at > end


async def read_head(site: Site, request: Request, record: RunRecord) -> dict[str, Any]:
    """Return the context of everything but the transcript."""
    principal = get_principal(request)
    run = summarize_run(record)
    waits = () if record.is_terminal else read_record_waits(record)
    related = await read_related(site.store, record, principal)
    known_agent = record.agent_name in site.app.agents
    return {
        "run": run,
        "why": explain_run(run, waits, utc_now()),
        "tasks": list_tasks(record, waits),
        "related": related,
        "can_compare": can_compare(record, len(related.forks), len(related.children)),
        "is_terminal": record.is_terminal,
        "is_live": not record.is_terminal,
        "can_answer": "answer" in principal.scopes,
        "can_control": "control" in principal.scopes,
        "can_resume": known_agent and run.status in _RESUMABLE,
        "can_fork": "start" in principal.scopes and not run.conversation,
        "doubts": await read_doubts(site.store, record) if "control" in principal.scopes else [],
        "attempts": read_attempts(record),
        "attempt_classes": _ATTEMPT_CLASSES,
        # Of a run without recorded attempts.
        "worker": record.owner,
        # Only the agent's code can begin a turn.
        "can_send": "send" in principal.scopes and (known_agent or not run.conversation),
        "back": "run",
        "show_run": False,
    }


async def show_content(site: Site, request: Request) -> Response:
    """Show one long text whole: as a page, or as the part of the page that takes the place of the cut one."""
    record = await site.get_record(request)
    seq, number = request.path_params["seq"], request.path_params["number"]
    text = await read_content(site.store, record.run_id, seq, number)
    content = Content(text=text, length=len(text), seq=seq, number=number)
    template = "content_part.html" if "part" in request.query_params else "content_page.html"
    code = "code" in request.query_params
    return site.render(request, template, content=content, run_id=record.run_id, code=code)


async def show_image(site: Site, request: Request) -> Response:
    """Return a picture of the transcript, of a type that a browser only draws."""
    record = await site.get_record(request)
    media_type, content = await read_image(
        site.store, record.run_id, request.path_params["seq"], request.path_params["number"]
    )
    return Response(content, media_type=media_type)


def read_number(given: str | None, default: int | None = None) -> Any:
    """Return the number in a URL.

    Raises:
        DefinitionError: it is none.
    """
    if given is None:
        return default
    try:
        return int(given)
    except ValueError:
        raise DefinitionError(f"{given!r:.40} is not a number") from None
