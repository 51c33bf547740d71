"""The stores that have to pass the suite."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from tests.postgres_server import fresh_database

#: Adding a store to holdfast means adding one line here. From an empty folder to the URL of an empty store.
STORES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "memory": lambda folder: nullcontext("memory:"),
    "file": lambda folder: nullcontext(f"file:{folder / 'runs'}"),
    "sqlite": lambda folder: nullcontext(f"sqlite:{folder / 'runs.db'}"),
    "postgres": lambda folder: fresh_database(),
}

DURABLE = [name for name in STORES if name != "memory"]


@pytest.fixture(params=STORES.keys())
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store of each kind."""
    with STORES[request.param](tmp_path) as url:
        yield url


@pytest.fixture(params=DURABLE)
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store of each kind that outlives its process."""
    with STORES[request.param](tmp_path) as url:
        yield url
