"""Agents of pydantic-ai as agents of holdfast: what a run gives when nothing goes wrong."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry, RunContext, ToolOutput, ToolReturn, UsageLimits
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset, WrapperToolset
from pydantic_ai.usage import RequestUsage
from tests.adapters.scripted_model import ScriptedModel, call, get_texts
from tests.failed_runs import fails_with

from holdfast import App, Bounds, Phase, RunInfo, current_call, tool
from holdfast.adapters.pydantic_ai import ToolPolicy, durable
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import iter_runs
from holdfast.core.agents.tool import Tool
from holdfast.core.errors import DefinitionError, RepeatedToolCalls, RunCancelled, RunParked, StepsExceeded
from holdfast.core.run.messages import Usage


class Weather(BaseModel):
    city: str
    degrees: float


class Nothing(BaseModel):
    why: str


@dataclass
class Service:
    run_id: str
    asked: int = 0


async def test_an_agent_runs_on_every_store(store_url: str) -> None:
    script = ScriptedModel([call("c1", "look", city="Lyon"), call("c2", "look", city="Faro")], "both are warm")
    agent = Agent(script.model, name="weather", instructions="Be brief.")

    @agent.tool_plain
    def look(city: str) -> str:
        return f"{city} is warm"

    weather = durable(agent)
    async with App([weather], store_url) as app:
        result = await app.run("weather", "how is it?")
        queued = await app.submit("weather", "how is it?")
        report = await app.recover()
        again = await app.result(queued)
    assert result.output == again.output == "both are warm"
    assert (result.steps, result.usage.requests, result.usage.tool_calls) == (2, 2, 2)
    assert again.usage == result.usage
    assert not report.reasons
    assert get_texts(script.asked[1]) == [
        ("user-prompt", "how is it?"),
        ("tool-call", {"city": "Lyon"}),
        ("tool-call", {"city": "Faro"}),
        ("tool-return", "Lyon is warm"),
        ("tool-return", "Faro is warm"),
    ]
    assert script.offered[0].instructions == "Be brief."


async def test_structured_output_is_kept_with_its_type(store_url: str) -> None:
    script = ScriptedModel([call("c1", "final_result", city="Lyon", degrees=21.5)])
    agent = durable(Agent(script.model, name="weather", output_type=Weather))
    async with App([agent], store_url) as app:
        run_id = await app.submit(agent, "how is it?")
        await app.recover()
        result = await app.result(run_id)
    assert result.output == Weather(city="Lyon", degrees=21.5)


@pytest.mark.parametrize(("name", "output"), [("good", Weather(city="Lyon", degrees=1)), ("bad", Nothing(why="no"))])
async def test_of_several_output_types_the_right_one_comes_back(name: str, output: BaseModel) -> None:
    kinds = [ToolOutput(Weather, name="good"), ToolOutput(Nothing, name="bad"), DeferredToolRequests]
    script = ScriptedModel([call("c1", name, **output.model_dump())])
    agent = durable(Agent(script.model, name="weather", output_type=kinds))
    async with App([agent], "memory:") as app:
        run_id = await app.submit(agent, "how is it?")
        await app.recover()
        assert (await app.result(run_id)).output == output


async def test_dependencies_are_made_for_each_run() -> None:
    script = ScriptedModel([call("c1", "ask")], "asked")
    agent = Agent(script.model, name="asker", deps_type=Service)
    seen: list[str] = []

    @agent.tool
    async def ask(ctx: RunContext[Service]) -> str:
        seen.append(f"{ctx.deps.run_id} {ctx.prompt}")
        return "yes"

    @asynccontextmanager
    async def connected(info: RunInfo) -> AsyncIterator[Service]:
        yield Service(info.run_id)
        seen.append(f"{info.run_id} closed")

    async def made(info: RunInfo) -> Service:
        return Service(f"made for {info.run_id}")

    given = Service("given")
    for number, deps in enumerate((connected, made, lambda info: Service("plain"), given)):
        async with App([durable(agent, deps=deps)], "memory:") as app:
            await app.run("asker", "go", run_id=f"r{number}")
    assert seen == ["r0 go", "r0 closed", "made for r1 go", "plain go", "given go"]


async def test_a_run_can_begin_with_messages_from_before() -> None:
    script = ScriptedModel("unused", "the second answer")
    earlier: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("first?")]),
        ModelResponse(parts=[TextPart("the first answer")]),
    ]
    agent = durable(Agent(script.model, name="chat"), history=lambda info: earlier)
    async with App([agent], "memory:") as app:
        result = await app.run(agent, "second?")
    assert result.output == "the second answer"
    assert get_texts(script.asked[0]) == [
        ("user-prompt", "first?"),
        ("text", "the first answer"),
        ("user-prompt", "second?"),
    ]
    assert get_texts(list(result.messages)) == [*get_texts(script.asked[0]), ("text", "the second answer")]


async def test_bounds_hold() -> None:
    endless = ScriptedModel(*([[call(f"c{n}", "look", n=n)] for n in range(9)]))
    agent = Agent(endless.model, name="endless")

    @agent.tool_plain
    def look(n: int) -> int:
        return n

    async with App([durable(agent, bounds=Bounds(max_steps=4))], "memory:") as app:
        with fails_with(StepsExceeded):
            await app.run("endless", "go")
    assert len(endless.asked) == 4

    stuck = ScriptedModel(*([[call(f"c{n}", "look", n=1)] for n in range(9)]))
    async with App([durable(agent, bounds=Bounds(max_repeats=2))], "memory:") as app:
        with agent.override(model=stuck.model), fails_with(RepeatedToolCalls):
            await app.run("endless", "go")
    assert len(stuck.asked) == 3


async def test_more_than_fifty_requests_are_fine_unless_a_limit_says_otherwise() -> None:
    turns = ScriptedModel(*([[call(f"c{n}", "look", n=n)] for n in range(60)]), "done")
    agent = Agent(turns.model, name="long")

    @agent.tool_plain
    def look(n: int) -> int:
        return n

    async with App([durable(agent)], "memory:") as app:
        assert (await app.run("long", "go")).steps == 61
    async with App([durable(agent, usage_limits=UsageLimits(request_limit=10))], "memory:") as app:
        with fails_with(UsageLimitExceeded):
            await app.run("long", "go")


async def test_retries_and_output_validation_are_pydantic_ais_own() -> None:
    script = ScriptedModel(
        [call("c1", "pick", n="no number")], [call("c2", "pick", n=1)], [call("c3", "pick", n=2)], "no", "yes"
    )
    agent = Agent(script.model, name="picky", retries=2)

    @agent.tool_plain
    def pick(n: int) -> int:
        if n == 1:
            raise ModelRetry("not one")
        return n

    @agent.output_validator
    def accept(output: str) -> str:
        if output == "no":
            raise ModelRetry("say yes")
        return output

    async with App([durable(agent)], "memory:") as app:
        result = await app.run("picky", "go")
    assert (result.output, result.steps) == ("yes", 5)
    kinds = [kind for kind, _ in get_texts(list(result.messages))]
    assert kinds == [
        "user-prompt", "tool-call", "tool-return", "tool-call", "tool-return", "tool-call", "tool-return", "text",
        "retry-feedback", "text",
    ]  # fmt: skip


async def test_history_processors_work_and_the_journal_keeps_everything() -> None:
    shown: list[int] = []

    def last_three(messages: list[ModelMessage]) -> list[ModelMessage]:
        shown.append(len(messages))
        return messages[-3:]

    agent = Agent(TestModel(), name="forgetful", capabilities=[ProcessHistory(last_three)])
    calls = iter(range(1, 5))

    def reply(messages: list[ModelMessage]) -> ModelResponse:
        number = next(calls)
        return ModelResponse(parts=[call(f"c{number}", "look", n=number)] if number < 4 else [TextPart("done")])

    @agent.tool_plain
    def look(n: int) -> int:
        return n

    with agent.override(model=ScriptedModel(reply, reply, reply, reply).model):
        async with App([durable(agent)], "memory:") as app:
            result = await app.run("forgetful", "go")
    assert shown == [1, 3, 5, 5]  # pydantic-ai itself continues with what the processor left
    assert [kind for kind, _ in get_texts(list(result.messages))] == [
        "user-prompt", *(["tool-call", "tool-return"] * 3), "text",
    ]  # fmt: skip


async def test_what_a_tool_puts_into_the_queue_is_kept() -> None:
    script = ScriptedModel([call("c1", "look")], "done")
    agent: Agent[None, str] = Agent(script.model, name="queue")

    @agent.tool
    def look(ctx: RunContext[None]) -> str:
        ctx.enqueue("by the way")
        return "seen"

    async with App([durable(agent)], "memory:") as app:
        result = await app.run("queue", "go")
    assert ("user-prompt", "by the way") in get_texts(script.asked[1])
    assert get_texts(list(result.messages)) == [*get_texts(script.asked[1]), ("text", "done")]


async def test_a_tool_return_with_content_and_metadata_is_kept_once() -> None:
    script = ScriptedModel([call("c1", "look", n=1), call("c2", "look", n=2)], "done")
    agent = Agent(script.model, name="content")

    @agent.tool_plain
    def look(n: int) -> ToolReturn:
        return ToolReturn(return_value=n, content=f"picture {n}", metadata={"n": n})

    async with App([durable(agent)], "memory:") as app:
        result = await app.run("content", "go")
    kept = get_texts(list(result.messages))
    assert sorted(map(str, kept)) == sorted(map(str, [*get_texts(script.asked[1]), ("text", "done")]))


async def test_extra_tools_can_be_called() -> None:
    script = ScriptedModel([call("c1", "double", n=2), call("c2", "double", n="two"), call("c3", "fail")], "done")

    @tool(effect="pure")
    def double(n: int) -> int:
        return 2 * n

    @tool
    async def fail() -> str:
        raise LookupError("nothing there")

    class ExtraTools:
        async def tools(self, info: RunInfo) -> list[Tool]:
            return [double, fail]

    async with App([durable(Agent(script.model, name="own"))], "memory:", tools=[ExtraTools()]) as app:
        await app.run("own", "go")
    results = [content for kind, content in get_texts(script.asked[1]) if kind == "tool-return"]
    assert results[0] == 4
    assert "arguments do not fit" in str(results[1])
    assert results[2] == "LookupError: nothing there"


async def test_a_tool_starts_child_runs() -> None:
    child = durable(Agent(ScriptedModel("from below").model, name="child"))
    script = ScriptedModel([call("c1", "delegate")], "done")
    agent = Agent(script.model, name="parent")

    @agent.tool_plain
    async def delegate() -> str:
        result = await current_call().run(child, "go")
        return str(result.output)

    async with App([durable(agent, tools={"delegate": ToolPolicy("idempotent")}), child], "memory:") as app:
        result = await app.run("parent", "go")
    assert ("tool-return", "from below") in get_texts(script.asked[1])
    assert result.usage.requests == 3


async def test_a_run_is_parked_with_its_child_though_another_call_fails_before_that_one_is_over() -> None:
    child = durable(Agent(ScriptedModel(RunParked("approval", "please")).model, name="child"))
    agent = Agent(ScriptedModel([call("c1", "delegate"), call("c2", "breaks")], "never").model, name="parent")
    left = asyncio.Event()

    @agent.tool_plain
    async def delegate() -> str:
        try:
            return str((await current_call().run(child, "go")).output)
        finally:
            left.set()
            await asyncio.Event().wait()  # it tidies up, until it is stopped

    @agent.tool_plain
    async def breaks() -> str:
        await left.wait()
        raise ModelRetry("broken")

    async with App([durable(agent, tools={"delegate": ToolPolicy("idempotent")}), child], "memory:") as app:
        with pytest.raises(RunParked, match="please"):
            await app.run("parent", "go", run_id="p")
        assert app.store is not None
        assert {record.status async for record in iter_runs(app.store)} == {RunStatus.PARKED}


async def test_phases_have_prompts_and_instructions_of_their_own() -> None:
    script = ScriptedModel("found")
    agent = durable(Agent(script.model, name="phased"))
    phased = replace(
        agent,
        phases=[Phase(name="search", prompt="search for $prompt"), Phase(name="report", prompt="report $search")],
        instructions="Be brief.",
    )
    async with App([phased], "memory:") as app:
        result = await app.run("phased", "gold")
    assert [get_texts(messages) for messages in script.asked] == [
        [("user-prompt", "search for gold")],
        [("user-prompt", "report found")],
    ]
    assert (result.output, result.usage.requests) == ("found", 2)
    assert {info.instructions for info in script.offered} == {"Be brief."}


async def test_usage_and_cost_are_counted() -> None:
    def reply(*parts: Any) -> ModelResponse:
        used = RequestUsage(input_tokens=1000, output_tokens=100, output_reasoning_tokens=40, cost=Decimal("0.0125"))
        return ModelResponse(parts=parts, usage=used)

    agent = Agent(ScriptedModel(reply(call("c1", "look")), reply(TextPart("done"))).model, name="dear")

    @agent.tool_plain
    def look() -> str:
        return "seen"

    async with App([durable(agent)], "memory:") as app:
        result = await app.run("dear", "go")
    assert result.usage == Usage(
        input_tokens=2000, output_tokens=200, reasoning_tokens=80, requests=2, tool_calls=1, cost_usd=0.025
    )


def test_an_agent_needs_a_name_and_options_that_fit() -> None:
    async def reconcile(context: Any) -> Any: ...

    with pytest.raises(DefinitionError, match="no name"):
        durable(Agent(TestModel()))
    with pytest.raises(DefinitionError, match="give a ToolPolicy"):
        durable(Agent(TestModel()), name="x", tools={"send": "twice"})  # type: ignore[dict-item]
    with pytest.raises(DefinitionError, match="only a once tool"):
        ToolPolicy("pure", reconcile=reconcile)


async def test_toolsets_of_every_kind_are_called_through_the_journal() -> None:
    script = ScriptedModel([call("c1", "near_look", city="Lyon"), call("c2", "far_look", city="Faro")], "done")
    entered: list[str] = []

    class Connected(WrapperToolset[None]):
        """Stands for a toolset with a connection, such as an MCP server's."""

        async def __aenter__(self) -> "Connected":
            entered.append("in")
            return self

        async def __aexit__(self, *error: Any) -> None:
            entered.append("out")

    near: FunctionToolset[None] = FunctionToolset()
    far: FunctionToolset[None] = FunctionToolset(metadata={"effect": "pure"})

    @near.tool_plain(name="look")
    @far.tool_plain(name="look")
    def look(city: str) -> str:
        return f"{city} from {current_call().tool}"

    agent: Agent[None, str] = Agent(
        script.model, name="sets", toolsets=[near.prefixed("near"), Connected(far.prefixed("far"))]
    )
    async with App([durable(agent)], "memory:") as app:
        result = await app.run("sets", "go")
    returned = [content for kind, content in get_texts(list(result.messages)) if kind == "tool-return"]
    assert returned == ["Lyon from near_look", "Faro from far_look"]
    assert entered == ["in", "out"]


