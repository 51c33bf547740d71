"""A run id is an identity: until its retention has passed, nothing under it happens twice."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from tests.core.null_listener import NullListener
from tests.failed_runs import fails_with
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, CheckpointSettings, Reply, Retention, ToolResult, tool
from holdfast.checkpoint.errors import RunBusy, RunConflict, RunNotFound
from holdfast.checkpoint.record import RunStatus
from holdfast.core import Message, ToolSchema
from holdfast.core.errors import RunCancelled, RunFailed
from holdfast.core.run.info import RunInfo
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

PROGRAM = """
import os, signal, sys
from pathlib import Path
from holdfast import Agent, App, Reply, ToolCall, ToolResult, tool
from tests.failed_runs import fails_with

ledger = Path(sys.argv[2])

@tool
def book(night: int) -> str:
    with ledger.open("a") as lines:
        lines.write(f"{night}\\n")
    return "booked"

async def model(messages, tools):
    done = sum(isinstance(message, ToolResult) for message in messages)
    if done == 3:
        return Reply(text="all booked")
    return Reply(tool_calls=[ToolCall(id=f"c{done}", name="book", arguments={"night": done})])

app = App([Agent(name="booker", model=model, tools=[book])], sys.argv[1])
result = app.run_sync("booker", "three nights", run_id="trip")
if sys.argv[3] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
print(result.output, result.steps)
"""


def test_a_program_that_is_started_twice_does_its_work_once(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    outputs = []
    for end in ("kill", "exit", "exit"):
        process = subprocess.run(
            [sys.executable, "-c", PROGRAM, f"sqlite:{tmp_path / 'runs.db'}", str(ledger), end],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert process.returncode == (-9 if end == "kill" else 0), process.stderr
        outputs.append(process.stdout)
    assert outputs == ["", "all booked 4\n", "all booked 4\n"]
    assert ledger.read_text() == "0\n1\n2\n"


async def test_a_finished_run_returns_its_recorded_result(durable_store_url: str) -> None:
    model = ScriptedModel("first", "second")
    agent = Agent(name="a", model=model)
    for _ in range(2):
        async with App([agent], durable_store_url) as app:
            result = await app.run("a", "go", run_id="r")
            assert (result.output, result.steps, result.run_id) == ("first", 1, "r")
            assert await app.submit("a", "go", run_id="r") == "r"
            assert (await app.result("r")).output == "first"
            with pytest.raises(RunConflict):
                await app.run("a", "something else", run_id="r")
            with pytest.raises(RunConflict):
                await app.submit("a", "something else", run_id="r")
    assert len(model.requests) == 1


async def test_a_failed_run_raises_its_recorded_error_until_it_is_resumed() -> None:
    broken = ScriptedModel(tool_reply(call("1", "look")), ValueError("broken"))
    mended = ScriptedModel("never", "mended")

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        return await (broken if len(broken.requests) < 2 else mended)(messages, tools)

    @tool(effect="pure")
    async def look() -> str:
        return "seen"

    async with App([Agent(name="a", model=model, tools=[look])], MemoryStore()) as app:
        with fails_with(ValueError, match="broken"):
            await app.run("a", "go", run_id="r")
        with pytest.raises(RunFailed, match="run r failed: ValueError: broken"):
            await app.run("a", "go", run_id="r")
        await app.submit("a", "go", run_id="r")
        with pytest.raises(RunFailed, match="broken"):
            await app.result("r")
        result = await app.resume("r")
        assert (result.output, result.steps) == ("mended", 2)
        assert mended.requests[-1][-1] == ToolResult(call_id="1", tool="look", content="seen")
        assert (await app.run("a", "go", run_id="r")).output == "mended"
        assert (await app.resume("r")).output == "mended"


async def test_a_cancelled_run_stays_cancelled() -> None:
    begun = asyncio.Event()

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with App([Agent(name="a", model=model)], MemoryStore()) as app:
        run = asyncio.create_task(app.run("a", "go", run_id="r"))
        await begun.wait()
        await app.cancel("r")
        with pytest.raises(RunCancelled):
            await run
        with pytest.raises(RunCancelled):
            await app.run("a", "go", run_id="r")


@pytest.mark.parametrize("owner", ["worker", "caller"])
async def test_run_waits_for_the_worker_that_executes_the_run(durable_store_url: str, owner: str) -> None:
    reached, gate = asyncio.Event(), asyncio.Event()
    asked = 0

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        nonlocal asked
        asked += 1
        reached.set()
        await gate.wait()
        return Reply(text="done")

    agent = Agent(name="a", model=model)
    async with (
        App([agent], durable_store_url, worker=owner == "worker") as one,
        App([agent], durable_store_url, worker=False) as two,
    ):
        await one.submit("a", "go", run_id="r")
        runs = [asyncio.create_task(app.run("a", "go", run_id="r")) for app in (one, two, two)]
        await reached.wait()
        gate.set()
        assert [(await run).output for run in runs] == ["done"] * 3
    assert asked == 1


async def test_resume_is_refused_while_another_worker_executes_the_run(durable_store_url: str) -> None:
    reached, gate = asyncio.Event(), asyncio.Event()

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        reached.set()
        await gate.wait()
        return Reply(text="done")

    agent = Agent(name="a", model=model)
    async with (
        App([agent], durable_store_url, worker=False) as one,
        App([agent], durable_store_url, worker=False) as two,
    ):
        run = asyncio.create_task(one.run("a", "go", run_id="r"))
        await reached.wait()
        own, other = (asyncio.create_task(app.resume("r")) for app in (one, two))
        await asyncio.wait([other], timeout=60)
        assert not own.done(), "in the same process it waits"
        gate.set()
        with pytest.raises(RunBusy):
            await other
        assert [(await each).output for each in (run, own)] == ["done", "done"]


async def test_all_runs_whose_retention_has_passed_are_purged_together() -> None:
    clock = ManualClock()
    settings = CheckpointSettings(retention=Retention(done=timedelta(minutes=1)))
    app = App(
        [Agent(name="a", model=ScriptedModel("done"))], MemoryStore(clock=clock), checkpoint=settings, clock=clock
    )
    async with app:
        await asyncio.gather(*(app.run("a", "go", run_id=f"r{number}") for number in range(350)))
        await clock.advance(timedelta(seconds=59))
        assert len((await app.list(limit=500)).runs) == 350
        await clock.advance(timedelta(seconds=40))
        assert (await app.list(limit=500)).runs == ()


async def test_a_retention_of_zero_removes_a_run_when_it_ends() -> None:
    model = ScriptedModel("done")
    settings = CheckpointSettings(retention=Retention(done=timedelta(0)))
    async with App([Agent(name="a", model=model)], MemoryStore(), checkpoint=settings) as app:
        for count in (1, 2):
            await app.run("a", "go", run_id="r")
            with pytest.raises(RunNotFound):
                await app.result("r")
            assert len(model.requests) == count


@pytest.mark.parametrize(("prompt", "status", "days"), [("go", RunStatus.DONE, 7), ("fail", RunStatus.FAILED, 30)])
async def test_finished_runs_are_kept_with_their_transcript(prompt: str, status: RunStatus, days: int) -> None:
    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if prompt == "fail":
            raise ValueError("broken")
        return Reply(text="done")

    store = MemoryStore()
    async with App([Agent(name="a", model=model)], store) as app:
        await asyncio.gather(app.run("a", prompt, run_id="r"), return_exceptions=True)
        stored = await store.load("r")
        assert stored.record.status is status
        assert stored.record.expires_at is not None
        kept = stored.record.expires_at - stored.record.updated_at
        assert abs(kept - timedelta(days=days)) < timedelta(minutes=1)
        assert len(stored.entries) > 1


async def test_the_loser_of_two_runs_with_one_new_id_reports_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    class Listener(NullListener):
        def __init__(self) -> None:
            self.errors: list[BaseException] = []

        async def on_error(self, info: RunInfo, error: BaseException) -> None:
            self.errors.append(error)

    agent, listener, store = Agent(name="a", model=ScriptedModel("done")), Listener(), MemoryStore()
    async with App([agent], store, worker=False) as winner:

        async def let_winner_run(method: str) -> None:
            if method == "create":
                await winner.run("a", "go", run_id="r")

        async with App([agent], ProbeStore(store, before=let_winner_run), worker=False, listener=listener) as loser:
            assert (await loser.run("a", "go", run_id="r")).output == "done"
            ends = {name: counters.attempts for name, counters in loser.metrics.agents.items()}
    assert listener.errors == []
    assert ends == {"a": {"lost": 1}}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
