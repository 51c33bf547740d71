"""The example store of docs/how-to/write-a-store.md passes the published suite. The planted bugs derive from it."""

from pathlib import Path

import pytest

from holdfast.testing.store_check.scratch_stores import flip_bit
from holdfast.testing.store_suite import DurableRunStoreSuite, RunStoreSuite


class TestSnapshotStore(RunStoreSuite, DurableRunStoreSuite):
    factory = "examples.snapshot_store:SnapshotStore"
    sequence_seconds = 1

    @pytest.fixture
    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "runs.snapshot")

    def damage(self, location: str, run_id: str, body: bytes) -> None:
        flip_bit(Path(location), body)
