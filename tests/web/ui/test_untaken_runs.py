"""The fleet names the agent of a run that no live worker takes."""

from datetime import timedelta

import httpx
import msgspec
from tests.probe_store import ProbeStore
from tests.web.ui.journals import store_long_run

from holdfast.app import App
from holdfast.clock import CLOCK
from holdfast.runtime.reading.formatting import utc_now
from holdfast.stores.from_url import store_from_url
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock
from holdfast.testing.store_processes.store_under_test import make_run, make_worker
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.ui import make_ui
from holdfast.web.ui.pages.fleet_page import read_fleet


async def test_a_run_whose_agent_no_live_worker_knows_is_named(store_url: str) -> None:
    store = store_from_url(store_url)
    await store.open()
    try:
        await store.create(make_run("older", agent_name="helper"))
        await store.create(make_run("child", agent_name="hidden", parent_run_id="older"))
        await store_long_run(store, "orphan", 1, agent="helpr")
        now = utc_now()
        assert (await read_fleet(store, LOCAL_PRINCIPAL, now)).untaken is None, "a worker may be about to take it"
        later = now + timedelta(minutes=1)
        untaken = (await read_fleet(store, LOCAL_PRINCIPAL, later)).untaken
        assert untaken is not None
        assert (untaken.run.run_id, untaken.has_live) == ("older", False)
        await store.register_worker(msgspec.structs.replace(make_worker(), agents=("helper",)))
        await store.register_worker(make_worker())
        untaken = (await read_fleet(store, LOCAL_PRINCIPAL, later)).untaken
        assert untaken is not None
        assert (untaken.run.agent, untaken.has_live) == ("helpr", True), "the worker that knows the other may be busy"
        await store.register_worker(msgspec.structs.replace(make_worker(), agents=("helpr",)))
        fleet = await read_fleet(store, LOCAL_PRINCIPAL, later)
        assert fleet.untaken is None, "a parent starts its child"
        assert sorted(tuple(each.agents) for each in fleet.workers) == [(), ("helper",), ("helpr",)]
    finally:
        await store.close()


async def test_the_list_and_the_page_of_the_run_say_that_no_worker_knows_the_agent() -> None:
    clock = ManualClock()
    CLOCK.set(clock)
    reads: list[str] = []

    async def count(method: str) -> None:
        reads.append(method)

    async with App([], ProbeStore(MemoryStore(), before=count), worker=False) as app:
        await store_long_run(app.store, "orphan", 1, agent="helpr")
        transport = httpx.ASGITransport(
            make_ui(app, authorize=lambda request: LOCAL_PRINCIPAL), client=("127.0.0.1", 1)
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for wanted in (False, True):
                for path in ("/", "/runs/orphan"):
                    reads.clear()
                    page = (await client.get(path)).text
                    assert reads.count("read_fleet") <= 1, "it counts all runs"
                    assert ("none knows agent <code>helpr</code>" in page) == wanted, path
                await clock.jump(timedelta(minutes=1))
