"""What a person does to runs: resume a failed one, resolve a call in doubt, fork; and how long runs are kept."""

import asyncio
import signal
from datetime import timedelta

import pytest
from tests.failed_runs import fails_with
from tests.runtime.conftest import ProcessHarness, load_records
from tests.runtime.task_process import OffsetClock, TaskAgents
from tests.simulated_host import REMOVE_ENDED

from holdfast import App, CheckpointSettings, Reply, Retention, ToolResult, User
from holdfast.checkpoint.codec import decode_run
from holdfast.checkpoint.errors import CheckpointError, RunExists, RunNotClaimable, RunNotFound
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.store import iter_runs
from holdfast.core.errors import RunCancelled, RunFailed, RunParked
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.run.messages import NATIVE_CODEC
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.store_processes.store_under_test import add_worker

DAY = timedelta(days=1)
LONG = {"done": 9 * DAY, "failed": 9 * DAY, "cancelled": 9 * DAY}


def store_of(harness: ProcessHarness, later: timedelta) -> SqliteStore:
    return SqliteStore(harness.url.removeprefix("sqlite:"), clock=OffsetClock(later))


# -- failed runs --------------------------------------------------------------------------------------------------


async def test_a_failed_run_is_gone_if_the_host_does_not_keep_it(harness: ProcessHarness) -> None:
    harness.set_flag("outage")
    async with harness.app(checkpoint=CheckpointSettings(retention=REMOVE_ENDED)) as app:
        with fails_with(LookupError):
            await app.run("errand", "note ask", run_id="r")
        assert await load_records(app) == {}


async def test_a_run_that_an_outage_ended_at_hour_three_is_resumed_by_hand(harness: ProcessHarness) -> None:
    harness.set_flag("outage")
    async with harness.app() as app:
        with fails_with(LookupError):
            await app.run("errand", "note note ask note", run_id="r")
        kept = (await load_records(app))["r"]
        assert (kept.status, kept.reason) == (RunStatus.FAILED, "LookupError: the model is gone")
        assert (await app.recover()).statuses == {}
    harness.clear_flag("outage")
    async with harness.app() as app:
        # Asked for by its id it is what it was: failed. Only a person brings it back.
        with pytest.raises(RunFailed, match="the model is gone"):
            await app.run("errand", "note note ask note", run_id="r")
        result = await app.resume("r")
        assert (result.output, result.steps) == ("did note note ask note", 5)
        assert (await load_records(app))["r"].status is RunStatus.DONE
    assert harness.read_effects() == ["r note c0", "r note c1", "r note c3"]


async def test_a_resume_by_hand_outweighs_a_cancel_whose_owner_died_before_it_noticed(
    fleet_harness: ProcessHarness,
) -> None:
    async with fleet_harness.app() as app:
        assert app.store is not None
        await app.submit("errand", "gate", run_id="r")
        owner = await add_worker(app.store)
        await app.store.claim("r", owner)
        await app.cancel("r")
        await app.store.deregister_worker(owner)
        assert (await load_records(app))["r"].cancel_requested
        resumed = asyncio.create_task(app.resume("r"))
        await asyncio.to_thread(fleet_harness.wait_for_effect, "r gate c0")
        assert not (await load_records(app))["r"].cancel_requested
        fleet_harness.set_flag("open")
        assert (await resumed).output == "did gate"
        assert (await app.result("r")).output == "did gate"


# -- retention ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["done", "failed", "cancelled while queued", "cancelled while parked"])
async def test_a_run_that_has_ended_is_kept_for_the_retention_of_its_status_and_then_purged(
    harness: ProcessHarness, end: str
) -> None:
    harness.set_flag("outage")
    retention = Retention(**{**LONG, end.partition(" ")[0]: DAY})
    async with harness.app(checkpoint=CheckpointSettings(retention=retention)) as app:
        await app.submit("errand", "ask" if end == "failed" else "note", run_id="r")
        if end.endswith("parked"):
            assert app.store is not None
            claim = await app.store.claim("r", "nobody")
            await app.store.release(claim, Release(status=RunStatus.PARKED, reason="approval"))
        if end.startswith("cancelled"):
            await app.cancel("r")
        await app.recover()
        assert list(await load_records(app)) == ["r"]
    for later, left in ((DAY - timedelta(hours=1), ["r"]), (DAY + timedelta(hours=1), [])):
        store = store_of(harness, later)
        await store.open()
        await store.purge()
        assert [record.run_id async for record in iter_runs(store)] == left
        await store.close()


async def test_an_open_app_purges_by_itself(harness: ProcessHarness) -> None:
    async with harness.app(checkpoint=CheckpointSettings(retention=Retention(done=DAY))) as app:
        await app.submit("errand", "note", run_id="r")
        await app.recover()
    async with harness.app(store=store_of(harness, 2 * DAY)) as app:
        assert app.store is not None
        while await load_records(app):  # its first look purges
            await app.store.wait_for_change(timedelta(milliseconds=10))
        with pytest.raises(RunNotFound):
            await app.result("r")


# -- forks --------------------------------------------------------------------------------------------------------


