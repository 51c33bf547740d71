"""A run over budget waits, without a process, and resumes when its window has moved or a limit was raised."""

import asyncio
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Reply, RunWaiting, Usage, current_call, tool
from holdfast.batteries.budget import Budget, BudgetExhausted, Limit
from holdfast.core.errors import RunParked
from holdfast.testing import ManualClock
from holdfast.workflows import workflow

PROGRAM = Path(__file__).with_name("budget_wait_process.py")
DAY = timedelta(days=1)


@tool(effect="pure")
async def work(number: int) -> str:
    return f"worked {number}"


def spend(tokens: int, steps: int) -> ScriptedModel:
    usage = Usage(input_tokens=tokens)
    turns = [tool_reply(call(f"c{number}", "work", number=number), usage=usage) for number in range(steps - 1)]
    return ScriptedModel(*turns, Reply(text="done", usage=usage))


async def wait_for_status(app: App, clock: ManualClock, run_id: str, status: str) -> None:
    async with asyncio.timeout(60):
        while (await app.get(run_id)).status != status:
            await clock.advance(timedelta(seconds=1))


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
async def test_a_run_waits_in_the_middle_and_resumes_when_the_window_has_moved(tmp_path: Path, url: str) -> None:
    clock, model = ManualClock(), spend(40, 5)
    budget = Budget(Limit(tokens=100, window=DAY), clock=clock)
    store = f"sqlite:{tmp_path}/runs.db" if url == "sqlite" else url
    async with App([Agent(name="a", model=model, tools=[work])], store, budget=budget, clock=clock) as app:
        with pytest.raises(BudgetExhausted, match="until 2030-01-02 00:01:00 UTC or a raised limit"):
            await app.run("a", "go", run_id="r", caller_id="alice")
        run = await app.get("r")
        assert (run.status, run.owner, run.steps) == ("waiting", None, 3)
        assert run.description.startswith("waits for its budget until 2030-01-02 00:01:00 UTC or a raised limit (")
        with pytest.raises(BudgetExhausted, match="120 of 100"):
            await app.run("a", "go", run_id="r", caller_id="alice")
        with pytest.raises(BudgetExhausted, match="120 of 100"):
            await app.result("r")
        await clock.jump(DAY - timedelta(minutes=1))
        await clock.advance(timedelta(seconds=5))
        assert (await app.get("r")).status == "waiting"
        await clock.jump(timedelta(minutes=2))
        await wait_for_status(app, clock, "r", "done")
    assert len(model.requests) == 5


def run_process(url: str, limit: int, *run_ids: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(PROGRAM), url, str(limit), *run_ids]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_limit_that_another_process_raises_wakes_the_runs(database_url: str) -> None:
    first = run_process(database_url, 1, "a", "b", "c")
    output, _ = first.communicate(timeout=60)
    assert output.split() == ["a:done", "b:waiting", "c:waiting"]
    assert run_process(database_url, 1, "b", "c").communicate(timeout=60)[0].split() == ["b:waiting", "c:waiting"]
    killed = run_process(database_url, 1, "d", "-")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "d:waiting\n"
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    worker = run_process(database_url, 10, "-b", "-c", "-d")
    assert worker.communicate(timeout=60)[0].split() == ["b:done", "c:done", "d:done"]


async def test_a_limit_of_zero_parks_the_run() -> None:
    async with App([Agent(name="a", model=spend(1, 1))], "memory:", budget=Budget(Limit(tokens=0))) as app:
        with pytest.raises(RunParked, match="runs without a caller: 0 of 0 tokens: raise the limit, then unpark"):
            await app.run("a", "go", run_id="r")
        assert (await app.get("r")).status == "parked"


