"""Workers and counts of every store."""

from holdfast.checkpoint.record import RELEASE_STATUSES, Release, RunStatus
from holdfast.stores.from_url import store_from_url
from holdfast.stores.wrapper import StoreWrapper
from holdfast.testing.store_processes.store_under_test import add_worker, create_claimed, make_run


async def test_runs_are_counted_by_agent_and_status(store_url: str) -> None:
    store = store_from_url(store_url)
    await store.open()
    try:
        gone, worker = await add_worker(store), await add_worker(store)
        await create_claimed(store, gone, make_run("abandoned"))
        await create_claimed(store, worker, make_run("executed"))
        for status in sorted(RELEASE_STATUSES):
            await store.release(await create_claimed(store, worker, make_run(status)), Release(status=status))
        for number in range(3):
            await store.create(make_run(f"queued-{number}"))
        await store.create(make_run("other", agent_name="other"))
        await store.deregister_worker(gone)
        counts = (await store.read_fleet()).counts
    finally:
        await store.close()
    expected = dict.fromkeys(RELEASE_STATUSES, 1) | {RunStatus.QUEUED: 3, RunStatus.RUNNING: 1}
    expected[RunStatus.INTERRUPTED] = 2
    assert {each.status: each.count for each in counts if each.agent_name == "agent"} == expected
    assert [(each.status, each.count) for each in counts if each.agent_name == "other"] == [(RunStatus.QUEUED, 1)]
    due = {each.status: (each.due, each.oldest is not None) for each in counts if each.agent_name == "agent"}
    assert due == dict.fromkeys(expected, (0, False)) | {
        RunStatus.QUEUED: (3, True),
        RunStatus.INTERRUPTED: (2, True),
    }


async def test_workers_without_runs_are_listed_through_a_wrapper(store_url: str) -> None:
    store = StoreWrapper(store_from_url(store_url))
    await store.open()
    try:
        workers = sorted([await add_worker(store), await add_worker(store)])
        listed = (await store.read_fleet()).workers
        assert [each.worker.worker_id for each in listed] == workers
        assert all(each.alive and each.worker.process.pid for each in listed)
        await store.deregister_worker(workers[0])
        assert [each.worker.worker_id for each in (await store.read_fleet()).workers] == workers[1:]
    finally:
        await store.close()
