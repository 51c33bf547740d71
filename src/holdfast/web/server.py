"""The UI and the API as one application, and a server for it on the loopback address."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from holdfast.app import App
from holdfast.batteries.schedule import Schedule
from holdfast.web.api import make_api
from holdfast.web.auth import Authorize
from holdfast.web.errors import AddressInUse
from holdfast.web.ui import make_ui

HOST = "127.0.0.1"
#: Seconds in which responses end after the server was stopped. Clients of event streams connect again.
_GRACE = 2


class _Server(uvicorn.Server):
    """A server that leaves the signals of the process to its caller."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_locally(site: ASGIApp, port: int) -> AsyncIterator[str]:
    """Serve `site` on the loopback address while the context is open. Yields its URL; port 0 is any free one.

    Raises:
        AddressInUse: another process uses the port.
    """
    try:
        listener = socket.create_server((HOST, port))
    except OSError as exc:
        reason = os.strerror(exc.errno) if exc.errno else str(exc)
        raise AddressInUse(f"port {port} of {HOST} cannot be used: {reason}; choose another one") from exc
    with listener:
        config = uvicorn.Config(
            site, lifespan="off", log_level="warning", proxy_headers=False, timeout_graceful_shutdown=_GRACE
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://{HOST}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


def make_web(app: App, *, authorize: Authorize | None = None, schedule: Schedule | None = None) -> Starlette:
    """Return the page at `/` and the API at `/api`, both with the same `authorize`.

    Served alone it opens the App when the server starts. Where it is mounted, the host opens the App.
    """

    @asynccontextmanager
    async def open_app(server: Starlette) -> AsyncIterator[None]:
        async with app:
            yield

    routes = [
        Mount("/api", make_api(app, authorize=authorize)),
        Mount("/", make_ui(app, authorize=authorize, schedule=schedule)),
    ]
    return Starlette(routes=routes, lifespan=open_app)
