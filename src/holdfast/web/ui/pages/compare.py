"""Compares results: side by side, with the differences of proposed files to the one that the reader picks."""

from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.errors import DefinitionError
from holdfast.runtime.reading import summarize_run
from holdfast.web.ui.site import Site, get_principal
from holdfast.web.ui.views.comparison import read_comparison


async def show_comparison(site: Site, request: Request) -> Response:
    """Show the results around a run. `pick` in the URL names one of them."""
    record = await site.get_record(request)
    comparison = await read_comparison(site.store, site.app, record, get_principal(request))
    name = request.query_params.get("pick", "")
    picked = comparison.find(name) if name else None
    if name and picked is None:
        raise DefinitionError(f"there is no result {name!r:.80} to pick: go back to the comparison")
    return site.render(
        request,
        "compare.html",
        run=summarize_run(record),
        comparison=comparison,
        picked=picked,
        files=comparison.list_files(picked),
    )
