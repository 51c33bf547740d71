"""The UI and the API as one application, and a server for it on the loopback address."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from operator import attrgetter
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.app import App
from holdfast.web.api import make_api
from holdfast.web.auth import Authorize, Deciders
from holdfast.web.errors import AddressInUse
from holdfast.web.security import WebApplication
from holdfast.web.ui import make_ui

HOST = "127.0.0.1"
#: Seconds in which responses end after the server was stopped. Clients of event streams connect again.
_GRACE = 2
#: Seconds. A client has once to twice this time to send a whole request, and to take any part of a response.
_CLIENT_TIMEOUT = 60.0
#: Further connections end others. Half of the files of the process stay free for its store and its runs.
_MAX_CONNECTIONS = 1_000
#: asyncio accepts this many at once, before it ends any.
_BACKLOG = 32


class _Connection(H11Protocol):
    """A connection that ends if its client neither sends nor reads: those of strangers keep no others out."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        #: Responses that were sent, and since when the next request is waited for.
        self._responses, self._since = 0, self.loop.time()
        self._stall: tuple[int, bool, int] | None = None
        self._timer = self.loop.call_later(_CLIENT_TIMEOUT, self._check_progress)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(self.connections) > (_MAX_CONNECTIONS if files < 0 else min(_MAX_CONNECTIONS, files // 2)):
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._responses, self._since = self._responses + 1, self.loop.time()

    @property
    def _awaits_request(self) -> bool:
        """Whether the client has not sent the whole of its request."""
        if self.transport.is_closing():
            return False
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    @property
    def _awaits_client(self) -> bool:
        """Whether the client has not sent the whole of its request, or not read what was sent to it."""
        return self._awaits_request or self.transport.get_write_buffer_size() > 0

    def _make_room(self) -> None:
        """End the connection that has waited longest for its client; this one if no other waits."""
        waiting = [each for each in self.connections if isinstance(each, _Connection) and each._awaits_client]
        min(waiting, key=attrgetter("_since"), default=self).transport.abort()

    def _check_progress(self) -> None:
        unread = self.transport.get_write_buffer_size()
        stall = (self._responses, self._awaits_request, unread) if self._awaits_client else None
        if stall is not None and stall == self._stall:
            self.transport.abort()
            return
        self._stall = stall
        self._timer = self.loop.call_later(_CLIENT_TIMEOUT, self._check_progress)


class _LocalServer(uvicorn.Server):
    """A server that leaves the signals of the process to its caller."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_locally(site: ASGIApp, port: int, *, host: str = HOST, path: Path | None = None) -> AsyncIterator[str]:
    """Serve `site` on this machine while the context is open, on the loopback address or on a Unix socket.

    Yields the URL, or the path of the socket.

    Args:
        port: 0 is any free one.
        host: the address to listen on. Give another one only to a site that authenticates everyone.
        path: of a Unix socket, used instead of the port. Only the user of this process may connect.

    Raises:
        AddressInUse: another process uses the port or the socket.
    """
    with _listen(host, port) if path is None else _listen_on_path(path) as listener:
        config = uvicorn.Config(
            site,
            http=_Connection,
            ws="none",
            backlog=_BACKLOG,
            lifespan="off",
            log_level="warning",
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE,
        )
        server = _LocalServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield str(path) if path is not None else f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as exc:
        raise AddressInUse(f"port {port} of {host} cannot be used: {_describe(exc)}; choose another one") from exc


def _describe(exc: OSError) -> str:
    """Return the reason, without the address that the standard library appends."""
    return (exc.strerror or str(exc)).partition(" (while ")[0]


@contextmanager
def _listen_on_path(path: Path) -> Iterator[socket.socket]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        if path.is_socket() and not _is_served(path):
            path.unlink()  # of a process that was killed
        listener.bind(str(path))
        listener.listen()
    except OSError as exc:
        listener.close()
        raise AddressInUse(f"the socket {path} cannot be used: {_describe(exc)}; choose another one") from exc
    finally:
        os.umask(mask)
    with listener:
        yield listener
    path.unlink(missing_ok=True)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(str(path)) == 0


def make_web(app: App, *, authorize: Authorize | None = None, deciders: Deciders | None = None) -> Starlette:
    """Return the page at `/` and the API at `/api`, both with the same `authorize`.

    Served alone it opens the App when the server starts. Where it is mounted, the host opens the App.
    """

    routes = [
        Mount("/api", make_api(app, authorize=authorize)),
        Mount("/", make_ui(app, authorize=authorize, deciders=deciders)),
    ]
    return WebApplication(app, routes)
