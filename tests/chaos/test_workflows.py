"""Many workflows at once under random SIGKILL: nothing is paid twice, and nothing is left without its undo."""

import asyncio
import os
from pathlib import Path

import pytest
from tests.chaos import workflows
from tests.store_kinds import DURABLE, STORES

#: With `HOLDFAST_CHAOS` the workers are killed for minutes.
SECONDS = 240.0 if os.environ.get("HOLDFAST_CHAOS") else 3.0


@pytest.mark.parametrize("store", DURABLE)
@pytest.mark.timeout(900)
def test_workflows_survive_random_kills(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows, "LEDGER", tmp_path / "ledger")
    with STORES[store].open_empty(tmp_path) as url:
        report = asyncio.run(workflows.disrupt(url, tmp_path, SECONDS, seed=3))
    assert report["kills"] > 0
    assert report["runs"] > 0
    assert (report["faults"], report["left"], report["others"]) == ([], {}, [])
