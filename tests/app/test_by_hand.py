"""What a person does to runs: resume a failed one, answer for a call in doubt, fork, and what is kept for how long."""

import asyncio
import signal
from datetime import timedelta

import pytest
from tests.app.conftest import Yard, records
from tests.app.errands import Errands, LaterClock

from holdfast import App, Reply, ToolResult, User
from holdfast.checkpoint.codec import read_checkpoint
from holdfast.checkpoint.errors import CheckpointError, RunExists, RunNotClaimable, RunNotFound
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import Ending
from holdfast.checkpoint.stores.sqlite import SqliteStore
from holdfast.run.drive import UNKNOWN_OUTCOME
from holdfast.run.errors import RunCancelled, RunFailed, RunParked
from holdfast.run.message import NATIVE_CODEC
from holdfast.testing.store_suite.subject import enlisted

DAY = timedelta(days=1)


def store_of(yard: Yard, later: timedelta) -> SqliteStore:
    return SqliteStore(yard.url.removeprefix("sqlite:"), clock=LaterClock(later))


# -- failed runs --------------------------------------------------------------------------------------------------


async def test_a_failed_run_is_gone_unless_the_host_keeps_it(yard: Yard) -> None:
    yard.make_true("outage")
    async with yard.app() as app:
        with pytest.raises(ConnectionError):
            await app.run("errand", "note ask", run_id="r")
        assert await records(app) == {}


async def test_a_run_that_an_outage_ended_at_hour_three_is_resumed_by_hand(yard: Yard) -> None:
    yard.make_true("outage")
    async with yard.app(keep_failed=DAY) as app:
        with pytest.raises(ConnectionError):
            await app.run("errand", "note note ask note", run_id="r")
        kept = (await records(app))["r"]
        assert (kept.status, kept.reason) == (Status.FAILED, "ConnectionError: the provider is away")
        assert (await app.recover()).fates == {}
    yard.make_false("outage")
    async with yard.app(keep_failed=DAY) as app:
        # Asked for by its id it is what it was: failed. Only a person brings it back.
        with pytest.raises(RunFailed, match="the provider is away"):
            await app.run("errand", "note note ask note", run_id="r")
        result = await app.resume("r")
        assert (result.output, result.iterations) == ("did note note ask note", 5)
        assert await records(app) == {}
    assert yard.deeds() == ["r note c0", "r note c1", "r note c3"]


async def test_a_resume_by_hand_outweighs_a_cancel_whose_owner_died_before_it_noticed(fleet_yard: Yard) -> None:
    async with fleet_yard.app() as app:
        assert app.store is not None
        await app.submit("errand", "gate", run_id="r")
        owner = await enlisted(app.store)
        await app.store.claim("r", owner)
        await app.cancel("r")
        await app.store.discharge(owner)
        assert (await records(app))["r"].cancel_requested
        resumed = asyncio.create_task(app.resume("r"))
        await asyncio.to_thread(fleet_yard.wait_for_deed, "r gate c0")
        assert not (await records(app))["r"].cancel_requested
        fleet_yard.make_true("open")
        assert (await resumed).output == "did gate"
        assert (await app.result("r")).output == "did gate"


# -- retention ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["done", "failed", "cancelled while queued", "cancelled while parked"])
async def test_the_end_of_a_submitted_run_is_kept_for_its_retention_and_then_purged(yard: Yard, end: str) -> None:
    yard.make_true("outage")
    async with yard.app(retention=DAY) as app:
        await app.submit("errand", "ask" if end == "failed" else "note", run_id="r")
        if end.endswith("parked"):
            assert app.store is not None
            claim = await app.store.claim("r", "nobody")
            await app.store.settle(claim, Ending(status=Status.PARKED, reason="approval"))
        if end.startswith("cancelled"):
            await app.cancel("r")
        await app.recover()
        assert list(await records(app)) == ["r"]
    for later, left in ((DAY - timedelta(hours=1), ["r"]), (DAY + timedelta(hours=1), [])):
        store = store_of(yard, later)
        await store.open()
        await store.purge()
        assert [record.run_id async for record in store.records()] == left
        await store.close()


async def test_an_open_app_purges_by_itself(yard: Yard) -> None:
    async with yard.app(retention=DAY) as app:
        await app.submit("errand", "note", run_id="r")
        await app.recover()
    async with yard.app(store=store_of(yard, 2 * DAY)) as app:
        assert app.store is not None
        while await records(app):  # its first look purges
            await app.store.changed(timedelta(milliseconds=10))
        with pytest.raises(RunNotFound):
            await app.result("r")


# -- forks --------------------------------------------------------------------------------------------------------


async def test_a_fork_begins_after_the_step_and_leaves_the_old_run_alone(yard: Yard) -> None:
    async with yard.app() as app:
        await app.submit("errand", "note note note", run_id="old")
        await app.recover()
        before = await records(app)
        assert await app.fork("old", 2, new_id="new") == "new"
        await app.recover()
        result = await app.result("new")
        assert (result.output, result.iterations, result.usage.requests) == ("did note note note", 4, 4)
        assert (await records(app))["old"] == before["old"]
        with pytest.raises(CheckpointError, match="its journal has 1, 2, 3, 4"):
            await app.fork("old", 9)
        with pytest.raises(RunExists):
            await app.fork("old", 1, new_id="new")
    assert yard.deeds() == ["old note c0", "old note c1", "old note c2", "new note c2"]


