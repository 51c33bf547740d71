"""A reverse proxy that strips a prefix and streams, as nginx does with `proxy_pass http://backend/`."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

#: Headers of one connection: a proxy does not pass them on.
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "content-length", "host"}


class PrefixProxy:
    """Serves `/PREFIX/...` from `backend/...` while it is open. Each chunk of a response is passed on at once."""

    def __init__(self, backend: str, prefix: str) -> None:
        self._backend = backend
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.origin = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"{self.origin}{prefix}"
        methods = ["GET", "HEAD", "POST"]
        app = Starlette(routes=[Route(f"{prefix}/{{path:path}}", self._forward, methods=methods)])
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve(sockets=[self._listener])))

    def __enter__(self) -> "PrefixProxy":
        self._thread.start()  # the socket listens already
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    async def _forward(self, request: Request) -> Response:
        client = httpx.AsyncClient(timeout=None, trust_env=False)
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP_BY_HOP]
        headers += [("host", request.headers["host"]), ("x-forwarded-for", "192.0.2.7"), ("x-user", "alice")]
        query = f"?{request.url.query}" if request.url.query else ""
        upstream = await client.send(
            client.build_request(
                request.method,
                f"{self._backend}/{request.path_params['path']}{query}",
                headers=headers,
                content=await request.body(),
            ),
            stream=True,
        )

        async def stream() -> AsyncIterator[bytes]:
            try:
                async for chunk in upstream.aiter_raw():
                    yield chunk
            finally:
                await upstream.aclose()
                await client.aclose()

        passed = {name: value for name, value in upstream.headers.items() if name not in _HOP_BY_HOP}
        return StreamingResponse(stream(), status_code=upstream.status_code, headers=passed)
