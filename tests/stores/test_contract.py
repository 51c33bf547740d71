"""Every store of holdfast passes the published suite. `-k sqlite` runs it for one of them."""

import asyncio

import pytest
from tests.store_kinds import get_kind

from holdfast.checkpoint.claim import ProcessIdentity
from holdfast.testing.store_suite import DurableStoreSuite, StoreSuite


class TestEveryStore(StoreSuite):
    @pytest.fixture
    def location(self, store_url: str) -> str:
        return store_url


class TestEveryDurableStore(DurableStoreSuite):
    @pytest.fixture
    def location(self, durable_store_url: str) -> str:
        return durable_store_url

    def damage(self, location: str, run_id: str, body: bytes) -> None:
        damage = get_kind(location).damage
        assert damage is not None, "a durable store can be damaged"
        damage(location, run_id, body)

    async def wait_until_idle(self, location: str, killed: ProcessIdentity) -> None:
        quiet = get_kind(location).wait_until_idle
        if quiet is not None:
            await asyncio.to_thread(quiet, location, killed.pid)
