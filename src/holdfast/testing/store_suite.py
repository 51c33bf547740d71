"""The contract of `RunStore` as tests. A store is finished when it passes.

Subclass the suites in a test module, give them a factory and a location, and run pytest::

    class TestMyStore(RunStoreSuite, DurableRunStoreSuite):
        factory = "my_package.my_store:open_my_store"

        @pytest.fixture
        def location(self, tmp_path: Path) -> str:
            return str(tmp_path / "runs")

A store with `durable = True` runs `DurableRunStoreSuite` too. The suites need pytest, pytest-asyncio and hypothesis.
"""

from holdfast.testing.store_tests.append_tests import AppendTests, CreateTests, LoadTests, RewriteTests, TransactTests
from holdfast.testing.store_tests.claim_next_tests import ClaimNextTests, FairnessTests
from holdfast.testing.store_tests.claim_tests import ClaimTests, FencingTests, WorkerTests
from holdfast.testing.store_tests.kill_tests import CrashingSequenceTests, KillTests, SequenceTests
from holdfast.testing.store_tests.limit_tests import LimitTests, PriorityTests, SharedLimitTests
from holdfast.testing.store_tests.mail_tests import ConsumeMailTests, PendingMailTests, PostTests
from holdfast.testing.store_tests.notice_tests import CancelTests, ChangeNotificationTests, DraftTests, SharedDraftTests
from holdfast.testing.store_tests.open_close_tests import IsolationTests, OpenCloseTests, RunIdTests, TablesTests
from holdfast.testing.store_tests.page_tests import ListingTests, PageTests
from holdfast.testing.store_tests.race_tests import RaceTests, WorkerDeathTests
from holdfast.testing.store_tests.release_tests import PurgeTests, ReleaseTests, RemoveTests
from holdfast.testing.store_tests.reopen_tests import DamageTests, ReopenTests, SharedStoreTests
from holdfast.testing.store_tests.wait_tests import NotBeforeTests, WaitTests

__all__ = ["DurableRunStoreSuite", "RunStoreSuite"]


class RunStoreSuite(
    CreateTests,
    AppendTests,
    RewriteTests,
    LoadTests,
    TransactTests,
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
    TablesTests,
    IsolationTests,
    RunIdTests,
    SequenceTests,
):
    """The contract of every store, within one process."""


class DurableRunStoreSuite(
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
