"""With a save interval most saves wait for it. What must not be lost does not wait."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import App
from holdfast.checkpoint.codec import decode_run
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import Agent, Phase
from holdfast.core.agents.tool import tool
from holdfast.core.run.messages import NATIVE_CODEC, Message, Reply, ToolResult, User
from holdfast.stores.memory import MemoryStore

THROTTLED = CheckpointSettings(save_interval=timedelta(hours=1))


@tool(effect="pure")
async def look() -> str:
    return "seen"


async def test_the_result_of_a_once_call_is_saved_while_its_siblings_are_in_progress() -> None:
    host, paid = SimulatedHost(settings=THROTTLED), 0

    def agent(model: ScriptedModel, *, waits: bool) -> Agent:
        @tool
        async def pay() -> str:
            nonlocal paid
            paid += 1
            return "paid"

        @tool(effect="pure")
        async def wait() -> str:
            if waits:
                await asyncio.Event().wait()
            return "waited"

        return Agent(name="a", model=model, tools=[pay, wait])

    batch = tool_reply(call("1", "pay"), call("2", "wait"))
    run = asyncio.create_task(host.executor.run(agent(ScriptedModel(batch), waits=True), "go", run_id="r"))
    async with asyncio.timeout(60):
        await host.store.wait_for_entries(EntryKind.RESULT, 1)
    await host.crash()
    model = ScriptedModel(batch, "done")
    await SimulatedHost(host.inner).resume(agent(model, waits=False), "r")
    results = [message.content for message in model.requests[-1] if isinstance(message, ToolResult)]
    assert (results, paid) == (["paid", "waited"], 1)
    run.cancel()


async def test_a_run_that_fails_after_a_compaction_keeps_one_history() -> None:
    host = SimulatedHost(settings=THROTTLED)

    async def compact(messages: Sequence[Any]) -> Sequence[Any] | None:
        return [User("in short")] if len(messages) == 5 else None

    async def model(messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
        if messages[0] == User("in short"):
            raise ValueError("broken")
        replies = sum(isinstance(message, Reply) for message in messages)
        return tool_reply(call(str(replies), "look"))

    with fails_with(ValueError, match="broken"):
        await host.executor.run(Agent(name="a", model=model, tools=[look], compact=compact), "go", run_id="r")
    stored = await host.inner.load("r")
    assert stored.record.status is RunStatus.FAILED
    state = decode_run(stored, NATIVE_CODEC).state
    assert (list(state.history), state.steps) == ([User("in short")], 2)


async def test_the_recorded_result_of_a_run_that_was_compacted_is_the_result_of_the_run() -> None:
    async def compact(messages: Sequence[Any]) -> Sequence[Any] | None:
        return [User("in short")] if len(messages) == 5 else None

    async def model(messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
        replies = sum(isinstance(message, Reply) for message in messages)
        done = messages[0] == User("in short")
        return Reply(text="done") if done else tool_reply(call(str(replies), "look"))

    agent = Agent(name="a", model=model, tools=[look], compact=compact)
    async with App([agent], MemoryStore(), checkpoint=THROTTLED) as app:
        result = await app.run(agent, "go", run_id="r")
        recorded = await app.run(agent, "go", run_id="r")
        assert (list(recorded.messages), recorded.steps) == (list(result.messages), result.steps)
        assert list(result.messages) == [User("in short"), Reply(text="done")]


async def test_the_journal_of_a_finished_phase_has_all_its_messages() -> None:
    host = SimulatedHost(settings=THROTTLED)
    steps = (tool_reply(call("1", "look")), tool_reply(call("2", "look")), "found")
    phases = [Phase(name="search", prompt="Search"), Phase(name="report", prompt="Report", model=ScriptedModel("said"))]
    agent = Agent(name="a", model=ScriptedModel(*steps), tools=[look], phases=phases)
    await host.executor.run(agent, "go", run_id="r")
    written = [entry for write in host.store.writes for entry in write]
    first_phase = written[: [entry.kind for entry in written].index(EntryKind.PHASE)]
    messages = [NATIVE_CODEC.decode(entry.body) for entry in first_phase if entry.kind is EntryKind.MESSAGE]
    assert [type(message) for message in messages] == [User, Reply, ToolResult, Reply, ToolResult, Reply]
