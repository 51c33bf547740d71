"""A harness for each test of a handle."""

from collections.abc import AsyncIterator

import pytest_asyncio
from tests.checkpoint.harness import CheckpointerHarness

from holdfast.checkpoint.workers import WorkerIdentity, this_process
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock


@pytest_asyncio.fixture
async def harness() -> AsyncIterator[CheckpointerHarness]:
    clock = ManualClock()
    inner = MemoryStore(clock=clock)
    await inner.open()
    await inner.register_worker(WorkerIdentity(worker_id="w", process=this_process()))
    yield CheckpointerHarness(clock, inner)
    await inner.close()
