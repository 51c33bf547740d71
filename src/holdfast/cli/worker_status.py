"""The status server of a worker: `/healthz` and `/metrics`."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus

from holdfast.app import App
from holdfast.cli.errors import CommandError
from holdfast.runtime.prometheus import CONTENT_TYPE
from holdfast.runtime.status_server import StatusResponse, StatusServer


@asynccontextmanager
async def serve_status(app: App, port: int, host: str) -> AsyncIterator[StatusServer]:
    """Serve the status of an open App while the context is open.

    Raises:
        CommandError: the port cannot be used.
    """

    async def answer_health() -> StatusResponse:
        problem = await app.find_problem()
        if problem:
            return StatusResponse(status=HTTPStatus.SERVICE_UNAVAILABLE, body=f"{problem}\n")
        return StatusResponse(body="ok\n")

    async def answer_metrics() -> StatusResponse:
        return StatusResponse(body=await app.render_metrics(), content_type=CONTENT_TYPE)

    server = StatusServer(port, host=host)
    server.add_route("/healthz", answer_health)
    server.add_route("/metrics", answer_metrics)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(server)
        except OSError as exc:
            reason = os.strerror(exc.errno) if exc.errno else str(exc)
            raise CommandError(f"port {port} of {host} cannot be used: {reason}; choose another --health-port") from exc
        yield server
