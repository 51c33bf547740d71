"""The stores of batteries: memory, and an empty database of each kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store_kinds import STORES

DATABASES = ["sqlite", "postgres"]


@pytest.fixture(params=["memory", *DATABASES])
def battery_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """`memory:`, and the URL of an empty database of each kind."""
    with STORES[request.param].open_empty(tmp_path) as url:
        yield url


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database of each kind."""
    with STORES[request.param].open_empty(tmp_path) as url:
        yield url
