"""Fixtures for tests that run on every store (`-k sqlite` selects one) or on a PostgreSQL server of their own."""

import gc
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest
from tests.postgres_pool import DatabasePool
from tests.postgres_proxy import CuttingProxy
from tests.postgres_server import LocalServer
from tests.store_kinds import DURABLE, STORES

# What is imported and collected lives until the end. To search it for garbage takes a sixth of the time of collecting.
gc.disable()
# A shell ignores SIGINT in background jobs, and child processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests start more than a thousand processes. Without compiled modules each start takes half as long again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Search for garbage again, among what the tests create. Every process has to give the tests the same names."""
    named_by_address = [item.nodeid for item in session.items if " at 0x" in item.nodeid]
    if named_by_address:
        raise pytest.UsageError(f"the name contains an address in memory: {named_by_address[0]}")
    gc.freeze()
    gc.enable()


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store of each kind."""
    with STORES[request.param].open_empty(tmp_path) as url:
        yield url


@pytest.fixture(params=DURABLE)
def durable_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store of each durable kind."""
    with STORES[request.param].open_empty(tmp_path) as url:
        yield url


# -- a PostgreSQL server per module ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server that tests may stop, with a Unix socket for the proxy. Independent of any configured server."""
    server = LocalServer()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def databases(server: LocalServer) -> Iterator[DatabasePool]:
    """The databases on the server that the tests of a module use one after another."""
    pool = DatabasePool(server)
    yield pool
    pool.close()


@pytest.fixture
def url(databases: DatabasePool) -> Iterator[str]:
    """The URL of an empty store on the server, without the proxy."""
    with databases.open_empty() as url:
        yield url


@pytest.fixture
async def proxy(server: LocalServer) -> AsyncIterator[CuttingProxy]:
    """A proxy in front of the server that cuts connections on request."""
    proxy = CuttingProxy(server.socket)
    async with proxy.running():
        yield proxy
