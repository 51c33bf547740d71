"""The fleet: workers, the queue, schedules, budgets, and the last day."""

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.batteries.schedule import JobNotFound
from holdfast.core.errors import DefinitionError
from holdfast.web.ui.live import Fragment, stream_fragments
from holdfast.web.ui.pages.forms import read_form
from holdfast.web.ui.pages.new_run import can_start
from holdfast.web.ui.site import Site, get_principal
from holdfast.web.ui.views.batteries import Batteries, can_see_job, read_batteries
from holdfast.web.ui.views.fleet import read_fleet
from holdfast.web.ui.views.formatting import utc_now
from holdfast.web.ui.views.listing import count_pending

#: A live page reads schedules and budgets again after this many seconds: they are in tables of their own.
_BATTERIES_INTERVAL = 5.0


async def show_fleet(site: Site, request: Request) -> Response:
    """Show the fleet."""
    return site.render(request, "fleet.html", **await _make_context(site, request, _BatteriesReader(site, request)))


async def stream_fleet(site: Site, request: Request) -> Response:
    """Send the fleet whenever it has changed."""
    batteries = _BatteriesReader(site, request)

    async def read() -> Fragment:
        context = await _make_context(site, request, batteries)
        key = (context["fleet"], context["batteries"])
        return Fragment(key, lambda: site.render_text(request, "fleet_live.html", **context))

    return stream_fragments(site.store, read)


async def run_job(site: Site, request: Request) -> Response:
    """Submit an extra run of a job, and show it."""
    principal = get_principal(request)
    name = (await read_form(request)).get("job", "")
    if site.schedule is None or not can_start(site, principal):
        raise DefinitionError("no job can be run here: the page needs an App with agents, and its schedule")
    if not any(job.name == name and can_see_job(principal, job) for job in await site.schedule.jobs()):
        raise JobNotFound(name)
    run_id = await site.schedule.run_now(name)
    return RedirectResponse(f"{request.scope.get('root_path', '')}/runs/{run_id}?said=started", status_code=303)


class _BatteriesReader:
    """Reads schedules and budgets now and then."""

    def __init__(self, site: Site, request: Request) -> None:
        self._site, self._principal = site, get_principal(request)
        self._latest: Batteries | None = None
        self._read_at = 0.0

    async def read(self) -> Batteries:
        if self._latest is None or time.monotonic() - self._read_at >= _BATTERIES_INTERVAL:
            self._latest = await read_batteries(self._site.app, self._site.schedule, self._principal)
            self._read_at = time.monotonic()
        return self._latest


async def _make_context(site: Site, request: Request, batteries: _BatteriesReader) -> dict[str, Any]:
    principal = get_principal(request)
    return {
        "section": "fleet",
        "fleet": await read_fleet(site.store, principal, utc_now()),
        "batteries": await batteries.read(),
        "can_start": can_start(site, principal),
        "pending_count": await count_pending(site.store, principal),
    }