async def test_a_fork_of_a_throttled_run_has_nothing_of_the_step_with_which_its_own_was_saved(yard: Yard) -> None:
    async with yard.app(throttle=DAY) as app:
        await app.submit("errand", "ask note", run_id="old")  # no tool is called ask: a harmless call
        await app.recover()
        await app.fork("old", 1, new_id="new")
        assert app.store is not None
        state = read_checkpoint(await app.store.load("new"), NATIVE_CODEC).state
        assert [type(message) for message in state.history] == [User, Reply, ToolResult]
        assert (state.iteration, state.results, state.usage.requests) == (1, {}, 1)
        await app.recover()
        result = await app.result("new")
        assert (result.output, result.iterations, result.usage.requests) == ("did ask note", 3, 3)
    assert yard.deeds() == ["old note c1", "new note c1"]


# -- calls in doubt -----------------------------------------------------------------------------------------------


async def in_doubt(yard: Yard, app: App) -> None:
    """A run that was taken down by a call which nobody may make again, parked for a person."""
    await app.submit("errand", "charge note", run_id="r")
    child = yard.start("recover")
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    await app.recover()
    assert (await records(app))["r"].reason.startswith("in doubt: call c0 of charge ")


@pytest.mark.parametrize("answers", [{"c0": {"receipt": 7}}, {}], ids=["answered", "not answered"])
async def test_a_person_says_what_became_of_a_call_in_doubt(yard: Yard, answers: dict[str, object]) -> None:
    async with yard.app() as app:
        await in_doubt(yard, app)
        with pytest.raises(CheckpointError, match="no call waits for the answers"):
            await app.unpark("r", {"c7": "?"})
        assert (await records(app))["r"].status is Status.PARKED
        await app.unpark("r", answers)
        with pytest.raises(RunNotClaimable):
            await app.unpark("r")
        await app.recover()
        result = await app.result("r")
        told = [message for message in result.messages if isinstance(message, ToolResult)]
        expected = ({"receipt": 7}, False) if answers else (UNKNOWN_OUTCOME, True)
        assert (told[0].content, told[0].error) == expected
    assert yard.deeds() == ["r charge c0", "r note c1"]


async def test_a_parked_run_can_be_cancelled(yard: Yard) -> None:
    async with yard.app() as app:
        await in_doubt(yard, app)
        await app.cancel("r")
        with pytest.raises(RunCancelled):
            await app.result("r")
        assert (await app.recover()).fates == {}


# -- tools that are no more ---------------------------------------------------------------------------------------


async def waiting_in_the_gate(yard: Yard) -> None:
    """A run that was killed while it waited in `gate`."""
    async with yard.app() as app:
        await app.submit("errand", "gate", run_id="r")
    child = yard.start("serve")
    yard.wait_for_deed("r gate c0")
    async with yard.app() as app:
        assert app.store is not None
        while (await app.store.load("r")).entries[-1].kind is EntryKind.BEGIN:
            await app.store.changed(timedelta(milliseconds=10))  # the intent of a harmless call is written beside it
        intent = (await app.store.load("r")).entries[-1]
        assert b'"gate"' in intent.body
    child.kill()
    child.wait()


async def test_a_run_whose_tool_was_removed_is_left_for_a_process_that_has_it(yard: Yard) -> None:
    await waiting_in_the_gate(yard)
    async with yard.app(Errands(yard.folder, without=["gate"])) as app:
        report = await app.recover()
        assert "was about to call ['gate'], which this process lacks" in report.reasons["r"]
        left = (await records(app))["r"]
        # The strike is that of the process that was killed.
        assert (left.status, left.strikes) == (Status.INTERRUPTED, 1)
        assert "was about to call ['gate']" in left.reason
    yard.make_true("open")
    async with yard.app() as app:
        assert (await app.resume("r")).output == "did gate"


async def test_of_a_removed_tool_the_model_is_told_if_the_agent_says_so(yard: Yard) -> None:
    await waiting_in_the_gate(yard)
    async with yard.app(Errands(yard.folder, without=["gate"], removed_tools="tell")) as app:
        await app.recover()
        [told] = [message for message in (await app.result("r")).messages if isinstance(message, ToolResult)]
        assert told.error
        assert told.content.startswith("There is no tool 'gate'.")


async def test_for_a_removed_tool_the_run_is_parked_if_the_agent_says_so(yard: Yard) -> None:
    await waiting_in_the_gate(yard)
    async with yard.app(Errands(yard.folder, without=["gate"], removed_tools="park")) as app:
        await app.recover()
        with pytest.raises(RunParked) as told:
            await app.result("r")
        assert told.value.reason == "removed tool"
