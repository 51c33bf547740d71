"""Every store of holdfast passes the published suite. `-k sqlite` runs it for one of them."""

import asyncio
import os
from datetime import timedelta

import pytest
from tests.store_kinds import get_kind

from holdfast.checkpoint.workers import ProcessIdentity
from holdfast.testing.store_suite import DurableRunStoreSuite, RunStoreSuite

#: How long each store is called at random. The suite multiplies it by ten in the thorough form: 30 seconds.
SEQUENCE_SECONDS = 3 if "HOLDFAST_TEST_THOROUGH" in os.environ else 1


class TestEveryStore(RunStoreSuite):
    sequence_seconds = SEQUENCE_SECONDS

    @pytest.fixture
    def location(self, store_url: str) -> str:
        return store_url


class TestEveryDurableStore(DurableRunStoreSuite):
    sequence_seconds = SEQUENCE_SECONDS
    #: A fifth of the default lease timeout.
    heartbeat_interval = timedelta(seconds=6)

    @pytest.fixture
    def location(self, durable_store_url: str) -> str:
        return durable_store_url

    def damage(self, location: str, run_id: str, body: bytes) -> None:
        damage = get_kind(location).damage
        assert damage is not None, "a durable store can be damaged"
        damage(location, run_id, body)

    async def wait_until_idle(self, location: str, killed: ProcessIdentity) -> None:
        wait_until_idle = get_kind(location).wait_until_idle
        if wait_until_idle is not None:
            await asyncio.to_thread(wait_until_idle, location, killed.pid)
