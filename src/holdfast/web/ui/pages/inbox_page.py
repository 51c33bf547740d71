"""The inbox: all that needs a person. Calls in doubt, approvals, questions, and parked runs by their reason."""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.record import RunRecord
from holdfast.core.errors import DefinitionError
from holdfast.core.run.waiting import Approve, WaitingCall
from holdfast.root_error import HoldfastError
from holdfast.runtime.reading.run_summary import summarize_run
from holdfast.web.auth import check_decider, find_visible
from holdfast.web.ui.live import Fragment, stream_fragments
from holdfast.web.ui.needs import Needs, read_needs
from holdfast.web.ui.run_view.actions import VIA, parse_json, read_form
from holdfast.web.ui.site import Site, get_principal
from holdfast.web.ui.tasks import DoubtTask, WaitingTask, read_doubts, read_task

#: The oldest calls that each group shows.
_LIMIT = 50
#: Calls that are approved together.
_MAX_APPROVALS = 200


async def show_inbox(site: Site, request: Request) -> Response:
    """Show what needs a person, the most dangerous group first."""
    needs = await read_needs(site.store, get_principal(request))
    return site.render(request, "inbox.html", **await _make_context(site, request, needs))


async def stream_inbox(site: Site, request: Request) -> Response:
    """Send the inbox whenever it has changed."""
    known: dict[str, Any] = {}

    async def read() -> Fragment:
        nonlocal known
        needs = await read_needs(site.store, get_principal(request))
        if not known or known["needs"].key != needs.key:
            known = await _make_context(site, request, needs)
        return Fragment(needs.key, lambda: site.render_text(request, "inbox_live.html", **known))

    return stream_fragments(site.app.changes, get_principal(request), read)


async def _make_context(site: Site, request: Request, needs: Needs) -> dict[str, Any]:
    principal = get_principal(request)
    doubts = [
        DoubtTask(run=summarize_run(record), doubts=await read_doubts(site.store, record))
        for record in needs.doubts[:_LIMIT]
    ]
    return {
        "section": "inbox",
        "needs": needs,
        "doubt_tasks": [task for task in doubts if task.doubts],
        "approvals": await _read_tasks(site, needs.approvals),
        "questions": await _read_tasks(site, needs.questions),
        "pending_count": needs.label,
        "own_approvals": sum(principal.may_decide(call.audience) for _, call in needs.approvals),
        "can_answer": "answer" in principal.scopes,
        "can_control": "control" in principal.scopes,
        "back": "inbox",
        "show_run": True,
    }


async def _read_tasks(site: Site, calls: Sequence[tuple[RunRecord, WaitingCall]]) -> list[WaitingTask]:
    tasks = [await read_task(site.store, record, call) for record, call in calls[:_LIMIT]]
    return [task for task in tasks if task is not None]


class Asked(msgspec.Struct, frozen=True):
    """One call as the preview has shown it."""

    run_id: str
    call_id: str
    digest: str


async def preview_approvals(site: Site, request: Request) -> Response:
    """Show the approvals of one tool, or all, and ask."""
    principal = get_principal(request)
    needs = await read_needs(site.store, principal)
    tool = request.query_params.get("tool", "")
    own = (call for _, call in needs.approvals if principal.may_decide(call.audience))
    calls = [call for call in own if not tool or call.tool == tool][:_MAX_APPROVALS]
    asked = [msgspec.json.encode(Asked(call.run_id, call.call_id, call.digest)).decode() for call in calls]
    pairs = list(zip(calls, asked, strict=True))
    return site.render(request, "approve.html", section="inbox", calls=pairs, tool=tool, pending_count=needs.label)


async def approve(site: Site, request: Request) -> Response:
    """Approve the ticked calls of the preview, each with the arguments that it has shown."""
    form = await read_form(request)
    principal = get_principal(request)
    done, refused = 0, list[str]()
    for name, text in form.items():
        if not name.startswith("tick-"):
            continue
        asked = parse_json(text, "the form is not one of the page", Asked)
        try:
            await find_visible(site.store, principal, asked.run_id)
            by = principal.caller_id or "local"
            digest = await check_decider(site.store, principal, asked.run_id, asked.call_id, asked.digest)
            await site.app.answer(asked.run_id, asked.call_id, Approve(), by=by, via=VIA, digest=digest)
            done += 1
        except HoldfastError as exc:
            refused.append(str(exc))
    if not done and not refused:
        raise DefinitionError("no call is ticked")
    return site.render(request, "approved.html", section="inbox", done=done, refused=refused)
