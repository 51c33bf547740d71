"""One action on many runs: a preview of those that a filter finds, then the action on exactly these."""

from collections.abc import Sequence
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.errors import RunNotFound
from holdfast.core.errors import DefinitionError
from holdfast.root_error import HoldfastError
from holdfast.runtime.operations.bulk_actions import BULK_ACTIONS, BulkAction
from holdfast.runtime.reading.formatting import utc_now
from holdfast.web.auth import find_visible
from holdfast.web.ui.needs import count_needs
from holdfast.web.ui.pages.run_filter import RunsFilter, parse_filter
from holdfast.web.ui.pages.runs_page import ListedRun, make_row, read_rows
from holdfast.web.ui.run_view.actions import read_form
from holdfast.web.ui.site import Site, get_principal

#: Runs that one action takes.
MAX_RUNS = 500


async def preview(site: Site, request: Request) -> Response:
    """Show the runs that the action would take, and ask."""
    params = request.query_params
    name = params.get("action", "")
    action = _get_action(name)
    wanted = parse_filter(params.get("q", ""), params.get("status", ""), utc_now())
    ticked = params.getlist("id")[:MAX_RUNS]
    found = await _read_rows(site, request, ticked) if ticked else await _list_rows(site, request, wanted)
    rows = [row for row in found if row.run.status in action.statuses][:MAX_RUNS]
    pending = await count_needs(site.store, get_principal(request))
    return site.render(
        request, "bulk.html", name=name, action=action, filter=wanted, rows=rows, limit=MAX_RUNS, pending_count=pending
    )


async def apply(site: Site, request: Request) -> Response:
    """Do it to the runs of the preview, and say what was refused."""
    form = await read_form(request)
    action = _get_action(form.get("action", ""))
    done, refused = 0, list[str]()
    for run_id in _list_run_ids(form)[:MAX_RUNS]:
        try:
            await find_visible(site.store, get_principal(request), run_id)
            await action.apply(site.app, run_id)
            done += 1
        except HoldfastError as exc:
            refused.append(str(exc))
    return site.render(request, "bulk_done.html", action=action, done=done, refused=refused)


def _list_run_ids(form: dict[str, str]) -> list[str]:
    """Return the runs of a form: all of a preview, or those of the groups and rows that were ticked."""
    ticked = [form.get(f"runs-{name.removeprefix('tick-')}", "") for name in form if name.startswith("tick-")]
    return " ".join([form.get("runs", ""), *ticked]).split()


async def _list_rows(site: Site, request: Request, wanted: RunsFilter) -> list[ListedRun]:
    rows: list[ListedRun] = []
    cursor: str | None = None
    while len(rows) < 5 * MAX_RUNS:
        page = await read_rows(site.store, wanted, get_principal(request), utc_now(), cursor)
        rows += page.rows
        cursor = page.cursor
        if cursor is None:
            break
    return rows


async def _read_rows(site: Site, request: Request, run_ids: Sequence[str]) -> list[ListedRun]:
    """Return the lines of these runs. One that is gone is left out."""
    rows: list[ListedRun] = []
    for run_id in dict.fromkeys(run_ids):
        with suppress(RunNotFound):
            rows.append(make_row(await find_visible(site.store, get_principal(request), run_id), utc_now()))
    return rows


def _get_action(name: str) -> BulkAction:
    if name not in BULK_ACTIONS:
        raise DefinitionError(f"the action is {name!r:.40}: use {', '.join(BULK_ACTIONS)}")
    return BULK_ACTIONS[name]
