"""What all pages share: templates, the check of each request, errors as pages."""

import logging
from collections.abc import Awaitable, Callable
from importlib import metadata
from typing import Any

import jinja2
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response

from holdfast.app import App
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import RunStore
from holdfast.core.errors import DefinitionError
from holdfast.core.run.waiting import describe_decision
from holdfast.root_error import HoldfastError
from holdfast.runtime.reading import formatting
from holdfast.runtime.reading.formatting import utc_now
from holdfast.runtime.reading.run_summary import format_times
from holdfast.web.api.problems import format_error, get_status
from holdfast.web.auth import Authorize, Deciders, Principal, Scope, authenticate, find_visible
from holdfast.web.kill_switch import KillSwitch
from holdfast.web.ui.content import show_age, show_time
from holdfast.web.ui.json_tree import show_document, show_json
from holdfast.web.ui.markdown import show_text

#: A change of the files of the page gets a new URL.
ASSET_VERSION = "1"


def make_environment() -> jinja2.Environment:
    """Return the environment of all templates."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.web.ui"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
    )
    filters: dict[str, Any] = {
        "age": show_age,
        "time": show_time,
        "duration": formatting.format_duration,
        "number": formatting.format_number,
        "cost": formatting.format_cost,
        "amount": formatting.format_amount,
        "size": formatting.format_size,
        "value": formatting.format_value,
        "arguments": formatting.format_arguments,
        "cut": formatting.cut_text,
        "decision": describe_decision,
        "rich": show_text,
        "tree": show_json,
        "document": show_document,
    }
    environment.filters.update(filters)
    environment.globals["whole_call"] = formatting.format_whole_call
    environment.globals["worked"] = lambda run: format_times(run)[1]
    environment.globals["count"] = formatting.format_count
    environment.globals["asset_version"] = ASSET_VERSION
    return environment


_log = logging.getLogger("holdfast.web")

#: What an action has said, by the name in the URL: text from elsewhere is never shown.
MESSAGES = {
    "approved": "Approved. The run continues as soon as a worker takes it.",
    "denied": "Denied. The model reads the reason.",
    "answered": "Answered. The run continues as soon as a worker takes it.",
    "cancelled": "The run is cancelled.",
    "cancelling": "The run is asked to stop; it ends at its next step.",
    "resumed": "The run is resumed in this process.",
    "unparked": "Unparked. A worker resumes the run.",
    "started": "Queued. A worker starts the run.",
    "forked": "This is the fork. A worker starts it.",
    "limited": "The limit is changed, for all workers. Parked runs stay parked: unpark them.",
    "sent": "Sent. The run reads the message before its next step.",
}

_TITLES = {401: "Not signed in", 403: "Not permitted", 404: "Not found", 409: "Not possible now", 422: "Not valid"}


class Site:
    """The App, its store and the templates."""

    def __init__(
        self,
        app: App,
        authorize: Authorize | None,
        kill_switch: KillSwitch | None = None,
        deciders: Deciders | None = None,
    ) -> None:
        if app.store is None:
            raise DefinitionError("this App has no store, so there are no runs to show: give it one")
        self.app, self.authorize, self.kill_switch = app, authorize, kill_switch
        #: The names of those who decide for each audience.
        self.deciders = deciders or {}
        self.store: RunStore = app.store
        self._templates = make_environment()
        self._version = metadata.version("holdfast")

    def render(self, request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
        """Return a page."""
        return HTMLResponse(self.render_text(request, template, **context), status_code=status)

    def render_text(self, request: Request, template: str, **context: Any) -> str:
        """Return the text of a template. `base` is the path under which the site is mounted."""
        base = request.scope.get("root_path", "").rstrip("/")
        shared = {"base": base, "now": utc_now(), "version": self._version, "app": self.app, "pending_count": None}
        principal = request.scope.get("state", {}).get("principal")
        shared["who"] = "" if principal is None else principal.caller_id or "local"
        shared["principal"], shared["deciders"] = principal, self.deciders
        shared["live_workers"] = request.scope.get("state", {}).get("live_workers")
        shared["said"] = MESSAGES.get(request.query_params.get("said", ""), "")
        shared["kill_switch"] = self.kill_switch
        return self._templates.get_template(template).render(**(shared | context))

    async def get_record(self, request: Request) -> RunRecord:
        """Return the record of the run in the path.

        Raises:
            RunNotFound: there is none, or it does not exist for the sender of the request.
        """
        return await find_visible(self.store, get_principal(request), request.path_params["run_id"])

    def render_error(self, request: Request, error: Exception) -> Response:
        """Return the page of an error. The text of a server error goes to the log only: it may name files and hosts."""
        status = get_status(error) if isinstance(error, HoldfastError) else 500
        message = format_error(error) if isinstance(error, HoldfastError) else str(error)
        if status >= 500:
            _log.error("%s of a page failed: %s", request.method, type(error).__name__, exc_info=error)
            message = "The server could not answer. Its log says why."
        title = _TITLES.get(status, "Something went wrong")
        return self.render(request, "error.html", status=status, title=title, message=message)


Handler = Callable[[Site, Request], Awaitable[Response]]


def get_principal(request: Request) -> Principal:
    """Return the authenticated sender of a request."""
    principal: Principal = request.state.principal
    return principal


def make_endpoint(site: Site, handler: Handler, scope: Scope) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a route: it authenticates the request, and turns errors into pages."""

    async def respond(request: Request) -> Response:
        try:
            request.state.principal = await authenticate(request, site.authorize)
            request.state.principal.require(scope)
            if request.method == "GET" and "/live/" not in request.url.path:
                request.state.live_workers = await count_workers(site, request.state.principal)
            return await handler(site, request)
        except ClientDisconnect:
            raise  # no client is left to read a page
        except Exception as exc:  # each error becomes a page
            return site.render_error(request, exc)

    return respond


async def count_workers(site: Site, principal: Principal) -> int | None:
    """Return how many live workers take runs; `None` for a principal who does not see all of them."""
    if not principal.sees_all:
        return None
    return sum(each.alive and each.worker.agents != () for each in await site.store.list_workers())


def can_start(site: Site, principal: Principal) -> bool:
    """Whether the principal may start runs here. A site without agents starts none."""
    return bool(site.app.agents) and "start" in principal.scopes and principal.run_id is None
