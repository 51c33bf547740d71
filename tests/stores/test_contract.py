"""Every store of holdfast passes the published suite. `-k sqlite` runs it for one of them."""

import pytest
from tests import store_kinds

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
        store_kinds.damage(location, run_id, body)