async def test_a_tool_cancels_the_run() -> None:
    script = ScriptedModel([call("c1", "stop")], "done")
    agent: Agent[None, str] = Agent(script.model, name="stopping")

    @agent.tool
    async def stop(ctx: RunContext[None]) -> str:
        ctx.cancel()
        await asyncio.sleep(0)
        return "not recorded"

    async with App([durable(agent)], "memory:") as app:
        with pytest.raises(RunCancelled):
            await app.run("stopping", "go", run_id="r")
        assert (await app.get("r")).status == "cancelled"
    assert len(script.asked) == 1


@pytest.mark.parametrize("arguments", ["[" * 5000, '{"city": ' + "[" * 501 + "]" * 501 + "}"], ids=range(2))
async def test_arguments_that_are_nested_too_deeply_are_reported_to_the_model(arguments: Any) -> None:
    called: list[Any] = []
    script = ScriptedModel([ToolCallPart("look", arguments, "c1")], "done")
    agent = Agent(script.model, name="deep")

    @agent.tool_plain
    def look(city: Any) -> str:
        called.append(city)
        return "warm"

    async with App([durable(agent, tools={"look": ToolPolicy(approval=True)})], "memory:") as app:
        assert (await app.run("deep", "go")).output == "done"
    assert "500 levels of nesting are the limit" in str(get_texts(script.asked[-1])[-1])
    assert called == []
