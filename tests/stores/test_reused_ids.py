"""A run that has the id of a removed one inherits nothing of it, in any store."""

from datetime import timedelta

from holdfast.checkpoint.record import Pending, Release, RunStatus
from holdfast.stores.from_url import store_from_url
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    list_run_ids,
    make_mail,
    make_run,
)


async def test_neither_mail_nor_a_cancel_nor_a_draft_of_the_removed_run(store_url: str) -> None:
    store = store_from_url(store_url)
    await store.open()
    try:
        worker = await add_worker(store)
        first = await create_claimed(store, worker, make_run("run-1"))
        await store.post("run-1", make_mail())
        await store.request_cancel("run-1")
        await store.put_draft(first, b"draft")
        await store.read_draft("run-1", keep_for=timedelta(minutes=5))
        held = await store.pending(worker)
        assert (held.mail, held.cancels, held.drafts) == (("run-1",), ("run-1",), ("run-1",))
        await store.remove("run-1", claim=first)
        assert await store.pending(worker) == Pending()
        second = await create_claimed(store, worker, make_run("run-1"))
        held = await store.pending(worker)
        assert (held.mail, held.cancels) == ((), ())
        assert await store.read_draft("run-1") is None
        assert (await store.load("run-1")).mail == ()
        assert second.token > first.token
    finally:
        await store.close()


async def test_a_run_with_the_id_of_a_removed_child_is_no_child(store_url: str) -> None:
    store = store_from_url(store_url)
    await store.open()
    try:
        worker = await add_worker(store)
        parent = await create_claimed(store, worker, make_run("parent"))
        child = await create_claimed(store, worker, make_run("child", parent_run_id="parent"))
        await store.remove("child", claim=child)
        await store.create(make_run("child"))
        await store.remove("parent", claim=parent)
        assert await list_run_ids(store) == ["child"]
    finally:
        await store.close()


async def test_mail_that_was_read_and_a_cancel_that_was_applied_are_pending_no_more(store_url: str) -> None:
    store = store_from_url(store_url)
    await store.open()
    try:
        worker = await add_worker(store)
        claim = await create_claimed(store, worker, make_run("run-1"))
        await store.post("run-1", make_mail())
        await store.request_cancel("run-1")
        cancelled = Release(status=RunStatus.CANCELLED, consumed=("mail-1",))
        await store.release(claim, cancelled)
        again = await store.claim("run-1", worker, statuses={RunStatus.CANCELLED})
        held = await store.pending(worker)
        assert (held.mail, held.cancels) == ((), ())
        assert not (await store.load(again.run_id)).record.cancel_requested
    finally:
        await store.close()
