"""An agent with approvals is killed before each of its writes. A ledger outside the store is the oracle."""

import asyncio
import multiprocessing
import signal
from pathlib import Path

from tests.adapters.approval_worker import Ledger, main, work

from holdfast.core.execution.steps import UNKNOWN_OUTCOME

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.adapters.approval_worker"])

RESULTS = {"look": "seen", "pay": "paid 150", "ship": "no stock", "render": "sea.png"}


def dies(url: str, folder: Path, die_at: int) -> bool:
    """Execute the run in a process that dies before the write of this number, if there are so many."""
    process = PROCESSES.Process(target=main, args=(url, folder, die_at))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def test_a_kill_before_any_write_makes_no_call_twice_and_none_without_its_approval(tmp_path: Path) -> None:
    died, die_at = True, 0
    while died:
        die_at += 1
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
    assert die_at > 10
