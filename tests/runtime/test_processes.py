"""Several processes on one store: one submits a run, another executes it, a third waits for it."""

import asyncio
import signal

import pytest
from tests.runtime.conftest import ProcessHarness, load_records

from holdfast.checkpoint.errors import RunBusy, RunConflict
from holdfast.checkpoint.record import RunFilter, RunStatus
from holdfast.config import WorkerSettings
from holdfast.core.errors import RunCancelled


async def test_what_one_process_submits_another_executes_and_this_one_awaits(fleet_harness: ProcessHarness) -> None:
    fleet_harness.start("serve")
    async with fleet_harness.app() as app:
        run_id = await app.submit("errand", "note note")
        result = await app.result(run_id)
    assert (result.output, result.steps) == ("did note note", 3)
    assert fleet_harness.read_effects() == [f"{run_id} note c0", f"{run_id} note c1"]


async def test_a_run_that_another_process_owns_is_cancelled_by_it(fleet_harness: ProcessHarness) -> None:
    fleet_harness.start("serve")
    async with fleet_harness.app() as app:
        await app.submit("errand", "gate note", run_id="r")
        await asyncio.to_thread(fleet_harness.wait_for_effect, "r gate c0")
        await app.cancel("r")
        with pytest.raises(RunCancelled):
            await app.result("r")
        assert (await load_records(app))["r"].status is RunStatus.CANCELLED
    assert fleet_harness.read_effects() == ["r gate c0"]


async def test_any_worker_takes_over_the_runs_of_a_dead_one(fleet_harness: ProcessHarness) -> None:
    runs = [f"r{number}" for number in range(5)]
    first = fleet_harness.start("serve")
    async with fleet_harness.app() as app:
        for run_id in runs:
            await app.submit("errand", "note gate note", run_id=run_id)
        for run_id in runs:
            await asyncio.to_thread(fleet_harness.wait_for_effect, f"{run_id} gate c1")
        owner = {record.owner for record in (await load_records(app)).values()}
        first.kill()
        first.wait()
        fleet_harness.set_flag("open")
        fleet_harness.start("serve")
        fleet_harness.start("serve")
        assert [(await app.result(run_id)).output for run_id in runs] == ["did note gate note"] * 5
        assert owner.isdisjoint({record.owner for record in (await load_records(app)).values()})
    noted = [deed for deed in fleet_harness.read_effects() if " note " in deed]
    assert sorted(noted) == sorted(f"{run_id} note {call}" for run_id in runs for call in ("c0", "c2"))


async def test_a_run_of_an_unknown_agent_is_left_alone_and_visible(harness: ProcessHarness) -> None:
    async with harness.app() as app:
        await app.submit("other", "", run_id="theirs")
        await app.submit("errand", "note", run_id="ours")
    async with harness.app() as app:
        only_ours = app.replace(agents=[harness.agents.agent])
    async with only_ours:
        report = await only_ours.recover()
        assert list(report.statuses) == ["ours"]
        left = (await load_records(only_ours, RunFilter(interrupted=True)))["theirs"]
        assert (left.status, left.token, left.strikes, left.agent_name) == (RunStatus.QUEUED, 0, 0, "other")
    async with harness.app() as app:
        assert list((await app.recover()).statuses) == ["theirs"]
        assert (await app.result("theirs")).output == "did "


# -- the same run id ----------------------------------------------------------------------------------------------


async def test_a_run_whose_process_was_killed_continues_under_the_same_id(fleet_harness: ProcessHarness) -> None:
    child = fleet_harness.start("run", "r", "note gate note")
    fleet_harness.wait_for_effect("r gate c1")
    child.kill()
    child.wait()
    fleet_harness.set_flag("open")
    async with fleet_harness.app() as app:
        assert (await app.run("errand", "note gate note", run_id="r")).output == "did note gate note"
        assert (await load_records(app))["r"].status is RunStatus.DONE
    assert fleet_harness.read_effects() == ["r note c0", "r gate c1", "r gate c1", "r note c2"]


async def test_recovery_and_a_caller_with_the_same_id_share_one_run(harness: ProcessHarness) -> None:
    child = harness.start("run", "r", "note gate note")
    harness.wait_for_effect("r gate c1")
    child.kill()
    child.wait()
    harness.set_flag("open")
    async with harness.app(worker=WorkerSettings(take_runs=True)) as app:
        assert (await app.run("errand", "note gate note", run_id="r")).output == "did note gate note"
    assert harness.read_effects().count("r note c2") == 1


async def test_a_run_that_another_live_process_owns_is_awaited_but_not_resumed_by_hand(
    fleet_harness: ProcessHarness,
) -> None:
    child = fleet_harness.start("run", "r", "gate")
    fleet_harness.wait_for_effect("r gate c0")
    async with fleet_harness.app() as app:
        with pytest.raises(RunBusy):
            await app.resume("r")
        with pytest.raises(RunConflict):
            await app.run("errand", "note", run_id="r")
        with pytest.raises(RunConflict):
            await app.submit("other", "gate", run_id="r")
        awaited = asyncio.create_task(app.run("errand", "gate", run_id="r"))
        fleet_harness.set_flag("open")
        assert (await awaited).output == "did gate"
    assert child.communicate(timeout=60)[0] == "did gate\n"
    assert fleet_harness.read_effects() == ["r gate c0"]


@pytest.mark.parametrize("callers", [2, 5])
async def test_callers_with_the_same_id_at_the_same_time_share_one_run(harness: ProcessHarness, callers: int) -> None:
    async with harness.app() as app:
        running = [asyncio.create_task(app.run("errand", "note gate", run_id="r")) for _ in range(callers)]
        await asyncio.to_thread(harness.wait_for_effect, "r gate c1")
        harness.set_flag("open")
        assert [(await run).output for run in running] == ["did note gate"] * callers
    assert harness.read_effects() == ["r note c0", "r gate c1"]


async def test_a_submitted_run_that_is_over_gives_its_result_again(harness: ProcessHarness) -> None:
    async with harness.app() as app:
        await app.submit("errand", "note", run_id="r")
        await app.recover()
        assert (await app.run("errand", "note", run_id="r")).output == "did note"
        assert await app.submit("errand", "note", run_id="r") == "r"
    assert harness.read_effects() == ["r note c0"]


# -- Ctrl-C -------------------------------------------------------------------------------------------------------


async def test_ctrl_c_on_run_sync_leaves_a_run_that_another_process_continues(harness: ProcessHarness) -> None:
    child = harness.start("run_sync", "r", "note gate note")
    harness.wait_for_effect("r gate c1")
    child.send_signal(signal.SIGINT)
    async with harness.app() as app:
        harness.set_flag("open")  # the step is finished, and the run is left at its boundary
        out, err = await asyncio.to_thread(child.communicate)
        assert out == ""
        assert (child.returncode, err) == (130, "holdfast: interrupted after step 2; start again to continue\n")
        left = (await load_records(app))["r"]
        assert (left.status, left.strikes) == (RunStatus.INTERRUPTED, 0)
        assert harness.read_effects() == ["r note c0", "r gate c1"]
        assert (await app.run("errand", "note gate note", run_id="r")).output == "did note gate note"
    assert harness.read_effects() == ["r note c0", "r gate c1", "r note c2"]
