"""The fleet: workers, the queue, and the last day."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast.web.ui.live import Fragment, stream_fragments
from holdfast.web.ui.site import Site, get_principal
from holdfast.web.ui.views.fleet import read_fleet
from holdfast.web.ui.views.formatting import utc_now
from holdfast.web.ui.views.listing import count_pending


async def show_fleet(site: Site, request: Request) -> Response:
    """Show the fleet."""
    return site.render(request, "fleet.html", **await _make_context(site, request))


async def stream_fleet(site: Site, request: Request) -> Response:
    """Send the fleet whenever it has changed."""

    async def read() -> Fragment:
        context = await _make_context(site, request)
        return Fragment(context["fleet"], lambda: site.render_text(request, "fleet_live.html", **context))

    return stream_fragments(site.store, read)


async def _make_context(site: Site, request: Request) -> dict[str, Any]:
    principal = get_principal(request)
    fleet = await read_fleet(site.store, principal, utc_now())
    pending = await count_pending(site.store, principal)
    return {"section": "fleet", "fleet": fleet, "pending_count": pending}
