"""The sizes of pages and of purges that a store uses if it is not told another one."""

from datetime import timedelta

from holdfast.checkpoint.record import Release, RunStatus
from holdfast.stores.from_url import store_from_url
from holdfast.testing.store_processes.store_under_test import add_worker, create_claimed, make_run


async def test_a_page_has_50_runs_and_a_purge_removes_100(store_url: str) -> None:
    store = store_from_url(store_url)
    await store.open()
    try:
        worker = await add_worker(store)
        for number in range(101):
            claim = await create_claimed(store, worker, make_run(f"run-{number:03}"))
            await store.release(claim, Release(status=RunStatus.DONE, retention=timedelta(0)))
        page = await store.list_page()
        assert [record.run_id for record in page.records] == [f"run-{number:03}" for number in range(100, 50, -1)]
        page = await store.list_page(cursor=page.cursor)
        assert [record.run_id for record in page.records] == [f"run-{number:03}" for number in range(50, 0, -1)]
        assert await store.purge() == 100
        assert await store.purge() == 1
    finally:
        await store.close()
