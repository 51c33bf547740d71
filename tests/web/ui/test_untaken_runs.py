"""The fleet names the agent of a run that no live worker takes."""

from datetime import timedelta

import msgspec
from tests.web.ui.journals import store_long_run

from holdfast.runtime.reading.formatting import utc_now
from holdfast.stores.memory import MemoryStore
from holdfast.web.auth import LOCAL_PRINCIPAL
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
