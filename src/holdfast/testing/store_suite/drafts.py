"""Tests of drafts: replies under way, which watchers read."""

from datetime import timedelta

import pytest

from holdfast.checkpoint.record import RELEASE_STATUSES, Release, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_suite.store_under_test import (
    StoreUnderTest,
    create_claimed,
    load_contents,
    make_append,
    make_run,
)

_LONG = timedelta(hours=1)


class DraftTests(StoreUnderTest):
    async def test_the_newest_draft_is_read(self, store: CheckpointStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        other = await create_claimed(store, worker, make_run("run-2"))
        assert await store.read_draft("run-1") is None
        await store.put_draft(claim, b"Hel")
        await store.put_draft(other, b"another one")
        await store.put_draft(claim, b"Hello \x00\xff" * 100)
        assert await store.read_draft("run-1") == b"Hello \x00\xff" * 100
        assert await store.read_draft("run-2") == b"another one"

    async def test_a_dropped_draft_is_gone(self, store: CheckpointStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.put_draft(claim, b"Hello")
        await store.put_draft(claim, None)
        await store.put_draft(claim, None)
        assert await store.read_draft("run-1") is None

    async def test_a_draft_changes_nothing_else(self, store: CheckpointStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        before = await load_contents(store)
        await store.put_draft(claim, b"Hello")
        await store.request_drafts("run-1", _LONG)
        assert await load_contents(store) == before
        await store.append(claim, make_append(1, b"one"))
        assert await store.read_draft("run-1") == b"Hello"

    async def test_a_draft_of_an_earlier_claim_is_void(self, store: CheckpointStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.put_draft(claim, b"Hello")
        await store.claim("run-1", worker, steal=True)
        assert await store.read_draft("run-1") is None

    async def test_an_earlier_claim_puts_and_drops_no_draft(self, store: CheckpointStore, worker: str) -> None:
        old = await create_claimed(store, worker)
        new = await store.claim("run-1", worker, steal=True)
        await store.put_draft(old, b"stale")
        assert await store.read_draft("run-1") is None
        await store.put_draft(new, b"Hello")
        await store.put_draft(old, b"stale")
        await store.put_draft(old, None)
        assert await store.read_draft("run-1") == b"Hello"

    @pytest.mark.parametrize("status", sorted(RELEASE_STATUSES))
    async def test_a_released_run_has_no_draft(self, store: CheckpointStore, worker: str, status: RunStatus) -> None:
        claim = await create_claimed(store, worker)
        await store.put_draft(claim, b"Hello")
        await store.release(claim, Release(status=status))
        assert await store.read_draft("run-1") is None
        await store.put_draft(claim, b"late")
        assert await store.read_draft("run-1") is None

    async def test_a_draft_ends_with_its_run(self, store: CheckpointStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.put_draft(claim, b"Hello")
        await store.remove("run-1", claim=claim)
        assert await store.read_draft("run-1") is None
        await store.put_draft(claim, b"late")
        await create_claimed(store, worker)
        assert await store.read_draft("run-1") is None

    async def test_drafts_are_requested_for_a_while(self, store: CheckpointStore) -> None:
        await store.request_drafts("run-1", _LONG)
        await store.request_drafts("run-2", timedelta(0))
        assert set(await store.requested_drafts(["run-1", "run-2", "run-3"])) == {"run-1"}
        assert set(await store.requested_drafts(["run-2", "run-3"])) == set()
        assert set(await store.requested_drafts([])) == set()

    async def test_a_short_request_does_not_end_a_long_one(self, store: CheckpointStore) -> None:
        await store.request_drafts("run-1", _LONG)
        await store.request_drafts("run-1", timedelta(0))
        await store.request_drafts("run-2", timedelta(0))
        assert set(await store.requested_drafts(["run-1"])) == {"run-1"}


class SharedDraftTests(StoreUnderTest):
    async def test_other_stores_at_the_same_place_see_drafts_and_requests(
        self, store: CheckpointStore, location: str, worker: str
    ) -> None:
        claim = await create_claimed(store, worker)
        async with self.open_store(location) as other:
            await other.request_drafts("run-1", _LONG)
            assert set(await store.requested_drafts(["run-1"])) == {"run-1"}
            await store.put_draft(claim, b"Hello")
            assert await other.read_draft("run-1") == b"Hello"
            await store.put_draft(claim, None)
            assert await other.read_draft("run-1") is None
