"""The runs list."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.errors import DefinitionError
from holdfast.runtime.conversations import CONVERSATION_LABEL
from holdfast.runtime.reading.formatting import utc_now
from holdfast.web.ui.live import Fragment, stream_fragments
from holdfast.web.ui.pages.bulk_page import ACTIONS
from holdfast.web.ui.pages.new_run_page import can_start
from holdfast.web.ui.pages.run_filter import STATUS_CHOICES, RunsFilter, parse_filter
from holdfast.web.ui.pages.run_listing import RunRows, count_statuses, read_rows
from holdfast.web.ui.site import Site, count_pending, get_principal


async def show_runs(site: Site, request: Request) -> Response:
    """Show a page of the list. A filter that is not valid is shown with its error."""
    try:
        context = await read_list(site, request)
    except DefinitionError as exc:
        wanted = RunsFilter(text=request.query_params.get("q", ""))
        context = {"filter": wanted, "page": RunRows(rows=[], cursor=None), "counts": None, "error": str(exc)}
        context["section"] = "runs"
    pending = await count_pending(site.store, get_principal(request))
    context["can_control"] = "control" in get_principal(request).scopes
    context["can_start"] = can_start(site, get_principal(request))
    status = 422 if context.get("error") else 200
    return site.render(request, "runs.html", status=status, **_COMMON, pending_count=pending, **context)


async def stream_runs(site: Site, request: Request) -> Response:
    """Send the list whenever it has changed."""
    principal = get_principal(request)

    async def read() -> Fragment:
        context = await read_list(site, request)
        pending = await count_pending(site.store, principal)
        key = [
            [(row.run.run_id, row.run.status, row.run.updated_at) for row in context["page"].rows],
            context["counts"],
            pending,
        ]
        return Fragment(
            key,
            lambda: site.render_text(request, "runs_live.html", **_COMMON, **context | {"pending_count": pending}),
        )

    return stream_fragments(site.store, read)


async def read_list(site: Site, request: Request) -> dict[str, Any]:
    """Return the context of the part of the page that changes.

    Raises:
        DefinitionError: the filter is not valid. InvalidCursor: the cursor is not.
    """
    now, params, principal = utc_now(), request.query_params, get_principal(request)
    wanted = parse_filter(params.get("q", ""), params.get("status", ""), now)
    cursor = params.get("cursor") or None
    page = await read_rows(site.store, wanted, principal, now, cursor)
    counts = await count_statuses(site.store, wanted, principal)
    return {
        "filter": wanted,
        "page": page,
        "counts": counts,
        "cursor": cursor,
        "error": "",
        "section": "conversations" if wanted.labels.items() >= CONVERSATION_LABEL.items() else "runs",
    }


_COMMON = {"statuses": STATUS_CHOICES, "bulk_actions": tuple(ACTIONS)}
