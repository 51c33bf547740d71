"""Every store of holdfast passes the published suite. `-k sqlite` runs it for one of them."""

import pytest

from holdfast.testing.store_suite import DurableStoreSuite, StoreSuite


class TestEveryStore(StoreSuite):
    @pytest.fixture
    def location(self, store_url: str) -> str:
        return store_url


class TestEveryDurableStore(DurableStoreSuite):
    @pytest.fixture
    def location(self, durable_url: str) -> str:
        return durable_url
