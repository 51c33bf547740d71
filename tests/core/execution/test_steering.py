"""Messages from outside between steps, and histories that are made shorter."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.core.null_listener import NullListener
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.journal import EntryKind
from holdfast.core.agents.agent import Agent, Bounds
from holdfast.core.agents.tool import ToolSchema, tool
from holdfast.core.errors import PayloadError, RunParked, Shutdown
from holdfast.core.execution.attempt import Attempt
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.native_loop import NativeLoop
from holdfast.core.execution.step import StepContext, take_messages
from holdfast.core.observer import AttemptControl, ObservedEvent
from holdfast.core.ports import Ports
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Message, Reply, System, ToolResult, User
from holdfast.core.run.run_events import DraftRetracted, Event, MessageAdded
from holdfast.core.run.state import RunState


@tool(effect="pure")
async def look() -> str:
    return "seen"


async def test_a_message_is_steered_in_between_two_steps() -> None:
    executor = Executor()

    @tool(effect="pure")
    async def hint() -> str:
        execution = executor.get_attempt("r")
        assert execution is not None
        execution.nudge("mind the gap")
        execution.nudge("and the doors")
        return "seen"

    model = ScriptedModel(tool_reply(call("1", "hint")), "done")
    await executor.run(Agent(name="a", model=model, tools=[hint]), "go", run_id="r")
    assert model.requests[1][-3:] == (
        ToolResult(call_id="1", tool="hint", content="seen"),
        User("mind the gap"),
        User("and the doors"),
    )


async def test_a_message_that_cannot_be_stored_is_refused_and_the_run_continues() -> None:
    host = SimulatedHost()

    @tool(effect="pure")
    async def hint() -> str:
        execution = host.executor.get_attempt("r")
        assert execution is not None
        execution.nudge("hurry up")
        with pytest.raises(PayloadError, match="cannot be stored"):
            execution.nudge("half a pair \ud83d")
        return "seen"

    model = ScriptedModel(tool_reply(call("1", "hint")), "done")
    await host.executor.run(Agent(name="a", model=model, tools=[hint]), "go", run_id="r")
    assert [message for message in model.requests[1] if isinstance(message, User)] == [User("go"), User("hurry up")]


async def test_a_message_that_comes_with_the_answer_is_answered_too() -> None:
    executor = Executor()

    async def first(messages: Sequence[Message]) -> Reply:
        execution = executor.get_attempt("r")
        assert execution is not None
        execution.nudge("one more thing")
        return Reply(text="done")

    model = ScriptedModel(first, "done as well")
    result = await executor.run(Agent(name="a", model=model), "go", run_id="r")
    assert (result.output, result.steps) == ("done as well", 2)
    assert model.requests[1][-1] == User("one more thing")


async def test_a_steered_message_survives_a_resume_once_its_step_is_saved() -> None:
    host = SimulatedHost()

    @tool(effect="pure")
    async def hint() -> None:
        execution = host.executor.get_attempt("r")
        assert execution is not None
        execution.nudge("mind the gap")

    model = ScriptedModel(tool_reply(call("1", "hint")), tool_reply(call("2", "look")), Shutdown("now"))
    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", model=model, tools=[hint, look]), "go", run_id="r")
    after = ScriptedModel("", "", "done")
    await SimulatedHost(host.inner).resume(Agent(name="a", model=after, tools=[hint, look]), "r")
    assert User("mind the gap") in after.requests[0]


def said(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages if isinstance(message, User)]


async def test_what_no_step_took_before_a_shutdown_is_said_in_the_next_life_and_once() -> None:
    host = SimulatedHost()
    closing: list[asyncio.Task[None]] = []

    @tool(effect="pure")
    async def hint() -> None:
        execution = host.executor.get_attempt("r")
        assert execution is not None
        execution.nudge("mind the gap")
        execution.nudge("and the doors")
        closing.append(asyncio.create_task(host.executor.shutdown()))
        while not execution.stop_state.draining:  # noqa: ASYNC110 - until the shutdown has had its turn
            await asyncio.sleep(0)

    model = ScriptedModel(tool_reply(call("1", "hint")), "never")
    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", model=model, tools=[hint]), "go", run_id="r")
    await closing[0]
    store = host.inner
    second = ScriptedModel("", tool_reply(call("2", "look")), Shutdown("now"))
    with pytest.raises(Shutdown):
        await SimulatedHost(store).resume(Agent(name="a", model=second, tools=[look]), "r")
    assert [said(asked) for asked in second.requests] == [["go", "mind the gap", "and the doors"]] * 2
    third = ScriptedModel("", "", "done")
    result = await SimulatedHost(store).resume(Agent(name="a", model=third, tools=[look]), "r")
    assert said(list(result.messages)) == ["go", "mind the gap", "and the doors"]


async def test_what_came_with_the_answer_is_answered_in_the_next_life() -> None:
    host = SimulatedHost()

    async def answers(messages: Sequence[Message]) -> Reply:
        execution = host.executor.get_attempt("r")
        assert execution is not None
        execution.nudge("one more thing")
        execution.stop_state.draining = True
        return Reply(text="done")

    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", model=ScriptedModel(answers)), "go", run_id="r")
    result = await SimulatedHost(host.inner).resume(Agent(name="a", model=ScriptedModel("", "done as well")), "r")
    assert (result.output, said(list(result.messages))) == ("done as well", ["go", "one more thing"])


@pytest.mark.parametrize("where", ["compact", "listener"])
async def test_what_a_step_had_begun_to_take_when_it_was_stopped_is_not_lost(where: str) -> None:
    async def stops(messages: Sequence[Any]) -> Sequence[Any] | None:
        if len(messages) > 1:
            raise Shutdown("now")
        return None

    class Stops(NullListener):
        async def on_event(self, info: RunInfo, event: Event) -> None:
            if isinstance(event, MessageAdded):
                raise Shutdown("now")

    host = SimulatedHost(ports=Ports(listener=Stops() if where == "listener" else None))

    @tool(effect="pure")
    async def hint() -> None:
        execution = host.executor.get_attempt("r")
        assert execution is not None
        execution.nudge("mind the gap")

    model = ScriptedModel(tool_reply(call("1", "hint")), "never")
    compact = stops if where == "compact" else None
    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", model=model, tools=[hint], compact=compact), "go", run_id="r")
    after = ScriptedModel("", "done")
    await SimulatedHost(host.inner).resume(Agent(name="a", model=after, tools=[hint]), "r")
    assert said(after.requests[-1]) == ["go", "mind the gap"]


class BudgetThatParks:
    """Is used up after the first step."""

    async def check(self, info: RunInfo, state: RunState) -> None:
        if state.steps == 1:
            raise RunParked("budget")

    async def commit(self, info: RunInfo, state: RunState) -> None: ...


async def test_what_stops_a_run_before_its_step_does_not_take_what_was_steered_in() -> None:
    executor = Executor(Ports(budget=BudgetThatParks()))
    steered: list[Attempt] = []

    @tool(effect="pure")
    async def hint() -> None:
        execution = executor.get_attempt("r")
        assert execution is not None
        execution.nudge("mind the gap")
        steered.append(execution)

    with pytest.raises(RunParked):
        await executor.run(
            Agent(name="a", model=ScriptedModel(tool_reply(call("1", "hint"))), tools=[hint]), "go", run_id="r"
        )
    assert take_messages(steered[0]) == ["mind the gap"]


async def test_a_run_that_is_not_live_cannot_be_steered() -> None:
    executor = Executor()
    assert executor.get_attempt("r") is None
    assert executor.active_run_ids == frozenset()


# -- compaction -------------------------------------------------------------------------------------------------------


@tool(effect="pure")
async def count(n: int) -> int:
    return n


def counted(messages: Sequence[Any]) -> int:
    """How far the counting is, from the last result or the summary."""
    for message in reversed(messages):
        if isinstance(message, ToolResult):
            return int(message.content)
        if isinstance(message, User) and message.text.startswith("counted to "):
            return int(message.text.removeprefix("counted to "))
    return 0


async def summarise(messages: Sequence[Any]) -> Sequence[Any] | None:
    """The instructions and one line in place of the rest, once there are more than six messages."""
    return [messages[0], User(f"counted to {counted(messages)}")] if len(messages) > 6 else None


class Counter:
    """A model that counts to a number, by what it is shown; may stop the run instead of its n-th reply."""

    def __init__(self, to: int, *, stop: int | None = None) -> None:
        self._to, self._stop = to, stop
        self.asked: list[tuple[Message, ...]] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if self._stop == len(self.asked):
            raise Shutdown("now")
        self.asked.append(tuple(messages))
        n = counted(messages) + 1
        return Reply(text="done") if n > self._to else tool_reply(call(f"c{n}", "count", n=n))

    @property
    def agent(self) -> Agent:
        bounds = Bounds(max_steps=1000)
        return Agent(name="a", model=self, instructions="count", tools=[count], compact=summarise, bounds=bounds)


async def test_a_compacted_history_is_what_the_model_sees_and_what_a_resume_finds() -> None:
    whole = Counter(to=8)
    expected = await Executor().run(whole.agent, "go")
    assert [len(shown) for shown in whole.asked] == [2, 4, 6, 2, 4, 6, 2, 4, 6]
    assert whole.asked[3] == (System("count"), User("counted to 3"))

    for stop in range(len(whole.asked)):
        host, before, after = SimulatedHost(), Counter(to=8, stop=stop), Counter(to=8)
        with pytest.raises(Shutdown):
            await host.executor.run(before.agent, "go", run_id="r")
        result = await SimulatedHost(host.inner).resume(after.agent, "r")
        assert before.asked + after.asked == whole.asked
        assert list(result.messages) == list(expected.messages)
        assert (result.steps, result.usage) == (expected.steps, expected.usage)


async def test_the_journal_of_a_run_that_compacts_stays_small() -> None:
    host = SimulatedHost()
    counter = Counter(to=300)
    await host.executor.run(counter.agent, "go")
    sizes = [sum(len(entry.body) for entry in write) for write in host.store.writes]
    assert max(sizes) < 2000, "the largest write is a journal written anew"
    replaced = [write for write in host.store.writes[1:] if write[0].kind is EntryKind.BEGIN]
    assert len(replaced) > 50


class ShowingLoop(NativeLoop):
    """Finishes a step, and shows something of every kind in the second one."""

    async def run(self, context: StepContext) -> Any:
        await context.start([])
        context.state.history.append(Reply(text="first"))
        await context.end_step()
        context.attempt.nudge("hurry up")
        assert await context.begin_step() == ["hurry up"]
        await context.emit_reasoning("hm")
        await context.emit_text("so")
        context.restart_draft()
        await context.emit_custom("mood", "good")
        await context.emit_reply("so be it")
        return "done"


async def test_all_that_is_shown_within_a_step_has_its_number() -> None:
    shown: list[tuple[str, int]] = []

    class Listener(NullListener):
        async def on_event(self, info: RunInfo, event: Event) -> None:
            shown.append((type(event).__name__, event.step))

    observer = StepObserver()
    executor = Executor(Ports(listener=Listener(), observers=(observer,)))
    await executor.run(Agent(name="a", loop=ShowingLoop()), "go", run_id="r")
    names = ["StepStarted", "MessageAdded", "ReasoningDelta", "TextDelta", "CustomEvent", "ReplyAdded"]
    assert shown == [(name, 2) for name in names]
    assert observer.retracted == [2]


class StepObserver:
    """Remembers the steps whose draft was withdrawn."""

    kinds: frozenset[type] = frozenset({DraftRetracted})

    def __init__(self) -> None:
        self.retracted: list[int] = []

    def begin(self, attempt: AttemptControl) -> "StepObserver":
        return self

    def observe(self, event: ObservedEvent) -> None:
        assert isinstance(event, DraftRetracted)
        self.retracted.append(event.step)
