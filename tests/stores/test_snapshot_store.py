"""The store that the broken ones are made from is whole: the suite is green for it, so a red one is their own fault."""

from pathlib import Path

import pytest
from tests.stores import snapshot_store

from holdfast.testing.store_suite import DurableStoreSuite, StoreSuite


class TestSnapshotStore(StoreSuite, DurableStoreSuite):
    factory = "tests.stores.snapshot_store:SnapshotStore"
    sequence_seconds = 1

    @pytest.fixture
    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "runs.snapshot")

    def damage(self, location: str, run_id: str, body: bytes) -> None:
        snapshot_store.damage(location, run_id, body)
