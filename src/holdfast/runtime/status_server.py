"""A small HTTP server for probes and scrapers: `/healthz` of a worker. Needs nothing but asyncio."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Self

log = logging.getLogger("holdfast.status")

#: A request line with its headers may be this long.
_MAX_REQUEST_BYTES = 16_384

#: How long a client may take to send its request and to read the response.
_CLIENT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusResponse:
    """The response of a route."""

    body: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


#: Answers GET requests for one path. An exception is logged and answered with status 500.
StatusHandler = Callable[[], Awaitable[StatusResponse]]


class StatusServer:
    """Serves GET and HEAD requests. Used as `async with StatusServer(port) as server:`."""

    def __init__(self, port: int, *, host: str = "127.0.0.1") -> None:
        """Listen on nothing yet.

        Args:
            port: 0 for any free one.
            host: the address to listen on. The server has no authentication: other hosts reach it if this allows it.
        """
        self._host, self._port = host, port
        self._routes: dict[str, StatusHandler] = {}
        self._server: asyncio.Server | None = None

    def add_route(self, path: str, handler: StatusHandler) -> None:
        """Answer requests for `path` with what `handler` returns. May be called while the server is open."""
        self._routes[path] = handler

    @property
    def port(self) -> int:
        """The port that the open server listens on."""
        if self._server is None or not self._server.sockets:
            return self._port
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The address of the open server."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: the port is in use, or the host is no address of this machine.
        """
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_MAX_REQUEST_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            # Not `wait_closed`, which would wait for a client that has sent no request yet.
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        try:
            async with asyncio.timeout(_CLIENT_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(request))
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # a client that left, stalled or sent no HTTP gets no response
        finally:
            writer.close()

    async def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        handler = self._routes.get(path)
        if method not in ("GET", "HEAD"):
            response = StatusResponse(status=HTTPStatus.METHOD_NOT_ALLOWED, body="only GET and HEAD\n")
        elif handler is None:
            response = StatusResponse(status=HTTPStatus.NOT_FOUND, body=f"known paths: {' '.join(self._routes)}\n")
        else:
            response = await _call_handler(path, handler)
        return _encode(response, with_body=method != "HEAD")


async def _call_handler(path: str, handler: StatusHandler) -> StatusResponse:
    try:
        return await handler()
    except Exception as exc:  # a probe must not end the worker
        log.error("%s could not be answered", path, exc_info=exc)
        return StatusResponse(status=HTTPStatus.INTERNAL_SERVER_ERROR, body="error: see the log of the worker\n")


def _encode(response: StatusResponse, *, with_body: bool) -> bytes:
    body = response.body.encode()
    head = (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if with_body else b"")
