"""The test module of a check: the whole suite on the stores of its place."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import ClassVar

import pytest

from holdfast.checkpoint.workers import ProcessIdentity
from holdfast.testing.store_check.scratch_stores import find_scratch
from holdfast.testing.store_suite import DurableRunStoreSuite, RunStoreSuite

_SCRATCH = find_scratch()


class TestCheckedStore(RunStoreSuite, DurableRunStoreSuite):
    factory: ClassVar[str] = "holdfast.testing.store_check.scratch_stores:build_scratch_store"
    #: A fifth of the default lease timeout.
    heartbeat_interval: ClassVar[timedelta] = timedelta(seconds=6)

    @pytest.fixture
    def location(self) -> Iterator[str]:
        yield _SCRATCH.make_location()
        _SCRATCH.clear()

    def damage(self, location: str, run_id: str, body: bytes) -> None:
        _SCRATCH.damage(location, run_id, body)

    async def wait_until_idle(self, location: str, killed: ProcessIdentity) -> None:
        await asyncio.to_thread(_SCRATCH.wait_until_idle, killed.pid)
