"""The fleet names the agent of a run that no live worker takes."""

from datetime import timedelta

import httpx
import msgspec
from tests.probe_store import ProbeStore
from tests.web.ui.journals import store_long_run

from holdfast.app import App
from holdfast.clock import CLOCK
from holdfast.runtime.reading.formatting import utc_now
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.ui import make_ui
from holdfast.web.ui.pages.fleet_page import FleetWorker, read_fleet


async def test_a_due_run_that_no_idle_worker_takes_names_its_agent() -> None:
    store = MemoryStore()
    await store.open()
    await store_long_run(store, "orphan", 1, agent="helpr")
    now = utc_now()
    fleet = await read_fleet(store, LOCAL_PRINCIPAL, now)
    assert fleet.untaken is None, "a worker may be about to take it"
    later = msgspec.structs.replace(fleet, at=now + timedelta(minutes=1))
    assert later.untaken is not None
    assert (later.untaken.agent, later.has_live) == ("helpr", False)
    run = later.untaken
    busy = FleetWorker(worker_id="w", alive=True, runs=[run])
    assert msgspec.structs.replace(later, workers=[busy]).untaken is None, "the worker has no room"
    idle = FleetWorker(worker_id="v", alive=True, runs=[])
    assert msgspec.structs.replace(later, workers=[busy, idle]).untaken == run


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
