"""The login of `holdfast ui`: a link with a token, exchanged for a cookie."""

import hmac
import secrets

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.web.auth import LOCAL_PRINCIPAL, Principal
from holdfast.web.errors import NotAuthenticated


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
