"""Log lines about the life of runs, and their fields."""

import asyncio
import contextlib
import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, App, Reply, Retry, ask_person, tool
from holdfast.checkpoint.workers import WorkerIdentity, this_process
from holdfast.core import Executor
from holdfast.core.agents.calls import OnError
from holdfast.core.errors import RunFailed, RunParked
from holdfast.core.run.waiting import RunWaiting
from holdfast.errors import ModelUnavailable
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock

SECRET = "my password is hunter2"


@tool(effect="pure")
async def look(secret: str) -> str:
    return SECRET


def fields(caplog: pytest.LogCaptureFixture, *names: str) -> list[tuple[Any, ...]]:
    records = [record for record in caplog.records if record.name in ("holdfast.lifecycle", "holdfast.retry")]
    return [tuple(getattr(record, name, None) for name in names) for record in records]


@pytest.fixture(autouse=True)
def info_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


async def test_the_start_and_the_end_of_a_run_are_logged_without_its_messages(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("c1", "look", secret=SECRET)), SECRET), tools=[look])
    await SimulatedHost().executor.run(agent, SECRET, run_id="r")
    assert fields(caplog, "levelname", "event", "run_id", "agent", "step") == [
        ("INFO", "started", "r", "a", 0),
        ("INFO", "done", "r", "a", 2),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "run r of a: started",
        "run r of a: done after step 2",
    ]
    assert "hunter2" not in json.dumps([record.__dict__ for record in caplog.records], default=str)


async def test_a_failed_run_logs_its_error_and_the_class_of_it(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(name="a", model=ScriptedModel(ValueError("broken" * 1000)))
    with fails_with(ValueError, match="broken"):
        await SimulatedHost().executor.run(agent, "go", run_id="r")
    assert fields(caplog, "levelname", "event", "step", "error")[-1] == ("ERROR", "failed", 0, "ValueError")
    assert caplog.records[-1].getMessage().startswith("run r of a: failed after step 0: ValueError: broken")
    assert len(caplog.records[-1].getMessage()) < 500


async def test_a_run_that_cannot_be_built_logs_that_it_failed(caplog: pytest.LogCaptureFixture) -> None:
    class Unbuildable:
        name = "a"

        async def build(self, info: object) -> Agent:
            raise LookupError("no such persona")

    with fails_with(LookupError):
        await SimulatedHost().executor.run(Unbuildable(), "go", run_id="r")
    assert fields(caplog, "event", "error")[-1] == ("failed", "LookupError")


async def test_a_parked_run_logs_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    @tool(effect="pure")
    async def stop() -> str:
        raise RunParked("budget", "spent")

    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("c1", "stop"))), tools=[stop])
    with pytest.raises(RunParked):
        await SimulatedHost().executor.run(agent, "go", run_id="r")
    assert fields(caplog, "levelname", "event", "reason")[-1] == ("WARNING", "parked", "budget: spent")


async def test_a_wait_logs_its_kind_and_not_the_question(caplog: pytest.LogCaptureFixture) -> None:
    reply = tool_reply(call("c1", "ask_person", question=SECRET))
    agent = Agent(name="a", model=ScriptedModel(reply), tools=[ask_person])
    with pytest.raises(RunWaiting):
        await SimulatedHost().executor.run(agent, "go", run_id="r")
    assert fields(caplog, "levelname", "event", "reason")[-1] == ("INFO", "waiting", "question")
    assert "hunter2" not in caplog.text


async def test_a_cancelled_run_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    reached = asyncio.Event()

    async def hang(messages: object) -> Reply:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with App([Agent(name="a", model=ScriptedModel(hang))], "memory:") as app:
        run = asyncio.create_task(app.run("a", "go", run_id="r"))
        await reached.wait()
        await app.cancel("r")
        await asyncio.gather(run, return_exceptions=True)
    assert fields(caplog, "levelname", "event")[-1] == ("INFO", "cancelled")


async def test_a_takeover_names_the_worker_that_died(caplog: pytest.LogCaptureFixture) -> None:
    store, reached = MemoryStore(), asyncio.Event()

    async def hang(messages: object) -> Reply:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    calls = tool_reply(call("c1", "look", secret="x"))
    one, two = SimulatedHost(store), SimulatedHost(store)
    first = Agent(name="a", model=ScriptedModel(calls, hang), tools=[look])
    task = asyncio.create_task(one.executor.run(first, "go", run_id="r", on_cancel="cancel"))
    await reached.wait()
    await one.crash()
    await two.resume(Agent(name="a", model=ScriptedModel(calls, "done"), tools=[look]), "r")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    taken = [each for each in fields(caplog, "event", "step", "previous_worker") if each[0] == "taken_over"]
    assert taken == [("taken_over", 1, one.checkpoints.worker_id)]


