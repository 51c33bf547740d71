"""What happens to a run while it runs: its text is heard, it is steered, compacted, watched and paid for."""

import asyncio
import math
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, AgentStreamEvent, RunContext
from pydantic_ai.capabilities import ProcessEventStream
from pydantic_ai.messages import (
    FunctionToolResultEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaThinkingCalls, DeltaThinkingPart, FunctionModel
from tests.adapters.crash_simulator import CrashSimulator
from tests.adapters.scripted_model import ScriptedModel, call, get_texts
from tests.failed_runs import fails_with

from holdfast import App, Bounds, RunInfo, Usage
from holdfast.adapters.pydantic_ai import ToolPolicy, durable
from holdfast.core.errors import DefinitionError, RunKilled, RunParked, RuntimeExceeded, Shutdown
from holdfast.core.observer import PUBLIC_EVENTS, AttemptControl, ObservedEvent, ReplyReceived
from holdfast.core.run.run_events import Event, ReasoningDelta, ReplyAdded, TextDelta
from holdfast.core.run.state import RunState
from holdfast.testing.manual_clock import ManualClock

TURNS: list[Any] = [
    ModelResponse(parts=[TextPart("let me see"), call("c1", "look", city="Lyon")]),
    [call("c2", "look", city="Faro")],
    "both are warm",
]


class RecordingListener:
    """A delivery that writes down what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.outputs: list[Any] = []

    async def on_event(self, info: RunInfo, event: Event) -> None:
        self.events.append(event)

    async def on_output(self, info: RunInfo, output: Any) -> None:
        self.outputs.append(output)

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...


def looking(script: ScriptedModel, **options: Any) -> Agent[None, Any]:
    agent: Agent[None, Any] = Agent(script.model, name="looking", **options)

    @agent.tool_plain
    async def look(city: str) -> str:
        return f"{city} is warm"

    return agent


async def test_the_text_is_heard_as_it_is_written() -> None:
    heard = RecordingListener()
    async with App([durable(looking(ScriptedModel(*TURNS)), stream=True)], "memory:", listener=heard) as app:
        result = await app.run("looking", "go")
    texts = [(event.step, event.text) for event in heard.events if isinstance(event, TextDelta)]
    assert texts == [(1, "let "), (1, "me "), (1, "see "), (3, "both "), (3, "are "), (3, "warm ")]
    assert result.output == "both are warm "
    assert [event.type for event in heard.events if event.type != "text_delta"] == [
        "step_started", "reply", "tool_call", "tool_result", "step_started", "reply", "tool_call", "tool_result",
        "step_started", "reply",
    ]  # fmt: skip
    assert heard.outputs == ["both are warm "]


async def test_the_reasoning_is_heard_as_it_is_written() -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaThinkingCalls]:
        for thought in ("let me ", "think"):
            yield {0: DeltaThinkingPart(content=thought)}
        yield "done"

    heard = RecordingListener()
    agent = durable(Agent(FunctionModel(stream_function=stream), name="thinking"), stream=True)
    async with App([agent], "memory:", listener=heard) as app:
        await app.run("thinking", "go")
    assert [event.text for event in heard.events if isinstance(event, ReasoningDelta)] == ["let me ", "think"]


async def test_without_streaming_replies_come_whole() -> None:
    heard = RecordingListener()
    async with App([durable(looking(ScriptedModel(*TURNS)))], "memory:", listener=heard) as app:
        await app.run("looking", "go")
    assert [event.text for event in heard.events if isinstance(event, ReplyAdded)] == [
        "let me see",
        "",
        "both are warm",
    ]
    assert not [event for event in heard.events if event.type == "text_delta"]


async def test_an_event_handler_of_the_agents_own_still_hears_everything() -> None:
    results: list[Any] = []

    async def handle(ctx: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
        results.extend([event.part.content async for event in events if isinstance(event, FunctionToolResultEvent)])

    agent = looking(ScriptedModel(*TURNS), capabilities=[ProcessEventStream(handle)])
    async with App([durable(agent)], "memory:") as app:
        await app.run("looking", "go")
    assert results == ["Lyon is warm", "Faro is warm"]


async def test_a_run_reads_messages_between_steps_and_at_its_end() -> None:
    script = ScriptedModel([call("c1", "hint")], "an answer", "another answer")
    agent = looking(script)

    @agent.tool_plain
    async def hint() -> str:
        await app.send("r1", "and Faro?")
        return "hinted"

    @agent.output_validator
    async def ask_more(output: str) -> str:
        if output == "an answer":
            await app.send("r1", "are you sure?")
        return output

    async with App([durable(agent)], "memory:") as app:
        result = await app.run("looking", "go", run_id="r1")
    assert (result.output, result.steps) == ("another answer", 3)
    assert get_texts(script.asked[-1]) == [
        ("user-prompt", "go"),
        ("tool-call", {}),
        ("tool-return", "hinted"),
        ("user-prompt", "and Faro?"),
        ("text", "an answer"),
        ("user-prompt", "are you sure?"),
    ]
    assert get_texts(list(result.messages)) == [*get_texts(script.asked[-1]), ("text", "another answer")]


async def keep_three(messages: Sequence[Any]) -> Sequence[Any] | None:
    assert isinstance(messages[-1], ModelRequest)
    return [messages[0], *messages[-2:]] if len(messages) > 3 else None


async def test_a_conversation_is_compacted_and_goes_on_so_after_a_death() -> None:
    shown: list[list[Any]] = []
    deaths = CrashSimulator("look 3")

    def reply(messages: list[ModelMessage]) -> ModelResponse:
        shown.append(get_texts(messages))
        number = 1 + max((args["n"] for kind, args in shown[-1] if kind == "tool-call"), default=0)
        return ModelResponse(parts=[call(f"c{number}", "look", n=number)] if number < 5 else [TextPart("done")])

    agent: Agent[None, str] = Agent(ScriptedModel(*[reply] * 9).model, name="compacted")

    @agent.tool_plain
    async def look(n: int) -> int:
        await deaths.reach(f"look {n}")
        return n

    result = await deaths.run(durable(agent, compact=keep_three, tools={"look": ToolPolicy("pure")}))
    assert result.output == "done"
    assert [len(each) for each in shown] == [1, 3, 3, 3, 3]
    assert shown[-1] == [("user-prompt", "go"), ("tool-call", {"n": 4}), ("tool-return", 4)]
    assert deaths.passed == ["look 1", "look 2", "look 3", "look 3", "look 4"]
    assert get_texts(list(result.messages)) == [*shown[-1], ("text", "done")]


async def test_what_compaction_returns_has_to_be_a_conversation() -> None:
    async def nothing(messages: Sequence[Any]) -> Sequence[Any]:
        return []

    async with App([durable(looking(ScriptedModel("done")), compact=nothing)], "memory:") as app:
        with fails_with(DefinitionError, match="end with the request"):
            await app.run("looking", "go")


async def test_a_budget_stops_the_run_between_steps_and_lets_it_go_on() -> None:
    class Budget:
        def __init__(self) -> None:
            self.limit = 2
            self.committed: list[Usage] = []

        async def check(self, info: RunInfo, state: RunState) -> None:
            if state.own_usage.requests >= self.limit:
                raise RunParked("budget", f"{self.limit} requests")

        async def commit(self, info: RunInfo, state: RunState) -> None:
            self.committed.append(state.own_usage)

    budget, script = Budget(), ScriptedModel(*TURNS)
    async with App([durable(looking(script))], "memory:", budget=budget) as app:
        with pytest.raises(RunParked, match="budget"):
            await app.run("looking", "go", run_id="r1")
        assert len(script.asked) == 2
        budget.limit = 9
        assert (await app.resume("r1")).output == "both are warm"
    assert len(script.asked) == 3
    assert sorted({usage.requests for usage in budget.committed}) == [1, 2, 3]


async def test_a_critic_sees_activity_and_may_kill() -> None:
    class Critic:
        def __init__(self, limit: int) -> None:
            self.left = limit
            self.control: AttemptControl | None = None

        kinds = PUBLIC_EVENTS

        def begin(self, attempt: AttemptControl, max_runtime: timedelta | None) -> "Critic":
            self.control = attempt
            return self

        def observe(self, event: ObservedEvent) -> None:
            self.left -= 1
            if self.left == 0:
                assert self.control is not None
                self.control.kill("it talks too much")

    calm, strict = Critic(1000), Critic(5)
    async with App([durable(looking(ScriptedModel(*TURNS)))], "memory:", critic=calm) as app:
        await app.run("looking", "go")
    assert calm.left < 995
    async with App([durable(looking(ScriptedModel(*TURNS)))], "memory:", critic=strict) as app:
        with fails_with(RunKilled):
            await app.run("looking", "go")


async def test_a_run_that_takes_too_long_is_ended() -> None:
    agent = looking(ScriptedModel([call("c1", "wait")], "done"))
    begun, over = asyncio.Event(), asyncio.Event()

    @agent.tool_plain
    async def wait() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()
        return "never"

    clock, limit = ManualClock(), timedelta(minutes=1)
    async with App([durable(agent, bounds=Bounds(max_runtime=limit))], "memory:", clock=clock) as app:
        running = asyncio.create_task(app.run("looking", "go"))
        await begun.wait()
        await clock.advance(limit)
        with fails_with(RuntimeExceeded):
            await running
    assert over.is_set()


async def test_a_shutdown_leaves_the_run_at_its_next_boundary(durable_store_url: str) -> None:
    script = ScriptedModel([call("c0", "slow")], *TURNS[1:])
    agent = looking(script)
    begun = asyncio.Event()

    @agent.tool_plain
    async def slow() -> str:
        begun.set()
        while not app._open_executor.draining:  # noqa: ASYNC110 - a shutdown has no event
            await asyncio.sleep(0.001)
        return "slow"

    known = durable(agent)
    async with App([known], durable_store_url, worker=False) as app:
        running = asyncio.create_task(app.run(known, "go", run_id="r1"))
        await begun.wait()
    with pytest.raises(Shutdown, match="after step 1"):
        await running
    assert len(script.asked) == 1
    async with App([known], durable_store_url, worker=False) as app:
        await app.recover()
    assert len(script.asked) == 3


async def test_an_observer_learns_which_model_has_replied() -> None:
    class Observer:
        kinds = frozenset({ReplyReceived})

        def __init__(self) -> None:
            self.models: list[str] = []

        def begin(self, attempt: AttemptControl, max_runtime: timedelta | None) -> "Observer":
            return self

        def observe(self, event: ObservedEvent) -> None:
            assert isinstance(event, ReplyReceived)
            self.models.append(event.model)

    observer, script = Observer(), ScriptedModel("warm")
    async with App([durable(looking(script))], "memory:", critic=observer) as app:
        await app.run("looking", "go")
    assert observer.models == [script.model.model_name]  # a `FunctionModel` names itself


@pytest.mark.parametrize("arguments", [{"city": math.nan}, '{"city": NaN}', '{"city": "half \\ud83d"}'])
async def test_arguments_that_no_store_can_keep_are_reported_to_the_model(arguments: Any) -> None:
    asked = ModelResponse(parts=[ToolCallPart("look", arguments, tool_call_id="c1")])
    script = ScriptedModel(asked, "done")
    async with App([durable(looking(script), tools={"look": ToolPolicy(approval=True)})], "memory:") as app:
        assert (await app.run("looking", "go")).output == "done"
    assert "no half of a surrogate pair" in str(script.asked[-1])


async def test_half_a_surrogate_pair_in_a_reply_is_replaced() -> None:
    thought = ModelResponse(parts=[TextPart("half \ud83d"), call("c1", "look", city="Lyon")])
    async with App([durable(looking(ScriptedModel(thought, "done, half \ud83d")))], "memory:") as app:
        result = await app.run("looking", "go")
    assert result.output == "done, half \ufffd"
