"""The web UI and the HTTP API of an App as one ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.app import App
from holdfast.batteries.schedule import Schedule
from holdfast.web.api import make_api
from holdfast.web.auth import Authorize
from holdfast.web.ui import make_ui


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
