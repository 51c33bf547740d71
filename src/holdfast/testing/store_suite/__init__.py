"""The contract of `CheckpointStore` as tests. A store is finished when it passes.

Subclass the suites in a test module, give them a factory and a location, and run pytest::

    class TestMyStore(StoreSuite, DurableStoreSuite):
        factory = "my_package.my_store:open_my_store"

        @pytest.fixture
        def location(self, tmp_path: Path) -> str:
            return str(tmp_path / "runs")

A store with `durable = True` runs `DurableStoreSuite` too. The suites need pytest, pytest-asyncio and hypothesis.
"""

import pkgutil

import pytest

# A failed assert then shows its values, as in a test module. Must run before the modules are imported.
for _module in pkgutil.iter_modules(__path__):
    pytest.register_assert_rewrite(f"{__name__}.{_module.name}")

# ruff: noqa: E402
from holdfast.testing.store_suite.claims import ClaimTests, FencingTests, WorkerTests
from holdfast.testing.store_suite.drafts import DraftTests, SharedDraftTests
from holdfast.testing.store_suite.durability import DamageTests, ReopenTests, SharedStoreTests
from holdfast.testing.store_suite.fairness import FairnessTests
from holdfast.testing.store_suite.journal import AppendTests, CreateTests, LoadTests, RewriteTests
from holdfast.testing.store_suite.kills import KillTests
from holdfast.testing.store_suite.lifecycle import IsolationTests, OpenCloseTests, RunIdTests
from holdfast.testing.store_suite.limits import LimitTests, PriorityTests, SharedLimitTests
from holdfast.testing.store_suite.listing import ClaimNextTests, ListingTests
from holdfast.testing.store_suite.mail import ConsumeMailTests, PendingMailTests, PostTests
from holdfast.testing.store_suite.notifications import CancelTests, ChangeNotificationTests
from holdfast.testing.store_suite.pages import PageTests
from holdfast.testing.store_suite.processes import RaceTests, WorkerDeathTests
from holdfast.testing.store_suite.release import PurgeTests, ReleaseTests, RemoveTests
from holdfast.testing.store_suite.sequences import CrashingSequenceTests, SequenceTests
from holdfast.testing.store_suite.waiting import NotBeforeTests, WaitTests

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
    PageTests,
    ClaimNextTests,
    PriorityTests,
    LimitTests,
    FairnessTests,
    PostTests,
    ConsumeMailTests,
    PendingMailTests,
    WaitTests,
    NotBeforeTests,
    CancelTests,
    ChangeNotificationTests,
    DraftTests,
    OpenCloseTests,
    IsolationTests,
    RunIdTests,
    SequenceTests,
):
    """The contract of every store, within one process."""


class DurableStoreSuite(
    ReopenTests,
    SharedStoreTests,
    SharedDraftTests,
    SharedLimitTests,
    DamageTests,
    RaceTests,
    WorkerDeathTests,
    KillTests,
    CrashingSequenceTests,
):
    """The rest of the contract of a durable store: reopening, several processes, and kills."""
