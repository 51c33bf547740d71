"""What the pages share: the App, the templates, the authorization of each request, and errors as pages."""

import logging
from collections.abc import Awaitable, Callable
from importlib import metadata
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from holdfast.app import App
from holdfast.checkpoint.errors import (
    CheckpointError,
    InvalidCursor,
    RunNotFound,
    StoreError,
)
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.errors import DefinitionError, InvalidRunId
from holdfast.errors import HoldfastError
from holdfast.web.auth import Authorize, Principal, Scope, authenticate
from holdfast.web.errors import RequestError
from holdfast.web.ui.templating import make_environment
from holdfast.web.ui.views.formatting import utc_now

_log = logging.getLogger("holdfast.web")

_TITLES = {400: "Not valid", 401: "Not signed in", 403: "Not permitted", 404: "Not found", 409: "Not possible now"}


class Site:
    """The App, its store and the templates."""

    def __init__(self, app: App, authorize: Authorize | None) -> None:
        if app.store is None:
            raise DefinitionError("this App has no store, so there are no runs to show: give it one")
        self.app, self.authorize = app, authorize
        self.store: CheckpointStore = app.store
        self._templates = make_environment()
        self._version = metadata.version("holdfast")

    def render(self, request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
        """Return a page."""
        return HTMLResponse(self.render_text(request, template, **context), status_code=status)

    def render_text(self, request: Request, template: str, **context: Any) -> str:
        """Return the text of a template. `base` is the path under which the site is mounted."""
        base = request.scope.get("root_path", "").rstrip("/")
        shared = {"base": base, "now": utc_now(), "version": self._version, "app": self.app, "pending_count": None}
        return self._templates.get_template(template).render(**(shared | context))

    async def get_record(self, request: Request) -> RunRecord:
        """Return the record of the run in the path.

        Raises:
            RunNotFound: there is none, or it does not exist for the sender of the request.
        """
        run_id: str = request.path_params["run_id"]
        record = await self.store.get_record(run_id)
        if not get_principal(request).can_see(record.run_id, record.caller_id):
            raise RunNotFound(run_id)
        return record

    def render_error(self, request: Request, error: Exception) -> Response:
        """Return the page of an error. Unexpected ones are logged, and their text is not shown."""
        status = get_error_status(error)
        message = str(error)
        if status >= 500 and not isinstance(error, HoldfastError):
            _log.error("%s %s failed", request.method, request.scope.get("root_path", ""), exc_info=error)
            message = "An unexpected error. The log of the server has the details."
        title = _TITLES.get(status, "Something went wrong")
        return self.render(request, "error.html", status=status, title=title, message=message)


Handler = Callable[[Site, Request], Awaitable[Response]]


def get_principal(request: Request) -> Principal:
    """Return the authenticated sender of a request."""
    principal: Principal = request.state.principal
    return principal


def get_error_status(error: Exception) -> int:
    """Return the HTTP status of an error."""
    match error:
        case RequestError():
            return error.status
        case RunNotFound():
            return 404
        case DefinitionError() | InvalidCursor() | InvalidRunId():
            return 400
        case StoreError():
            return 503
        case CheckpointError():
            return 409
        case _:
            return 500


def make_endpoint(site: Site, handler: Handler, scope: Scope) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a route: it authenticates the request, and turns errors into pages."""

    async def respond(request: Request) -> Response:
        try:
            request.state.principal = await authenticate(request, site.authorize)
            request.state.principal.require(scope)
            return await handler(site, request)
        except Exception as exc:  # each error becomes a page
            return site.render_error(request, exc)

    return respond
