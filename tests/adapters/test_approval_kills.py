"""An agent with approvals is killed before each of its writes. A ledger outside the store is the oracle."""

import asyncio
import itertools
import multiprocessing
import signal
from pathlib import Path

import pytest
from tests.adapters.approval_worker import Ledger, main, work

from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.adapters.approval_worker"])

#: Each test takes every fourth write: together they take all.
GROUPS = 4
RESULTS = {"look": "seen", "pay": "paid 150", "ship": "no stock", "render": "sea.png"}


def dies(url: str, folder: Path, die_at: int) -> bool:
    """Execute the run in a process that dies before the write of this number, if there are that many."""
    process = PROCESSES.Process(target=main, args=(url, folder, die_at))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.parametrize("first", range(1, GROUPS + 1))
def test_a_kill_before_any_write_makes_no_call_twice_and_none_without_its_approval(tmp_path: Path, first: int) -> None:
    for die_at in itertools.count(first, GROUPS):
        folder = tmp_path / str(die_at)
        folder.mkdir()
        url, ledger = f"sqlite:{folder / 'runs.db'}", Ledger(folder)
        died = dies(url, folder, die_at)
        results = asyncio.run(work(url, folder, 0))
        done = ledger.lines
        assert len(done) == len(set(done)), f"a call was made twice: {done}"
        assert set(done) <= {"look", "pay 150", "render sea"}, "a call was made without its approval, or denied"
        assert {*results} == {*RESULTS}
        for call_id, result in results.items():
            assert result == RESULTS[call_id] or (died and result == UNKNOWN_OUTCOME)
        # A payment that is reported was made.
        assert "pay 150" in done or results["pay"] == UNKNOWN_OUTCOME
        if not died:
            assert die_at > 10
            return
