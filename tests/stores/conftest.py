"""The stores that have to pass the suite."""

from collections.abc import Callable
from pathlib import Path

import pytest

#: Adding a store to holdfast means adding one line here. From an empty folder to the URL of an empty store.
STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: "memory:",
    "file": lambda folder: f"file:{folder / 'runs'}",
    "sqlite": lambda folder: f"sqlite:{folder / 'runs.db'}",
    # "postgres": lambda folder: (a fresh database from tests/postgres_server.py),
}


@pytest.fixture(params=STORES.keys())
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of each kind."""
    return STORES[request.param](tmp_path)
