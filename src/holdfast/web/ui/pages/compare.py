"""Compares results: side by side, with the differences of proposed files to one of them. A person picks the best."""

from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.errors import DefinitionError
from holdfast.runtime.picks import record_pick
from holdfast.runtime.reading import summarize_run
from holdfast.web.ui.pages.actions import redirect
from holdfast.web.ui.pages.forms import read_form
from holdfast.web.ui.site import Site, get_principal
from holdfast.web.ui.views.comparison import Column, Comparison, read_comparison


async def show_comparison(site: Site, request: Request) -> Response:
    """Show the results around a run. `base` in the URL names the one that the others are compared with."""
    record = await site.get_record(request)
    principal = get_principal(request)
    comparison = await read_comparison(site.store, site.app, record, principal)
    picked = comparison.find(comparison.pick.result) if comparison.pick is not None else None
    name = request.query_params.get("base", "")
    base = _find_column(comparison, name) if name else picked
    return site.render(
        request,
        "compare.html",
        run=summarize_run(record),
        comparison=comparison,
        picked=picked,
        base_column=base,
        files=comparison.list_files(base),
        can_pick="answer" in principal.scopes,
    )


async def pick(site: Site, request: Request) -> Response:
    """Record which result the reader picks; none, if the form names none."""
    record = await site.get_record(request)
    name = (await read_form(request)).get("result", "")
    principal = get_principal(request)
    comparison = await read_comparison(site.store, site.app, record, principal)
    if name:
        _find_column(comparison, name)
    await record_pick(site.store, comparison.root, name, by=principal.caller_id or "local")
    return redirect(request, f"/runs/{record.run_id}/compare", "picked")


def _find_column(comparison: Comparison, name: str) -> Column:
    column = comparison.find(name)
    if column is None:
        raise DefinitionError(f"there is no result {name!r:.80}: go back to the comparison")
    return column
