"""Fixtures for tests that run over all stores. `-k sqlite` runs them over one of them."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store_kinds import DURABLE, STORES

# A shell that starts the tests in the background has SIGINT ignored, and every process they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store of each kind."""
    with STORES[request.param].place(tmp_path) as url:
        yield url


@pytest.fixture(params=DURABLE)
def durable_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store of each kind that outlives its process."""
    with STORES[request.param].place(tmp_path) as url:
        yield url
