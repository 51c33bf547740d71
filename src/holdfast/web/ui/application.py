"""The page as an ASGI application."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope as ConnectionScope

from holdfast.app import App
from holdfast.web.auth import Authorize, Deciders, Scope
from holdfast.web.errors import NotAuthenticated, RequestError
from holdfast.web.kill_switch import KillSwitch
from holdfast.web.security import LinkLogin, WebApplication
from holdfast.web.ui.pages import (
    agents_page,
    bulk_page,
    compare_page,
    conversation_page,
    fleet_page,
    inbox_page,
    limits_page,
    new_run_page,
    runs_page,
    saved_filters,
)
from holdfast.web.ui.run_view import actions, fork_form, run_export, run_page, run_request, run_stream
from holdfast.web.ui.site import Handler, Site, make_endpoint

_STATIC = Path(__file__).parent / "static"


def make_ui(
    app: App,
    *,
    authorize: Authorize | None = None,
    login: LinkLogin | None = None,
    deciders: Deciders | None = None,
) -> Starlette:
    """Return the page of an App as an ASGI application, which may be mounted under any path.

    Served alone it opens the App when the server starts. Where it is mounted, the host opens the App.

    Args:
        authorize: returns the sender of a request, or `None`. Without it only clients of a Unix socket are
            served.
        login: exchanges the token of a link for a cookie. `holdfast ui` uses it.
        deciders: the names of those who decide for each audience of an approval. They are shown to those who may not.

    Raises:
        DefinitionError: the App has no store.
    """

    return build_ui(app, authorize=authorize, login=login, deciders=deciders)


def build_ui(
    app: App,
    *,
    authorize: Authorize | None = None,
    login: LinkLogin | None = None,
    kill_switch: KillSwitch | None = None,
    deciders: Deciders | None = None,
) -> Starlette:
    """As `make_ui`. With a switch, which the demo gives, the list of runs has a button that kills a worker."""
    site = Site(app, login.authorize if login is not None else authorize, kill_switch, deciders)
    routes: list[BaseRoute] = [
        Route(path, make_endpoint(site, handler, scope), methods=[method]) for method, path, handler, scope in _ROUTES
    ]
    if kill_switch is not None:
        routes.append(Route("/demo/kill", make_endpoint(site, runs_page.kill_worker, "control"), methods=["POST"]))
    if login is not None:
        routes.append(Route("/login", _make_login_endpoint(site, login), methods=["GET"]))
    routes.append(Mount("/static", _CachedFiles(directory=_STATIC)))
    routes.append(Route("/{path:path}", make_endpoint(site, _refuse, "read")))
    return WebApplication(app, routes)


_ROUTES: tuple[tuple[str, str, Handler, Scope], ...] = (
    ("GET", "/", runs_page.show_runs, "read"),
    ("GET", "/live/runs", runs_page.stream_runs, "read"),
    ("POST", "/filters", saved_filters.save_filter, "read"),
    ("GET", "/new", new_run_page.show_form, "start"),
    ("POST", "/runs", new_run_page.start_run, "start"),
    ("GET", "/runs/{run_id}", run_page.show_run, "read"),
    ("GET", "/live/runs/{run_id}", run_stream.stream_run, "read"),
    ("GET", "/runs/{run_id}/content/{seq}/{number}", run_page.show_content, "read"),
    ("GET", "/runs/{run_id}/image/{seq}/{number}", run_page.show_image, "read"),
    ("GET", "/runs/{run_id}/export.json", run_export.export_json, "read"),
    ("GET", "/runs/{run_id}/export.html", run_export.export_html, "read"),
    ("POST", "/runs/{run_id}/answer", actions.answer, "answer"),
    ("POST", "/runs/{run_id}/cancel", actions.cancel, "control"),
    ("POST", "/runs/{run_id}/unpark", actions.unpark, "control"),
    ("POST", "/runs/{run_id}/resume", actions.resume, "control"),
    ("GET", "/runs/{run_id}/compare", compare_page.show_comparison, "read"),
    ("POST", "/runs/{run_id}/pick", compare_page.pick, "answer"),
    ("GET", "/runs/{run_id}/fork/{step}", fork_form.show_fork, "start"),
    ("POST", "/runs/{run_id}/fork", fork_form.fork, "start"),
    ("GET", "/runs/{run_id}/request/{step}", run_request.show_request, "read"),
    ("POST", "/runs/{run_id}/send", actions.send, "send"),
    ("GET", "/inbox", inbox_page.show_inbox, "read"),
    ("GET", "/inbox/approve", inbox_page.preview_approvals, "answer"),
    ("POST", "/inbox/approve", inbox_page.approve, "answer"),
    ("GET", "/bulk", bulk_page.preview, "control"),
    ("POST", "/bulk", bulk_page.apply, "control"),
    ("GET", "/conversations", conversation_page.show_conversations, "read"),
    ("POST", "/conversations", conversation_page.begin_conversation, "start"),
    ("GET", "/conversations/{run_id}", conversation_page.show_conversation, "read"),
    ("GET", "/live/conversations", conversation_page.stream_conversations, "read"),
    ("GET", "/live/conversations/{run_id}", conversation_page.stream_conversation, "read"),
    ("GET", "/agents", agents_page.show_agents, "read"),
    ("GET", "/fleet", fleet_page.show_fleet, "read"),
    ("POST", "/fleet/run-job", fleet_page.run_job, "start"),
    ("POST", "/fleet/limits", limits_page.change_limit, "control"),
    ("POST", "/fleet/budgets", limits_page.change_budget, "control"),
    ("GET", "/live/fleet", fleet_page.stream_fleet, "read"),
    ("GET", "/live/inbox", inbox_page.stream_inbox, "read"),
)


class _CachedFiles(StaticFiles):
    """The files of the page. Their URLs have a version. None is open while it is sent: a client may read it slowly."""

    async def get_response(self, path: str, scope: ConnectionScope) -> Response:
        response = await super().get_response(path, scope)
        if isinstance(response, FileResponse):
            content = await asyncio.to_thread(Path(response.path).read_bytes)
            response = Response(content, headers=response.headers)
        response.headers["cache-control"] = "public, max-age=86400"
        return response


def _make_login_endpoint(site: Site, login: LinkLogin) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            return await login.exchange(request)
        except NotAuthenticated as exc:
            return site.render_error(request, exc)

    return respond


async def _refuse(site: Site, request: Request) -> Response:
    raise PageNotFound("there is no such page")


class PageNotFound(RequestError):
    """The site has no page with this address.

    What to do: Check the address; runs are at `/runs/ID`.
    """

    status = 404
