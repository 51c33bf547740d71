"""Every response has the security headers: that of the API, the page and the chats, an unexpected error included."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from tests.web.site import make_agents

from holdfast.app import App
from holdfast.web.api import make_api
from holdfast.web.auth import Principal
from holdfast.web.protocols import make_chat
from holdfast.web.server import make_web
from holdfast.web.ui import make_ui

HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def authorize(request: Request) -> Principal | None:
    """Refuse, accept, or raise as a host's own code may."""
    user = request.headers.get("x-user")
    if user == "bug":
        raise RuntimeError("a bug of the host")
    return None if user is None else Principal(caller_id=user)


@pytest.mark.parametrize("make", [make_api, make_chat, make_ui, make_web])
async def test_every_response_has_the_headers(make: Callable[..., Starlette], tmp_path: Path) -> None:
    app = App(make_agents(tmp_path), f"sqlite:{tmp_path / 'runs.db'}", worker=False)
    transport = httpx.ASGITransport(make(app, authorize=authorize), raise_app_exceptions=False)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://local") as client:
        found: set[int] = set()
        for path in (
            "/",
            "/runs",
            "/api/runs",
            "/runs/none",
            "/openapi.json",
            "/no/such/place",
            "/vercel-ai/x/y/messages",
        ):
            for user in ({}, {"x-user": "ann"}, {"x-user": "bug"}):
                for method in ("GET", "POST", "HEAD", "OPTIONS"):
                    response = await client.request(method, path, headers=user)
                    found.add(response.status_code)
                    sent = {name: response.headers.get(name) for name in HEADERS}
                    assert sent == HEADERS, (method, path, user, response.status_code)
        assert {401, 404, 500} <= found