async def test_an_interrupted_run_is_resumed(caplog: pytest.LogCaptureFixture) -> None:
    store, entered = MemoryStore(), asyncio.Event()

    @tool(effect="pure")
    async def slow() -> str:
        entered.set()
        await asyncio.sleep(0)
        return "ok"

    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("c1", "slow")), "done"), tools=[slow])
    async with App([agent], store) as app:
        task = asyncio.create_task(app.run("a", "go", run_id="r"))
        await entered.wait()
    await asyncio.gather(task, return_exceptions=True)
    async with App([agent], store) as app:
        await app.result("r")
    assert [event for (event,) in fields(caplog, "event")] == ["started", "interrupted", "resumed", "done"]


async def test_a_poisoned_run_logs_that_it_is_parked(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    await store.open()
    async with App([Agent(name="a", model=ScriptedModel("done"))], store, worker=False, clock=clock) as app:
        await app.submit("a", "go", run_id="r")
        for number in range(3):
            worker = WorkerIdentity(worker_id=f"w{number}", process=this_process())
            await store.register_worker(worker)
            await store.claim("r", worker.worker_id)
            await store.deregister_worker(worker.worker_id)
            await clock.advance(timedelta(minutes=5))
        await app.recover()
    [(level, event, agent, reason)] = fields(caplog, "levelname", "event", "agent", "reason")
    assert (level, event, agent) == ("WARNING", "parked", "a")
    assert reason.startswith("poison: 3 owners")


async def test_a_turn_of_a_conversation_is_logged_by_its_outcome(caplog: pytest.LogCaptureFixture) -> None:
    async with App([Agent(name="a", model=ScriptedModel("hello", "again"))], "memory:") as app:
        await app.conversation("a", "ann").send("hi")
    assert [event for (event,) in fields(caplog, "event")] == ["started", "done"]


async def test_a_retry_has_its_data_in_fields(caplog: pytest.LogCaptureFixture) -> None:
    @tool(effect="pure", retry=Retry(max_tries=2, jitter=0))
    async def late() -> str:
        raise TimeoutError("late")

    failing = [ModelUnavailable("away", timedelta(seconds=7))]

    async def model(messages: Any, tools: Any) -> Reply:
        if failing:
            raise failing.pop()
        return await script(messages, tools)

    script, clock = ScriptedModel(tool_reply(call("1", "late")), "done"), ManualClock()
    run = asyncio.create_task(Executor(clock=clock).run(Agent(name="a", model=model, tools=[late]), "go", run_id="r"))
    await clock.advance(timedelta(seconds=8))
    await run
    names = ("event", "run_id", "agent", "step", "tool", "call_id", "attempt", "delay_seconds", "error")
    assert [each for each in fields(caplog, *names) if each[0] == "retry"] == [
        ("retry", "r", "a", 1, "", "", 1, 7.0, "ModelUnavailable"),
        ("retry", "r", "a", 1, "late", "1", 1, 1.0, "TimeoutError"),
    ]


@pytest.mark.parametrize("on_error", ["report", "raise"])
async def test_an_error_of_a_tool_is_logged_once_with_its_traceback_and_counted(
    caplog: pytest.LogCaptureFixture, on_error: OnError
) -> None:
    tries: list[int] = []

    @tool(
        on_error=on_error,
        effect="pure",
        retry=Retry(max_tries=2, retry_on=ArithmeticError, initial_delay=timedelta(0)),
    )
    async def divide(by: int) -> float:
        tries.append(by)
        return 1 / by

    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("c1", "divide", by=0)), "done"), tools=[divide])
    host = SimulatedHost()
    with contextlib.suppress(RunFailed):
        await host.executor.run(agent, "go", run_id="r")
    [line] = [record for record in caplog.records if record.name == "holdfast.tools"]
    assert (line.levelname, line.__dict__["tool"], line.__dict__["call_id"]) == ("WARNING", "divide", "c1")
    assert "call c1 of divide failed in step 1: ZeroDivisionError" in line.getMessage()
    assert line.exc_info is not None
    assert line.exc_info[0] is ZeroDivisionError
    assert "return 1 / by" in caplog.text
    assert host.executor.metrics.agents["a"].failed_calls == {"divide": 1}
    assert len(tries) == 2


async def test_the_traceback_of_a_tool_is_redacted(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def fetch() -> None:
        raise ValueError(f"no access with {SECRET}")

    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("c1", "fetch")), "done"), tools=[fetch])

    class Redacted:
        def __call__(self, value: Any) -> Any:
            return value.replace(SECRET, "***") if isinstance(value, str) else value

    await SimulatedHost(redact=Redacted()).executor.run(agent, "go", run_id="r")
    [line] = [record for record in caplog.records if record.name == "holdfast.tools"]
    assert "no access with ***" in line.getMessage()
    assert "Traceback" in line.getMessage()
    assert SECRET not in caplog.text
