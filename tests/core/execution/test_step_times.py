"""The times of a step: measured, stored with its end, and missing where nothing was measured."""

from datetime import timedelta
from pathlib import Path

from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast.app import App
from holdfast.checkpoint.codec import Step, decode, encode
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.tool import tool
from holdfast.core.run.state import CallTime, StepTimer, StepTimes
from holdfast.testing import ManualClock


async def test_a_step_says_how_long_the_model_and_each_call_took() -> None:
    clock = ManualClock()
    timer = StepTimer(clock)
    timer.begin()
    await clock.advance(timedelta(milliseconds=400))
    timer.reply()
    started = clock.monotonic()
    await clock.advance(timedelta(milliseconds=250))
    timer.add_call("c1", started)
    await clock.advance(timedelta(milliseconds=50))
    assert timer.end() == StepTimes(700, 400, (CallTime("c1", 400, 650),))
    assert timer.end() is None, "the next step has begun in another process"
    timer.reply()
    await clock.advance(timedelta(milliseconds=10))
    assert timer.end() == StepTimes(10, 0, ()), "the reply was recorded by an earlier process"


async def test_the_times_are_in_the_journal(tmp_path: Path) -> None:
    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        return "seen"

    agent = Agent(name="looker", model=ScriptedModel(tool_reply(call("c1", "look")), "Done."), tools=[look])
    async with App([agent], f"sqlite:{tmp_path / 'runs.db'}") as app:
        await app.run(agent, "Look.", run_id="r1")
        assert app.store is not None
        stored = await app.store.load("r1")
    steps = [decode(entry.body, Step) for entry in stored.entries if entry.kind is EntryKind.STEP]
    assert [step.times is not None for step in steps] == [True, True]
    assert [[each.call_id for each in step.times.calls] for step in steps if step.times] == [["c1"], []]


def test_a_step_without_times_is_read_and_written_as_before() -> None:
    old = b'{"at":"2026-01-01T00:00:00Z","progress":' + encode(Progress(steps=1)) + b"}"
    step = decode(old, Step)
    assert step.times is None
    assert encode(step) == old