async def test_a_conversation_over_budget_keeps_its_messages_and_answers_them_later() -> None:
    clock = ManualClock()
    budget = Budget(Limit(tokens=1, window=DAY), clock=clock)
    agent = Agent(
        name="a", model=ScriptedModel(*(Reply(text=f"answer {n}", usage=Usage(input_tokens=1)) for n in "123"))
    )
    async with App([agent], "memory:", budget=budget, clock=clock) as app:
        chat = app.conversation("a", "k")
        assert (await chat.send("one")).output == "answer 1"
        with pytest.raises(BudgetExhausted):
            await chat.send("two", id="second")
        await chat.post("three", id="third", when="interrupt")
        await clock.advance(timedelta(seconds=30))
        run = await app.get(chat.run_id)
        assert run.description.startswith("waits for its budget")
        assert len(run.attempts) == 2, "the message that interrupts does not wake it"
        answers: set[str] = set()
        while len(answers) < 2:
            await clock.jump(DAY + timedelta(minutes=2))
            await clock.advance(timedelta(seconds=5))
            answers = {turn.turn_id for turn in await chat.history() if turn.output in ("answer 2", "answer 3")}
        assert answers == {"second", "third"}


async def test_a_workflow_and_a_parent_wait_with_their_child() -> None:
    clock = ManualClock()
    budget = Budget(Limit(tokens=1, window=DAY, per="agent"), clock=clock)
    usage = Usage(input_tokens=1)
    child = Agent(name="child", model=ScriptedModel(*(Reply(text=f"help {n}", usage=usage) for n in "12")))

    @tool(effect="idempotent")
    async def delegate() -> str:
        return str((await current_call().run(child, "help")).output)

    @workflow
    async def flow() -> list[str]:
        return [await delegate.keyed("1")(), await delegate.keyed("2")()]

    async with App([flow, child], "memory:", budget=budget, clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, run_id="r")
        [waiting] = (await app.list(parent="r", status="waiting")).runs
        assert waiting.description.startswith("waits for its budget")
        assert "its budget" in (await app.get("r")).reason
        await clock.jump(DAY + timedelta(minutes=2))
        await wait_for_status(app, clock, "r", "done")
        assert (await app.result("r")).output == ["help 1", "help 1"]


async def test_a_step_of_a_workflow_waits_for_the_budget_of_its_own_run() -> None:
    clock = ManualClock()
    budget = Budget(Limit(seconds=1, window=DAY), clock=clock)

    @tool(effect="pure")
    async def idle(number: int) -> int:
        await clock.advance(timedelta(seconds=2))
        return number

    @workflow
    async def flow() -> int:
        try:
            return await idle(1) + await idle(2)
        except Exception:
            return -1

    async with App([flow], "memory:", budget=budget, clock=clock) as app:
        with pytest.raises(BudgetExhausted, match="2 of 1 seconds"):
            await app.run(flow, run_id="r")
        await clock.jump(DAY + timedelta(minutes=2))
        await wait_for_status(app, clock, "r", "done")
        assert (await app.result("r")).output == 3


async def test_runs_that_wait_for_reservations_look_again_soon() -> None:
    clock, asked, gate = ManualClock(), asyncio.Event(), asyncio.Event()

    async def answer_late(messages: object) -> Reply:
        asked.set()
        await gate.wait()
        return Reply(text="done", usage=Usage(input_tokens=1))

    turn = tool_reply(call("c", "work", number=1), usage=Usage(input_tokens=60))
    agents = [
        Agent(name="slow", model=ScriptedModel(turn, answer_late), tools=[work]),
        Agent(name="quick", model=spend(1, 1)),
    ]
    budget = Budget(Limit(tokens=100, window=DAY, per="all"), clock=clock)
    async with App(agents, "memory:", budget=budget, clock=clock) as app:
        slow = asyncio.create_task(app.run("slow", "go"))
        await asked.wait()
        with pytest.raises(BudgetExhausted, match="120 of 100"):
            await app.run("quick", "go", run_id="q")
        gate.set()
        await slow
        await wait_for_status(app, clock, "q", "done")
