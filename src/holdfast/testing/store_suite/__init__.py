"""The contract of `CheckpointStore` as tests. A store is finished when it passes.

Subclass `StoreSuite` in a test module, say where the store lives, and run pytest::

    class TestMyStore(StoreSuite, DurableStoreSuite):
        factory = "my_package.my_store:open_my_store"

        @pytest.fixture
        def location(self, tmp_path: Path) -> str:
            return str(tmp_path / "runs")

A store that says it is `durable` runs `DurableStoreSuite` too. It needs pytest, pytest-asyncio and hypothesis.
"""

import pytest

# So that a failure shows the values, as in a test module. It has to be said before they are imported.
for _part in (
    *("subject", "journal", "claims", "endings", "finding", "signals", "life"),
    *("reopening", "processes", "crash", "model", "world", "machine", "sequences"),
):
    pytest.register_assert_rewrite(f"{__name__}.{_part}")

# ruff: noqa: E402
from holdfast.testing.store_suite.claims import ClaimTests, FencingTests, WorkerTests
from holdfast.testing.store_suite.durability import DamageTests, ReopenTests, SharedStoreTests
from holdfast.testing.store_suite.journal import AppendTests, CreateTests, LoadTests, RewriteTests
from holdfast.testing.store_suite.kills import KillTests
from holdfast.testing.store_suite.lifecycle import IsolationTests, OpenCloseTests, RunIdTests
from holdfast.testing.store_suite.listing import ClaimNextTests, ListingTests
from holdfast.testing.store_suite.notifications import CancelTests, ChangeNotificationTests
from holdfast.testing.store_suite.processes import RaceTests, WorkerDeathTests
from holdfast.testing.store_suite.release import PurgeTests, ReleaseTests, RemoveTests
from holdfast.testing.store_suite.sequences import CrashingSequenceTests, SequenceTests

__all__ = ["DurableStoreSuite", "StoreSuite"]


class StoreSuite(
    CreateTests,
    AppendTests,
    RewriteTests,
    LoadTests,
    ClaimTests,
    FencingTests,
    WorkerTests,
    ReleaseTests,
    RemoveTests,
    PurgeTests,
    ListingTests,
    ClaimNextTests,
    CancelTests,
    ChangeNotificationTests,
    OpenCloseTests,
    IsolationTests,
    RunIdTests,
    SequenceTests,
):
    """What every store promises, within one process."""


class DurableStoreSuite(
    ReopenTests,
    SharedStoreTests,
    DamageTests,
    RaceTests,
    WorkerDeathTests,
    KillTests,
    CrashingSequenceTests,
):
    """What a durable store promises beyond that: over reopening, between processes, and when one of them is killed."""
