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
from holdfast.testing.store_suite.claims import ClaimClauses, FenceClauses, WorkerClauses
from holdfast.testing.store_suite.crash import CrashClauses
from holdfast.testing.store_suite.endings import PurgeClauses, RemoveClauses, SettleClauses
from holdfast.testing.store_suite.finding import ClaimNextClauses, ListingClauses
from holdfast.testing.store_suite.journal import AppendClauses, CreateClauses, LoadClauses, RewriteClauses
from holdfast.testing.store_suite.life import IsolationClauses, NameClauses, OpenClauses
from holdfast.testing.store_suite.processes import DeathClauses, RaceClauses
from holdfast.testing.store_suite.reopening import DamageClauses, ReopeningClauses, SharingClauses
from holdfast.testing.store_suite.sequences import CrashingSequenceClauses, SequenceClauses
from holdfast.testing.store_suite.signals import CancelClauses, ChangeClauses

__all__ = ["DurableStoreSuite", "StoreSuite"]


class StoreSuite(
    CreateClauses,
    AppendClauses,
    RewriteClauses,
    LoadClauses,
    ClaimClauses,
    FenceClauses,
    WorkerClauses,
    SettleClauses,
    RemoveClauses,
    PurgeClauses,
    ListingClauses,
    ClaimNextClauses,
    CancelClauses,
    ChangeClauses,
    OpenClauses,
    IsolationClauses,
    NameClauses,
    SequenceClauses,
):
    """What every store promises, within one process."""


class DurableStoreSuite(
    ReopeningClauses,
    SharingClauses,
    DamageClauses,
    RaceClauses,
    DeathClauses,
    CrashClauses,
    CrashingSequenceClauses,
):
    """What a durable store promises beyond that: over reopening, between processes, and when one of them is killed."""
