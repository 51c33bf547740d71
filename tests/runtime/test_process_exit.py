"""A tool that calls `sys.exit` ends its process: other runs continue elsewhere, and its own run is finally parked."""

import asyncio
import subprocess

from tests.runtime.conftest import ProcessHarness, load_records

from holdfast.checkpoint.record import RunStatus

#: Longer than any backoff, for processes whose store has a clock that is ahead by this.
HOUR = 3600


async def _wait_for_exit(child: "subprocess.Popen[str]") -> None:
    await asyncio.to_thread(child.communicate, timeout=60)
    assert child.returncode == 7


async def test_it_is_parked_after_three_lives_and_no_other_run_repeats_an_effect(harness: ProcessHarness) -> None:
    async with harness.app() as app:
        await app.submit("errand", "exit", run_id="culprit")
        await app.submit("errand", "note gate note", run_id="innocent")
        first = harness.start("recover")
        assert first.stderr is not None
        while "other runs of this process are interrupted" not in await asyncio.to_thread(first.stderr.readline):
            assert first.poll() is None
        harness.set_flag("open")
        await _wait_for_exit(first)
        left = await load_records(app)
        assert {run_id: (run.status, run.strikes) for run_id, run in left.items()} == {
            "culprit": (RunStatus.INTERRUPTED, 1),
            "innocent": (RunStatus.INTERRUPTED, 0),
        }
        for life in (1, 2):
            await _wait_for_exit(harness.start("recover", later=life * HOUR))
        last = harness.start("recover", later=3 * HOUR)
        out, _ = await asyncio.to_thread(last.communicate, timeout=60)
        assert "'culprit': 'parked'" in out
        parked = (await load_records(app))["culprit"]
        assert parked.reason.startswith("poison: 3 owners in a row died or gave up in step 1 while calling exit")
        assert "SystemExit: 7" in parked.reason
        assert (await app.result("innocent")).output == "did note gate note"
    innocent = [effect for effect in harness.read_effects() if effect.startswith("innocent")]
    assert innocent == ["innocent note c0", "innocent gate c1", "innocent note c2"]
    assert harness.list_calls().count("exit") == 3
