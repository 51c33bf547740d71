"""Every store of holdfast passes the published suite. `-k sqlite` runs it for one of them."""

import asyncio

import pytest
from tests.store_kinds import kind_of

from holdfast.checkpoint.liveness import ProcessIdentity
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
        damage = kind_of(location).damage
        assert damage is not None, "a durable store can be damaged"
        damage(location, run_id, body)

    async def quiet(self, location: str, killed: ProcessIdentity) -> None:
        quiet = kind_of(location).quiet
        if quiet is not None:
            await asyncio.to_thread(quiet, location, killed.pid)
