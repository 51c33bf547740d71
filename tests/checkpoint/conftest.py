"""A desk for each test of a handle."""

from collections.abc import AsyncIterator

import pytest_asyncio
from tests.checkpoint.desk import Desk

from holdfast.checkpoint.claim import Worker
from holdfast.checkpoint.liveness import this_process
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    clock = ManualClock()
    inner = MemoryStore(clock=clock)
    await inner.open()
    await inner.enlist(Worker(worker_id="w", process=this_process()))
    yield Desk(clock, inner)
    await inner.close()
