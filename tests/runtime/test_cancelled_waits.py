"""A task that waits for a change in the store can be cancelled at any moment, even when the change has just come."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.checkpoint.record import NewRun
from holdfast.checkpoint.store import RunStore
from holdfast.stores.from_url import store_from_url


@pytest.mark.parametrize("url", ["sqlite:{}/runs.db", "memory:"])
@pytest.mark.parametrize("turns", range(8))
async def test_a_cancel_that_comes_together_with_a_sign_is_not_swallowed(url: str, turns: int, tmp_path: Path) -> None:
    store = store_from_url(url.format(tmp_path))
    await store.open()

    seen = asyncio.Event()

    async def wait_for_ever() -> None:
        while True:
            await store.wait_for_change(timedelta(seconds=30))
            seen.set()

    waiter = asyncio.create_task(wait_for_ever())
    created = 0
    while not seen.is_set():  # a change that comes before a task waits is missed
        created += 1
        await _create(store, f"run-{created}")
        await asyncio.sleep(0)
    await store.load("run-1")  # gives the waiter time to wait again
    await _create(store, "last")
    for _ in range(turns):
        await asyncio.sleep(0)
    waiter.cancel()
    done, _ = await asyncio.wait([waiter], timeout=60)
    assert waiter in done
    await store.close()


async def _create(store: RunStore, run_id: str) -> None:
    await store.create(NewRun(run_id=run_id, agent_name="agent", info=b"{}", progress=b"{}", entries=[]))
