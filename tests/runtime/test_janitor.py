"""What an open App does from time to time: it wakes parents, purges runs and verdicts, and counts runs."""

import asyncio
from datetime import timedelta

import msgspec
import pytest
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, CheckpointSettings, RunWaiting, Value, ask_person, current_call, tool
from holdfast.batteries.budget import Budget, BudgetExhausted, Limit
from holdfast.checkpoint.errors import RunNotFound, StoreUnavailable
from holdfast.checkpoint.record import Mail, RunStatus
from holdfast.checkpoint.store import END, get_record
from holdfast.config import Retention
from holdfast.runtime.janitor import PURGE_INTERVAL, WAKE_INTERVAL
from holdfast.runtime.operations.verdicts import PICK, read_verdict
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

AGENT = Agent(name="a", model=ScriptedModel("done"))


async def test_a_parent_whose_notice_was_lost_is_woken_within_five_minutes() -> None:
    asks = ScriptedModel(tool_reply(call("c", "ask_person", question="Which?")), "blue it is")
    child = Agent(name="child", model=asks, tools=[ask_person])

    @tool(effect="idempotent")
    async def delegate() -> str:
        return str((await current_call().run(child, "go")).output)

    parent = Agent(name="parent", model=ScriptedModel(tool_reply(call("1", "delegate")), "thanks"), tools=[delegate])
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    async with App([parent, child], store, clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run("parent", "go", run_id="p")
        await clock.advance(timedelta(seconds=1))
        [question] = await app.pending()
        body = msgspec.json.encode(Value("blue").to_decision("", ""))
        # The answer as `App.answer` posts it, without the notice for the parent.
        await store.post(question.run_id, Mail(mail_id=question.topic, topic=question.topic, body=body))
        await clock.advance(timedelta(minutes=1))
        assert (await get_record(store, "p")).status is RunStatus.WAITING
        await clock.advance(WAKE_INTERVAL)
        assert (await app.result("p")).output == "thanks"


async def test_a_raised_limit_wakes_the_runs_that_wait_for_it_and_no_others() -> None:
    clock = ManualClock()
    budget = Budget(Limit(runs=2, per="all"), clock=clock)
    asks = Agent(
        name="asks", model=ScriptedModel(tool_reply(call("c", "ask_person", question="?"))), tools=[ask_person]
    )
    store = MemoryStore(clock=clock)
    async with App([AGENT, asks], store, clock=clock, budget=budget) as app:
        await app.run("a", "go")
        with pytest.raises(RunWaiting):
            await app.run("asks", "go", run_id="asks")
        with pytest.raises(BudgetExhausted):
            await app.run("a", "go", run_id="r")
        await clock.advance(timedelta(seconds=10))
        assert (await app.get("r")).status is RunStatus.WAITING
        await budget.set_limit("all", "runs", 3)
        await clock.advance(timedelta(seconds=10))
        assert (await app.result("r")).output == "done"
        assert (await store.load("asks", after=END)).mail == ()
        assert (await app.get("asks")).status is RunStatus.WAITING


async def test_expired_runs_are_purged_while_the_app_is_open_and_later_their_picks() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    settings = CheckpointSettings(retention=Retention(done=timedelta(hours=1)))
    async with App([AGENT], store, clock=clock, checkpoint=settings) as app:
        await app.run("a", "go", run_id="r")
        await app.pick("r", "done")
        await clock.advance(timedelta(minutes=59))
        assert (await app.get("r")).status is RunStatus.DONE
        await clock.advance(timedelta(minutes=1) + PURGE_INTERVAL + timedelta(seconds=1))
        with pytest.raises(RunNotFound):
            await app.get("r")
        await clock.advance(WAKE_INTERVAL)
        assert await read_verdict(store, "r", PICK) is None


async def test_all_expired_runs_are_purged_at_once_however_many_there_are() -> None:
    clock = ManualClock()
    settings = CheckpointSettings(retention=Retention(done=timedelta(hours=1)))
    async with App([AGENT], MemoryStore(clock=clock), clock=clock, checkpoint=settings) as app:
        for number in range(301):  # a store purges 100 in one call
            await app.run("a", "go", run_id=f"r{number}")
        await clock.advance(timedelta(hours=1) + PURGE_INTERVAL + timedelta(seconds=1))
        assert not (await app.list()).runs


async def test_the_janitor_continues_after_an_error_of_the_store_and_asks_a_second_later() -> None:
    clock = ManualClock()
    store = ProbeStore(MemoryStore(clock=clock))
    async with App([AGENT], store, clock=clock, worker=False) as app:
        await clock.advance(timedelta(seconds=5))
        store.fail("pending", StoreUnavailable("away"))
        store.calls.clear()
        for _ in range(9):  # however often it is notified
            app._stored.changes.notify()
            await clock.advance(timedelta(milliseconds=100))
        assert "pending" not in store.calls
        await clock.advance(timedelta(seconds=2))
        assert "pending" in store.calls


async def test_many_notifications_at_once_are_few_polls() -> None:
    clock = ManualClock()
    store = ProbeStore(MemoryStore(clock=clock))
    async with App([AGENT], store, clock=clock, worker=False) as app:
        await clock.advance(timedelta(seconds=5))
        store.calls.clear()
        for _ in range(100):
            app._stored.changes.notify()
            await asyncio.sleep(0)
        assert store.calls.count("pending") == 1
        await clock.advance(timedelta(milliseconds=50))
        assert store.calls.count("pending") == 2


class SmallBatches(ProbeStore):
    """Removes two runs at a time."""

    async def purge(self, *, limit: int = 100) -> int:
        return await super().purge(limit=2)


async def test_a_purge_removes_all_runs_whose_retention_has_ended_in_as_many_batches_as_it_takes() -> None:
    clock = ManualClock()
    store = SmallBatches(MemoryStore(clock=clock))
    settings = CheckpointSettings(retention=Retention(done=timedelta(minutes=1)))
    async with App([AGENT], store, clock=clock, checkpoint=settings) as app:
        for number in range(5):
            await app.run("a", "go", run_id=str(number))
        await clock.advance(timedelta(minutes=1) + PURGE_INTERVAL)
        assert (await app.list()).runs == ()
    assert store.calls.count("purge") >= 4
