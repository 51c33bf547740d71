"""Clients without credentials: they keep no connection, no memory and no file from others."""

import asyncio
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send
from tests.web.conftest import ROOT
from tests.web.site import make_agents

from holdfast.app import App
from holdfast.config import WorkerSettings
from holdfast.web import server
from holdfast.web.api import make_api
from holdfast.web.auth import LOCAL_PRINCIPAL, Principal
from holdfast.web.server import serve_locally
from holdfast.web.ui import make_ui

#: Files that the server may open. A connection is one.
FILES = 400


def make_app(folder: Path) -> App:
    return App(make_agents(folder), f"sqlite:{folder / 'runs.db'}", worker=WorkerSettings(handle_signals=False))


def authorize(request: Request) -> Principal | None:
    return LOCAL_PRINCIPAL if "x-user" in request.headers else None


@pytest.fixture
def small_site(tmp_path: Path) -> Iterator[str]:
    """The URL of a server in a process that may open few files."""
    command = [sys.executable, "-m", "tests.web.site", str(tmp_path), f"sqlite:{tmp_path / 'runs.db'}", "users", "0"]
    limited = ["bash", "-c", f'ulimit -n {FILES} && exec "$@"', "bash", *command]
    process = subprocess.Popen(limited, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("sent", [
    b"",
    b"GET / HTTP/1.1\r\nHost: x\r\n",
    b"POST /some/prefix/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{",
], ids=["nothing", "half a head", "half a body"])  # fmt: skip
def test_clients_that_send_no_whole_request_keep_no_others_out(small_site: str, sent: bytes) -> None:
    place = urlsplit(small_site)
    with ExitStack() as stack:
        for _ in range(FILES + 100):
            stranger = stack.enter_context(socket.create_connection((place.hostname or "", place.port or 0)))
            stranger.sendall(sent)
        client = stack.enter_context(httpx.Client(headers={"x-user": "ann"}, timeout=60, trust_env=False))
        submitted = client.post(f"{small_site}/runs", json={"agent": "clerk", "input": "note"})
        assert submitted.status_code == 202
        run_id = submitted.json()["run_id"]
        assert client.get(f"{small_site}/runs/{run_id}/result?wait=50").json()["output"] == "did | note"


async def test_a_connection_ends_that_makes_no_progress_and_a_stream_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_CLIENT_TIMEOUT", 0.2)
    async with make_app(tmp_path) as app, serve_locally(make_api(app, authorize=authorize), 0) as url:
        place = urlsplit(url)
        run_id = await app.submit("clerk", "pay", run_id="waits")
        headers = {"x-user": "ann"}
        async with (
            httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as client,
            client.stream("GET", f"/runs/{run_id}/events") as stream,
        ):
            lines = stream.aiter_lines()
            for sent in (b"", b"GET / HTTP/1.1\r\n", b"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"):
                reader, writer = await asyncio.open_connection(place.hostname, place.port)
                writer.write(sent)
                async with asyncio.timeout(60):
                    assert b" 200 " not in await reader.read()
                writer.close()
            await app.cancel(run_id)
            async with asyncio.timeout(60):
                assert "event: end" in [line async for line in lines]


async def test_a_connection_ends_whose_client_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_CLIENT_TIMEOUT", 0.2)
    ended = asyncio.Event()

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await api(scope, receive, send)
        finally:
            ended.set()

    async with make_app(tmp_path) as app, serve_locally(serve, 0) as url:
        api, place = make_api(app, authorize=authorize), urlsplit(url)
        run_id = await app.submit("clerk", "x" * 8_000_000)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.connect((place.hostname, place.port))
            client.sendall(f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: x\r\nX-User: ann\r\n\r\n".encode())
            async with asyncio.timeout(60):
                await ended.wait()


async def test_clients_that_do_not_read_keep_no_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 3)
    sent = asyncio.Semaphore(0)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        size = 16_000_000 if scope["path"] == "/large" else 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * size, "more_body": True})
        sent.release()
        await send({"type": "http.response.body", "body": b""})

    async with serve_locally(serve, 0) as url:
        place = urlsplit(url)
        with ExitStack() as stack:
            for _ in range(3):
                stranger = stack.enter_context(socket.create_connection((place.hostname or "", place.port or 0)))
                stranger.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
                async with asyncio.timeout(60):
                    await sent.acquire()
            async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
                assert (await client.get(url)).text == "x"


async def test_a_connection_ends_whose_client_leaves_a_small_rest_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_CLIENT_TIMEOUT", 0.2)
    capacity = 0

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        size = capacity + 32_000 if capacity else 4_000_000  # 64,000 more would pause the response
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * size})

    def ask() -> int:
        """Wait for the end without reading, and return how much the operating system held for the client."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "socket"))
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            poll = select.poll()
            poll.register(client, 0)  # reports nothing but the end of the connection
            assert poll.poll(60_000)
            return sum(map(len, iter(lambda: client.recv(65_536), b"")))

    async with serve_locally(serve, 0, path=tmp_path / "socket"):
        capacity = await asyncio.to_thread(ask)
        assert await asyncio.to_thread(ask) <= capacity + 1_000  # the rest was not sent


async def test_no_file_of_the_page_is_open_while_it_is_sent(tmp_path: Path) -> None:
    page, files = make_ui(make_app(tmp_path)), set[str]()

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_look(message: Message) -> None:
            files.update(os.path.realpath(each) for each in Path("/proc/self/fd").iterdir())
            await send(message)

        await page(scope, receive, send_and_look)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(serve), base_url="http://x") as client:
        response = await client.get("/static/style.css")
        assert response.headers["content-type"].startswith("text/css")
        assert len(response.content) == int(response.headers["content-length"]) > 1_000
        again = await client.get("/static/style.css", headers={"if-none-match": response.headers["etag"]})
        assert again.status_code == 304
    assert files
    assert not any(each.endswith("style.css") for each in files)


async def test_the_body_of_a_result_is_read_only_for_a_token_that_is_valid(tmp_path: Path) -> None:
    async with make_app(tmp_path) as app, serve_locally(make_api(app, authorize=authorize), 0) as url:
        place = urlsplit(url)
        run_id = await app.submit("clerk", "render", run_id="renders")
        for token in ("none~" + "x" * 40, f"{run_id}~" + "x" * 40, "x"):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            head = f"POST /calls/{token} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            writer.write(f'{head}Content-Length: 8000000\r\n\r\n"the rest does not come'.encode())
            async with asyncio.timeout(60):
                assert b" 404 " in await reader.readline()
            writer.close()
