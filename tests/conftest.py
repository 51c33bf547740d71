"""Fixtures for tests that run over all stores (`-k sqlite` runs them over one), or on a PostgreSQL of their own."""

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.postgres_proxy import CuttingProxy
from tests.postgres_server import EmbeddedServer, fresh_database
from tests.store_kinds import DURABLE, STORES

# A shell that starts the tests in the background has SIGINT ignored, and every process they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store of each kind."""
    with STORES[request.param].open_empty(tmp_path) as url:
        yield url


@pytest.fixture(params=DURABLE)
def durable_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store of each kind that outlives its process."""
    with STORES[request.param].open_empty(tmp_path) as url:
        yield url


# -- a PostgreSQL of a module's own ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """One that may be stopped, and has a Unix socket to put a proxy before, also where others use a named server."""
    server = EmbeddedServer()
    yield server
    server.remove()


@pytest.fixture
def url(server: EmbeddedServer) -> Iterator[str]:
    """An empty database in it, without a proxy."""
    with fresh_database(server) as url:
        yield url


@pytest.fixture
async def proxy(server: EmbeddedServer) -> AsyncIterator[CuttingProxy]:
    """What stands before it, and does harm when it is told to."""
    proxy = CuttingProxy(server.socket)
    async with proxy.running():
        yield proxy
