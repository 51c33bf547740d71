"""What every application of holdfast has: headers, the lifespan of its App; and the logins of `serve` and `ui`."""

import hmac
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.types import Message, Receive, Scope, Send

from holdfast.app import App
from holdfast.core.errors import DefinitionError
from holdfast.ids import make_id, make_token
from holdfast.web.auth import LOCAL_PRINCIPAL, Principal, read_bearer_token
from holdfast.web.errors import NotAuthenticated

#: Transcripts are hostile text: nothing is loaded from elsewhere, and no inline script or style is executed.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

#: Characters of a token that the user chooses.
_MIN_TOKEN_LENGTH = 16


class WebApplication(Starlette):
    """An ASGI application for one App: served alone it opens the App. Every response has the security headers.

    Not a middleware: Starlette's own response to an unexpected error does not pass through those.
    """

    def __init__(
        self,
        app: App,
        routes: Sequence[BaseRoute],
        *,
        middleware: Collection[Middleware] = (),
        exception_handlers: Mapping[Any, Any] | None = None,
    ) -> None:
        @asynccontextmanager
        async def open_app(server: Starlette) -> AsyncIterator[None]:
            async with app:
                yield

        handlers = {ClientDisconnect: _end_request, **(exception_handlers or {})}
        super().__init__(routes=routes, middleware=list(middleware), exception_handlers=handlers, lifespan=open_app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await super().__call__(scope, receive, send_with_headers if scope["type"] == "http" else send)


async def _end_request(request: Request, exc: Exception) -> Response:
    """Ends a request whose client has left before the end of its body. The server has not failed."""
    return Response(status_code=400)


class LocalToken:
    """Authorizes the programs that send one token. `holdfast serve` makes and prints one."""

    def __init__(self, token: str = "") -> None:
        """Accept `token`, or a random one if it is empty.

        Raises:
            DefinitionError: it has less than 16 characters, or others than ASCII.
        """
        if token and (len(token) < _MIN_TOKEN_LENGTH or not token.isascii()):
            raise DefinitionError(f"the token is too short or not ASCII: give {_MIN_TOKEN_LENGTH} characters or more")
        self.token = token or make_token()

    def authorize(self, request: Request) -> Principal | None:
        """Return the principal of a request that has the token, as a bearer token or in the query of a GET."""
        return LOCAL_PRINCIPAL if self.accepts(read_bearer_token(request)) else None

    def accepts(self, given: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())


class LinkLogin:
    """Authorizes the browsers that have opened the link. Without a given one each process has a token of its own."""

    def __init__(self, token: str = "") -> None:
        """Accept `token`, or a random one if it is empty. Raises as `LocalToken`."""
        self._token = LocalToken(token)
        #: Browsers send cookies to all ports of a host: the name tells two servers apart.
        self._cookie = f"holdfast-ui-{make_id(4)}"

    @property
    def path(self) -> str:
        """The path of the link, with the token."""
        return f"/login?token={self._token.token}"

    def authorize(self, request: Request) -> Principal | None:
        """Return the principal of a request that has the cookie."""
        return LOCAL_PRINCIPAL if self._token.accepts(request.cookies.get(self._cookie, "")) else None

    async def exchange(self, request: Request) -> Response:
        """Set the cookie, and redirect to a URL without the token.

        Raises:
            NotAuthenticated: the token is not valid.
        """
        if not self._token.accepts(request.query_params.get("token", "")):
            raise NotAuthenticated("the link is not valid: open the one that `holdfast ui` has printed last")
        root = request.scope.get("root_path", "")
        response = RedirectResponse(f"{root}/", status_code=303)
        response.set_cookie(self._cookie, self._token.token, path=f"{root}/", httponly=True, samesite="strict")
        return response
