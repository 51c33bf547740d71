"""The small HTTP server of a worker, asked through real sockets."""

import asyncio
import urllib.error
import urllib.request
from http import HTTPStatus

import pytest

from holdfast.runtime.status_server import StatusResponse, StatusServer


async def ask(url: str, method: str = "GET") -> tuple[int, str, str]:
    """The status, the type and the body of the response."""

    def request() -> tuple[int, str, str]:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method)) as response:
                return response.status, response.headers["Content-Type"], response.read().decode()
        except urllib.error.HTTPError as exc:
            return exc.code, exc.headers["Content-Type"], exc.read().decode()

    return await asyncio.to_thread(request)


async def test_a_route_answers_get_and_head_and_other_requests_are_refused() -> None:
    async def count() -> StatusResponse:
        return StatusResponse(body="runs 3\n", content_type="text/plain; version=0.0.4", status=HTTPStatus.ACCEPTED)

    async with StatusServer(0) as server:
        server.add_route("/count", count)
        assert await ask(f"{server.url}/count?x=1") == (202, "text/plain; version=0.0.4", "runs 3\n")
        assert await ask(f"{server.url}/count", "HEAD") == (202, "text/plain; version=0.0.4", "")
        assert (await ask(f"{server.url}/count", "POST"))[0] == 405
        assert await ask(f"{server.url}/other") == (404, "text/plain; charset=utf-8", "known paths: /count\n")


async def test_a_server_that_is_not_open_has_the_port_that_was_asked_for() -> None:
    assert StatusServer(8124).url == "http://127.0.0.1:8124"
    assert StatusServer(8124, host="::1").url == "http://[::1]:8124"


async def test_a_route_that_raises_is_answered_and_the_next_request_too() -> None:
    async def fail() -> StatusResponse:
        raise RuntimeError("secret")

    async with StatusServer(0) as server:
        server.add_route("/fail", fail)
        for _ in range(2):
            status, _, body = await ask(f"{server.url}/fail")
            assert status == 500
            assert "secret" not in body


async def test_a_client_that_sends_no_http_is_dropped_and_the_server_closes_while_one_is_silent() -> None:
    async with StatusServer(0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"x" * 100_000)
        assert await reader.read() == b""
        writer.close()
        _, silent = await asyncio.open_connection("127.0.0.1", server.port)
        port = server.port
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", port)
    silent.close()
