"""The security headers of every response, and the login by a link with a token."""

import hmac
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.web.auth import LOCAL_PRINCIPAL, Principal
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
}


class SecurityHeaders:
    """ASGI middleware that adds the headers. Pages are not cached; the files of the page itself are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class LinkLogin:
    """Authorizes the browsers that have opened the link. Each process has a token of its own."""

    def __init__(self) -> None:
        self._token = secrets.token_urlsafe(24)
        #: Browsers send cookies to all ports of a host: the name tells two servers apart.
        self._cookie = f"holdfast-ui-{secrets.token_hex(4)}"

    @property
    def path(self) -> str:
        """The path of the link, with the token."""
        return f"/login?token={self._token}"

    def authorize(self, request: Request) -> Principal | None:
        """Return the principal of a request that has the cookie."""
        given = request.cookies.get(self._cookie, "")
        return LOCAL_PRINCIPAL if hmac.compare_digest(given.encode(), self._token.encode()) else None

    async def exchange(self, request: Request) -> Response:
        """Set the cookie, and redirect to a URL without the token.

        Raises:
            NotAuthenticated: the token is not valid.
        """
        given = request.query_params.get("token", "")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise NotAuthenticated("the link is not valid: open the one that `holdfast ui` has printed last")
        root = request.scope.get("root_path", "")
        response = RedirectResponse(f"{root}/", status_code=303)
        response.set_cookie(self._cookie, self._token, path=f"{root}/", httponly=True, samesite="strict")
        return response
