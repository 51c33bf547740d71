"""Runs that die and go on: nothing that is recorded happens again, and the model sees what it would have seen."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ModelRetry, RunContext, ToolReturn, UsageLimits
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ToolFailed, UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage
from tests.adapters.crash_simulator import RUN, CrashSimulator
from tests.adapters.scripted_model import ScriptedModel, call, get_texts
from tests.failed_runs import fails_with
from tests.simulated_host import SimulatedHost

from holdfast import App
from holdfast.adapters.pydantic_ai import ToolPolicy, durable
from holdfast.core.agents.calls import NOT_EXECUTED, Completed
from holdfast.core.errors import MissingDefinition, RunParked, Shutdown
from holdfast.core.ports import Ports
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

PURE = dict.fromkeys(("look", "wait"), ToolPolicy("pure"))


class Trip(BaseModel):
    city: str


def travelling(script: ScriptedModel, deaths: CrashSimulator, **options: Any) -> Agent[None, Any]:
    """An agent with a tool for every kind of result, and places to die in."""
    agent: Agent[None, Any] = Agent(script.model, name="traveller", **options)

    @agent.tool_plain
    async def look(city: str) -> str:
        await deaths.reach(f"look {city}", results=4 if city == "Bonn" else 0)
        return f"{city} is warm"

    @agent.tool_plain
    async def pay(city: str) -> bytes:
        await deaths.reach(f"pay {city}")
        return b"\xff\x00" + city.encode()

    @agent.tool_plain
    async def fail(city: str) -> str:
        await deaths.reach(f"fail {city}")
        raise ToolFailed(f"no {city}")

    @agent.tool_plain(retries=3)
    async def pick(city: str) -> str:
        await deaths.reach(f"pick {city}")
        raise ModelRetry(f"not {city}")

    @agent.tool_plain
    async def photograph(city: str) -> ToolReturn:
        await deaths.reach(f"photograph {city}")
        picture = BinaryContent(b"\x89PNG\xff", media_type="image/png")
        return ToolReturn(return_value=[city, picture], content=["look: ", picture], metadata={"taken": city})

    return agent


async def both(turns: list[Any], *deadly: str, **options: Any) -> tuple[CrashSimulator, ScriptedModel, Any]:
    """The run with its deaths, after it was seen to give what an unharmed one gives."""
    tools = options.pop("tools", dict.fromkeys(("look", "fail", "pick", "photograph"), ToolPolicy("pure")))
    unharmed, script = ScriptedModel(*turns), ScriptedModel(*turns)
    usual = await CrashSimulator().run(durable(travelling(unharmed, CrashSimulator(), **options), tools=tools))
    deaths = CrashSimulator(*deadly)
    result = await deaths.run(durable(travelling(script, deaths, **options), tools=tools))
    assert result.output == usual.output
    assert (result.usage, result.steps) == (usual.usage, usual.steps)
    assert get_texts(script.asked[-1]) == get_texts(unharmed.asked[-1])
    return deaths, script, result


async def test_a_run_goes_on_after_its_last_step() -> None:
    turns = [[call("c1", "look", city="Lyon")], [call("c2", "look", city="Faro")], "done"]
    deaths, script, _ = await both(turns, "look Faro")
    assert deaths.passed == ["look Lyon", "look Faro", "look Faro"]
    assert len(script.asked) == 3


async def test_of_a_half_done_batch_only_the_missing_calls_are_made() -> None:
    batch = [
        call("c1", "pay", city="Lyon"), call("c2", "fail", city="Faro"), call("c3", "pick", city="Bari"),
        call("c4", "photograph", city="Nice"), call("c5", "look", city="Bonn"),
    ]  # fmt: skip
    deaths, script, _ = await both([batch, "done"], "look Bonn")
    assert sorted(deaths.passed) == sorted(
        ["pay Lyon", "fail Faro", "pick Bari", "photograph Nice", "look Bonn", "look Bonn"]
    )
    assert len(script.asked) == 2


async def test_what_tools_returned_comes_back_as_it_was() -> None:
    batch = [call("c1", "pay", city="Lyon"), call("c4", "photograph", city="Nice")]
    _, script, _ = await both([batch, [call("c5", "look", city="Bari")], "done"], "look Bari")
    picture = ("image/png", b"\x89PNG\xff")
    assert get_texts(script.asked[-1][2:3]) == [
        ("tool-return", b"\xff\x00Lyon"),
        ("tool-return", ["Nice", picture]),
        ("user-prompt", ["look: ", picture]),
    ]
    photographed = script.asked[-1][2].parts[1]
    assert isinstance(photographed, ToolReturnPart)
    assert photographed.metadata == {"taken": "Nice"}


async def test_an_answer_is_not_asked_for_again_even_with_instructions() -> None:
    """An agent with instructions would ask the model once more if it were only given the messages."""
    deaths = CrashSimulator("accept")
    script = ScriptedModel("done")
    agent = travelling(script, deaths, instructions="Be brief.")

    @agent.output_validator
    async def accept(output: str) -> str:
        await deaths.reach("accept")
        return output

    result = await deaths.run(durable(agent))
    assert result.output == "done"
    assert (len(script.asked), result.usage.requests) == (1, 1)


@pytest.mark.parametrize("strategy", ["early", "graceful", "exhaustive"])
async def test_calls_beside_the_output_are_made_once(strategy: Any) -> None:
    """The run dies after its last step was saved and before it was settled."""
    script = ScriptedModel([call("c1", "pay", city="Lyon"), call("c2", "final_result", city="Lyon")])
    deaths = CrashSimulator("deliver")
    agent = durable(travelling(script, deaths, output_type=Trip, end_strategy=strategy))

    class Delivery:
        async def on_event(self, info: Any, event: Any) -> None: ...
        async def on_error(self, info: Any, error: BaseException) -> None: ...
        async def on_output(self, info: Any, output: Any) -> None:
            await deaths.reach("deliver")

    result = await deaths.run(agent, ports=Ports(listener=Delivery()))
    assert result.output == Trip(city="Lyon")
    assert deaths.passed == ([] if strategy == "early" else ["pay Lyon"]) + ["deliver", "deliver"]
    assert (len(script.asked), result.steps) == (1, 1)


async def test_retry_budgets_go_on_counting() -> None:
    """Three retries are allowed in a row, over all attempts together."""
    turns = [[call(f"c{n}", "pick", city=f"{n}")] for n in range(9)]
    deaths = CrashSimulator("pick 1", "pick 3")
    script = ScriptedModel(*turns)
    with fails_with(UnexpectedModelBehavior, match="max retries"):
        await deaths.run(durable(travelling(script, deaths), tools={"pick": ToolPolicy("pure")}))
    assert len(script.asked) == 4


async def test_output_retries_go_on_counting() -> None:
    deaths = CrashSimulator("look Lyon")
    script = ScriptedModel("no", [call("c1", "look", city="Lyon")], "no", "no", "no")
    agent = travelling(script, deaths, retries={"output": 2})

    @agent.output_validator
    def refuse(output: str) -> str:
        raise ModelRetry("no")

    with fails_with(UnexpectedModelBehavior, match="output retries"):
        await deaths.run(durable(agent, tools=PURE))
    assert len(script.asked) == 4


async def test_usage_limits_hold_over_all_lives() -> None:
    used = RequestUsage(input_tokens=100, output_tokens=10, details={"odd": 3})
    turns = [ModelResponse(parts=[call(f"c{n}", "look", city=f"{n}")], usage=used) for n in range(9)]
    deaths = CrashSimulator("look 1", "look 2")
    script = ScriptedModel(*turns)
    limited = durable(travelling(script, deaths), tools=PURE, usage_limits=UsageLimits(total_tokens_limit=450))
    with fails_with(UsageLimitExceeded):
        await deaths.run(limited)
    assert len(script.asked) == 5


async def test_a_tool_reads_the_prompt_in_every_life() -> None:
    deaths = CrashSimulator("look Lyon")
    seen: list[Any] = []
    agent = travelling(ScriptedModel([call("c1", "look", city="Lyon")], [call("c2", "ask")], "done"), deaths)

    @agent.tool
    def ask(ctx: RunContext[None]) -> str:
        seen.append(ctx.prompt)
        return "asked"

    await deaths.run(durable(agent, tools=PURE))
    assert seen == ["go"]


async def test_what_was_put_into_the_queue_is_there_in_the_next_life() -> None:
    deaths = CrashSimulator("model")
    agent = travelling(script := ScriptedModel([call("c1", "nudge")], "unused"), deaths)

    @agent.tool
    def nudge(ctx: RunContext[None]) -> str:
        ctx.enqueue("by the way")
        return "nudged"

    shown: list[Any] = []

    async def reply(messages: list[ModelMessage], info: Any) -> ModelResponse:
        if len(messages) == 1:
            return script._reply(messages, info)
        shown.append(get_texts(messages))
        await deaths.reach("model")
        return ModelResponse(parts=[TextPart("done")])

    with agent.override(model=FunctionModel(reply)):
        await deaths.run(durable(agent))
    assert len(shown) == 2
    assert shown[0] == shown[1]
    assert ("user-prompt", "by the way") in shown[0]


async def test_what_a_hook_made_of_a_result_is_recorded_and_no_hook_sees_it_again() -> None:
    deaths = CrashSimulator("wait")
    script = ScriptedModel([call("c1", "look"), call("c2", "wait")], "done")
    seen: list[str] = []

    class Loud(AbstractCapability[Any]):
        async def after_tool_execute(self, ctx: RunContext[Any], *, call: Any, result: Any, **more: Any) -> Any:
            seen.append(call.tool_name)
            return result.upper()

    agent: Agent[None, str] = Agent(script.model, name="loud", capabilities=[Loud()])

    @agent.tool_plain
    async def look() -> str:
        return "seen"

    @agent.tool_plain
    async def wait() -> str:
        await deaths.reach("wait", results=1)
        return "waited"

    result = await deaths.run(durable(agent, tools=PURE))
    assert seen == ["look", "wait"]
    assert get_texts(list(result.messages))[-3:] == [
        ("tool-return", "SEEN"),
        ("tool-return", "WAITED"),
        ("text", "done"),
    ]


async def test_what_a_hook_put_into_the_queue_for_this_very_request_is_there_in_the_next_life() -> None:
    deaths = CrashSimulator("model")
    shown: list[Any] = []

    async def reply(messages: list[ModelMessage], info: Any) -> ModelResponse:
        shown.append(get_texts(messages))
        await deaths.reach("model")
        return ModelResponse(parts=[TextPart("done")])

    class Reminder(AbstractCapability[Any]):
        async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
            if not shown:
                ctx.enqueue("be brief")
            return request_context

    result = await deaths.run(durable(Agent(FunctionModel(reply), name="reminded", capabilities=[Reminder()])))
    assert shown[0] == shown[1]
    assert get_texts(list(result.messages)) == [*shown[0], ("text", "done")]
    assert ("user-prompt", "be brief") in shown[0]


async def test_a_prompt_that_is_made_anew_by_each_attempt_is_kept_once() -> None:
    deaths = CrashSimulator("model")
    prompts: list[str] = []

    async def reply(messages: list[ModelMessage], info: Any) -> ModelResponse:
        prompts.append(str(get_texts(messages)))
        await deaths.reach("model")
        return ModelResponse(parts=[TextPart("done")])

    agent: Agent[None, str] = Agent(FunctionModel(reply), name="prompted")

    @agent.system_prompt(dynamic=True)
    def instructions() -> str:
        return f"this is attempt {len(prompts)}"

    result = await deaths.run(durable(agent))
    assert [f"this is attempt {number}" in shown for number, shown in enumerate(prompts)] == [True, True]
    assert [kind for kind, _ in get_texts(list(result.messages))] == ["system-prompt", "user-prompt", "text"]


@pytest.mark.parametrize("alone", [False, True])
async def test_a_thread_is_waited_for_and_its_result_recorded(alone: bool) -> None:
    """A sync tool cannot be stopped: the run is not left to others while it works."""
    loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    done: list[str] = []
    batch = [call("c1", "send")] if alone else [call("c1", "send"), call("c2", "look", city="Lyon")]
    agent = travelling(script := ScriptedModel(batch, "done"), CrashSimulator())

    @agent.tool_plain
    def send() -> str:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(60)
        done.append("sent")
        return "sent"

    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    run = asyncio.create_task(host.executor.run(durable(agent), "go", run_id=RUN))
    await begun.wait()
    shutdown = asyncio.create_task(host.executor.shutdown(timedelta(seconds=30)))
    await clock.advance(timedelta(seconds=30))
    execution = host.executor.get_attempt(RUN)
    assert execution is not None
    assert isinstance(execution.stop_state.error, Shutdown)
    go_on.set()
    with pytest.raises(Shutdown):
        await run
    await shutdown
    result = await SimulatedHost(host.inner, clock=clock).resume(durable(agent), RUN)
    assert (result.output, done) == ("done", ["sent"])
    assert get_texts(script.asked[-1])[1 + len(batch)] == ("tool-return", "sent")


# -- calls in doubt -----------------------------------------------------------------------------------------------


async def test_a_once_call_in_doubt_is_not_made_again_and_is_reported_to_the_model() -> None:
    deaths = CrashSimulator("pay Lyon")
    script = ScriptedModel([call("c1", "pay", city="Lyon")], "done")
    await deaths.run(durable(travelling(script, deaths)))
    assert deaths.passed == ["pay Lyon"]
    [(_, result)] = [each for each in get_texts(script.asked[-1]) if each[0] == "tool-return"]
    assert "Unknown outcome" in result


@pytest.mark.parametrize("way", ["beside", "metadata", "function"])
@pytest.mark.parametrize("effect", ["pure", "idempotent"])
async def test_a_harmless_call_in_doubt_is_made_again(effect: str, way: str) -> None:
    deaths = CrashSimulator("buy")
    agent = travelling(ScriptedModel([call("c1", "buy")], "done"), deaths)

    @agent.tool_plain(metadata={"effect": effect} if way == "metadata" else None)
    async def buy() -> str:
        await deaths.reach("buy")
        return "bought"

    policy = ToolPolicy(effect)
    tools: Any = {"beside": {"buy": policy}, "metadata": {}, "function": lambda tool: policy}[way]
    await deaths.run(durable(agent, tools=tools))
    assert deaths.passed == ["buy", "buy"]


@pytest.mark.parametrize("verdict", [Completed(b"receipt"), NOT_EXECUTED])
async def test_a_once_call_in_doubt_is_reconciled(verdict: Any) -> None:
    deaths = CrashSimulator("pay Lyon")
    script = ScriptedModel([call("c1", "pay", city="Lyon")], "done")
    asked: list[Any] = []

    async def reconcile(context: Any) -> Any:
        asked.append((context.call_id, context.tool, context.arguments, context.idempotency_key))
        return verdict

    await deaths.run(durable(travelling(script, deaths), tools={"pay": ToolPolicy(reconcile=reconcile)}))
    happened = isinstance(verdict, Completed)
    assert deaths.passed == ["pay Lyon"] * (1 if happened else 2)
    assert get_texts(script.asked[-1])[-1] == ("tool-return", b"receipt" if happened else b"\xff\x00Lyon")
    [(call_id, tool, arguments, key)] = asked
    assert (call_id, tool, arguments) == ("c1", "pay", {"city": "Lyon"})
    assert key.startswith("hf-")


async def test_a_call_in_doubt_can_wait_for_a_person() -> None:
    deaths = CrashSimulator("pay Lyon")
    script = ScriptedModel([call("c1", "pay", city="Lyon"), call("c2", "look", city="Faro")], "done")
    agent = durable(travelling(script, deaths), tools=PURE | {"pay": ToolPolicy(in_doubt="park")})
    store = MemoryStore()
    with pytest.raises(RunParked, match="in doubt"):
        await deaths.run(agent, store=store)
    async with App([agent], store, worker=False) as app:
        await app.unpark(RUN, {"c1": "paid, it says"})
        await app.recover()
    assert [content for kind, content in get_texts(script.asked[-1]) if kind == "tool-return"] == [
        "paid, it says",
        "Faro is warm",
    ]
    assert deaths.passed.count("pay Lyon") == 1


@pytest.mark.parametrize("saves", [True, False], ids=["saved", "not saved"])
@pytest.mark.parametrize("deadly", ["pay Lyon", "pay Faro"])
async def test_a_call_that_waited_for_its_turn_is_only_in_doubt_once_it_was_begun(deadly: str, saves: bool) -> None:
    deaths = CrashSimulator(deadly, saves=saves)
    script = ScriptedModel([call(f"c{n}", "pay", city=city) for n, city in enumerate(("Lyon", "Faro", "Bari"))], "done")
    agent = travelling(script, deaths)
    with agent.parallel_tool_call_execution_mode("sequential"):
        await deaths.run(durable(agent))
    assert deaths.passed == ["pay Lyon", "pay Faro", "pay Bari"]
    unknown = [
        "Unknown outcome" in str(content) for kind, content in get_texts(script.asked[-1]) if kind == "tool-return"
    ]
    assert unknown == [deadly == "pay Lyon", deadly == "pay Faro", False]


@pytest.mark.parametrize("policy", ["defer", "report", "park"])
async def test_a_tool_that_a_deploy_removed_meets_the_policy(policy: Any) -> None:
    deaths = CrashSimulator("look Lyon")
    script = ScriptedModel([call("c1", "look", city="Lyon")], "done")
    before = durable(travelling(script, deaths), tools=PURE)
    after = durable(Agent(script.model, name="traveller"), missing_tools=policy)
    if policy == "report":
        assert (await deaths.run(before, then=after)).output == "done"
        assert "look" in str(get_texts(script.asked[-1])[-1])
    else:
        with pytest.raises(MissingDefinition if policy == "defer" else RunParked, match="look"):
            await deaths.run(before, then=after)


async def test_what_a_stopped_call_makes_of_the_cancel_is_not_its_outcome() -> None:
    begun, calls = asyncio.Event(), list[str]()
    script = ScriptedModel(
        [call("1", "send")], lambda messages: ModelResponse(parts=[TextPart(str(get_texts(messages)))])
    )
    agent: Agent[None, Any] = Agent(script.model, name="sender")

    @agent.tool_plain
    async def send() -> str:
        calls.append("send")
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise ModelRetry("the connection was lost") from None
        return "sent"

    first, sender = SimulatedHost(), durable(agent)
    running = asyncio.create_task(first.executor.run(sender, "go", run_id=RUN))
    await begun.wait()
    await first.executor.shutdown(timedelta(0))
    with pytest.raises(Shutdown):
        await running
    result = await SimulatedHost(first.inner).resume(sender, RUN)
    assert "Unknown outcome" in result.output
    assert calls == ["send"]


async def test_the_step_and_the_id_of_pydantic_ais_run_continue_over_a_resume() -> None:
    script = ScriptedModel([call("c1", "note")], [call("c2", "note")], [call("c3", "note")], "done")
    deaths, seen = CrashSimulator("step 2", "step 3"), list[tuple[int, str | None]]()
    agent: Agent[None, str] = Agent(script.model, name="noting")

    @agent.tool(metadata={"effect": "pure"})
    async def note(ctx: RunContext[None]) -> str:
        seen.append((ctx.run_step, ctx.run_id))
        await deaths.reach(f"step {ctx.run_step}")
        return "noted"

    await deaths.run(durable(agent))
    assert [step for step, _ in seen] == [1, 2, 2, 3, 3]
    assert len({run_id for _, run_id in seen}) == 1
    assert None not in {run_id for _, run_id in seen}
