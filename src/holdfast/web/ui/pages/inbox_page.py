"""The inbox: every call that waits for a person."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.run.waiting import WaitingCall
from holdfast.web.ui.live import Fragment, stream_fragments
from holdfast.web.ui.run_view.actions import read_tasks
from holdfast.web.ui.run_view.run_page import MESSAGES
from holdfast.web.ui.site import Site, get_principal

#: The oldest calls that the page shows.
_LIMIT = 50


async def show_inbox(site: Site, request: Request) -> Response:
    """Show what waits, oldest first."""
    calls = await _list_calls(site, request)
    said = MESSAGES.get(request.query_params.get("said", ""), "")
    return site.render(request, "inbox.html", said=said, **await _make_context(site, request, calls))


async def stream_inbox(site: Site, request: Request) -> Response:
    """Send the inbox whenever it has changed."""

    async def read() -> Fragment:
        calls = await _list_calls(site, request)
        context = await _make_context(site, request, calls)
        key = [(call.run_id, call.id) for call in calls]
        return Fragment(key, lambda: site.render_text(request, "inbox_live.html", **context))

    return stream_fragments(site.app.changes, get_principal(request), read)


async def _list_calls(site: Site, request: Request) -> list[WaitingCall]:
    principal = get_principal(request)
    if principal.run_id is not None:
        return [call for call in await site.app.pending() if call.run_id == principal.run_id]
    return await site.app.pending(caller=None if principal.sees_all else principal.caller_id)


async def _make_context(site: Site, request: Request, calls: list[WaitingCall]) -> dict[str, Any]:
    return {
        "section": "inbox",
        "tasks": await read_tasks(site.store, calls[:_LIMIT]),
        "total": len(calls),
        "pending_count": len(calls),
        "can_answer": "answer" in get_principal(request).scopes,
        "back": "inbox",
        "show_run": True,
    }