async def test_a_fork_begins_after_the_step_and_leaves_the_old_run_alone(harness: ProcessHarness) -> None:
    async with harness.app() as app:
        await app.submit("errand", "note note note", run_id="old")
        await app.recover()
        before = await load_records(app)
        assert await app.fork("old", 2, new_id="new") == "new"
        await app.recover()
        result = await app.result("new")
        assert (result.output, result.steps, result.usage.requests) == ("did note note note", 4, 4)
        assert (await load_records(app))["old"] == before["old"]
        with pytest.raises(CheckpointError, match="its journal has 1, 2, 3, 4"):
            await app.fork("old", 9)
        with pytest.raises(RunExists):
            await app.fork("old", 1, new_id="new")
    assert harness.read_effects() == ["old note c0", "old note c1", "old note c2", "new note c2"]


async def test_a_fork_of_a_throttled_run_has_nothing_of_the_step_with_which_its_own_was_saved(
    harness: ProcessHarness,
) -> None:
    async with harness.app(checkpoint=CheckpointSettings(save_interval=DAY)) as app:
        await app.submit("errand", "ask note", run_id="old")  # no tool is called ask: a harmless call
        await app.recover()
        await app.fork("old", 1, new_id="new")
        assert app.store is not None
        state = decode_run(await app.store.load("new"), NATIVE_CODEC).state
        assert [type(message) for message in state.history] == [User, Reply, ToolResult]
        assert (state.steps, state.results, state.usage.requests) == (1, {}, 1)
        await app.recover()
        result = await app.result("new")
        assert (result.output, result.steps, result.usage.requests) == ("did ask note", 3, 3)
    assert harness.read_effects() == ["old note c1", "new note c1"]


# -- calls in doubt -----------------------------------------------------------------------------------------------


async def in_doubt(harness: ProcessHarness, app: App) -> None:
    """A run that is parked for a person after a crash in a `once` call, which no worker may repeat."""
    await app.submit("errand", "charge note", run_id="r")
    child = harness.start("recover")
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    await app.recover()
    assert (await load_records(app))["r"].reason.startswith("in doubt: call c0 of charge ")


@pytest.mark.parametrize("answers", [{"c0": {"receipt": 7}}, {}], ids=["answered", "not answered"])
async def test_a_person_gives_the_outcome_of_a_call_in_doubt(
    harness: ProcessHarness, answers: dict[str, object]
) -> None:
    async with harness.app() as app:
        await in_doubt(harness, app)
        with pytest.raises(CheckpointError, match="no pending call has the id"):
            await app.unpark("r", {"c7": "?"})
        assert (await load_records(app))["r"].status is RunStatus.PARKED
        await app.unpark("r", answers)
        with pytest.raises(RunNotClaimable):
            await app.unpark("r")
        await app.recover()
        result = await app.result("r")
        told = [message for message in result.messages if isinstance(message, ToolResult)]
        expected = ({"receipt": 7}, False) if answers else (UNKNOWN_OUTCOME, True)
        assert (told[0].content, told[0].error) == expected
    assert harness.read_effects() == ["r charge c0", "r note c1"]


async def test_a_parked_run_can_be_cancelled(harness: ProcessHarness) -> None:
    async with harness.app() as app:
        await in_doubt(harness, app)
        await app.cancel("r")
        with pytest.raises(RunCancelled):
            await app.result("r")
        assert (await app.recover()).statuses == {}


# -- tools that are no more ---------------------------------------------------------------------------------------


async def waiting_in_the_gate(harness: ProcessHarness) -> None:
    """A run that was killed while it waited in `gate`."""
    async with harness.app() as app:
        await app.submit("errand", "gate", run_id="r")
    child = harness.start("serve")
    harness.wait_for_effect("r gate c0")
    async with harness.app() as app:
        assert app.store is not None
        # The intent of a harmless call is written beside it, and another entry may come before or after it.
        while not any(b'"gate"' in entry.body for entry in (await app.store.load("r")).entries[1:]):
            await app.store.wait_for_change(timedelta(milliseconds=10))
    child.kill()
    child.wait()


async def test_a_run_whose_tool_was_removed_is_left_for_a_process_that_has_it(harness: ProcessHarness) -> None:
    await waiting_in_the_gate(harness)
    async with harness.app(TaskAgents(harness.folder, without=["gate"])) as app:
        report = await app.recover()
        assert "was about to use the tool ['gate'], which this process lacks" in report.reasons["r"]
        left = (await load_records(app))["r"]
        # The strike is that of the process that was killed.
        assert (left.status, left.strikes) == (RunStatus.INTERRUPTED, 1)
        assert "was about to use the tool ['gate']" in left.reason
    harness.set_flag("open")
    async with harness.app() as app:
        assert (await app.resume("r")).output == "did gate"


async def test_of_a_removed_tool_the_model_is_told_if_the_agent_says_so(harness: ProcessHarness) -> None:
    await waiting_in_the_gate(harness)
    async with harness.app(TaskAgents(harness.folder, without=["gate"], missing_tools="report")) as app:
        await app.recover()
        [told] = [message for message in (await app.result("r")).messages if isinstance(message, ToolResult)]
        assert told.error
        assert told.content.startswith("There is no tool 'gate'.")


async def test_for_a_removed_tool_the_run_is_parked_if_the_agent_says_so(harness: ProcessHarness) -> None:
    await waiting_in_the_gate(harness)
    async with harness.app(TaskAgents(harness.folder, without=["gate"], missing_tools="park")) as app:
        await app.recover()
        with pytest.raises(RunParked) as told:
            await app.result("r")
        assert told.value.reason == "removed tool"
