"""Every store of holdfast passes the published suite. `-k sqlite` runs it for one of them."""

import pytest

from holdfast.testing.store_suite import StoreSuite


class TestEveryStore(StoreSuite):
    @pytest.fixture
    def location(self, store_url: str) -> str:
        return store_url
