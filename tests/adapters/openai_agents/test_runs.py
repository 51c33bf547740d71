"""Agents of the SDK as they are: structured output, agents as tools, conversations, and what is read of their runs."""

import asyncio
import copy
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    Model,
    ModelBehaviorError,
    ModelProvider,
    ModelResponse,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Tool,
    Usage,
    function_tool,
    input_guardrail,
    output_guardrail,
)
from agents.mcp import MCPServerStdio
from agents.testing import assistant_message
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel
from tests.adapters.openai_agents.scripted_model import ScriptedModel, call
from tests.adapters.openai_agents.test_resume import get_outputs
from tests.failed_runs import fails_with
from typing_extensions import TypedDict

from holdfast import App, Bounds, current_call, tool
from holdfast.adapters.openai_agents import ToolPolicy, durable
from holdfast.adapters.openai_agents.message_codec import CODEC, Input, make_output, make_reply
from holdfast.adapters.readable import Thinking, read_message
from holdfast.core.errors import DefinitionError, RepeatedToolCalls, RunFailed
from holdfast.core.observer import AttemptControl, ObservedEvent, ReplyReceived
from holdfast.core.run.messages import Reply, ToolCall, ToolResult, User


class Trip(BaseModel):
    cities: list[str]


class Visit(TypedDict):
    city: str


@function_tool
async def look(city: str) -> str:
    """Look at a city."""
    return f"{city} is warm"


async def test_a_structured_output_is_the_same_when_it_is_read_from_the_store(tmp_path: Path) -> None:
    agent = durable(Agent(name="a", model=ScriptedModel('{"cities": ["Lyon"]}'), output_type=Trip))
    async with App([agent], f"sqlite:{tmp_path / 'runs.db'}") as app:
        assert (await app.run("a", "go", run_id="r")).output == Trip(cities=["Lyon"])
        assert (await app.result("r")).output == Trip(cities=["Lyon"])


async def test_an_agent_as_a_tool_is_one_call_and_its_usage_counts() -> None:
    inner = Agent(name="inner", model=ScriptedModel([call("i1", "look", city="Nice")], "inner is done"), tools=[look])
    model = ScriptedModel([call("c1", "ask_inner", input="?")], "done")
    agent = Agent(name="a", model=model, tools=[inner.as_tool("ask_inner", "Asks.")])
    async with App([durable(agent)], "memory:") as app:
        result = await app.run("a", "go")
    assert get_outputs(model.requests[1]) == {"c1": "inner is done"}
    assert (result.steps, result.usage.tool_calls) == (2, 1)
    assert (result.usage.requests, result.usage.input_tokens, result.usage.output_tokens) == (4, 40, 12)


async def test_an_output_type_may_be_a_typed_dict() -> None:
    agent = durable(Agent(name="a", model=ScriptedModel('{"city": "Lyon"}'), output_type=Visit))
    async with App([agent], "memory:") as app:
        assert (await app.run("a", "go")).output == {"city": "Lyon"}


async def test_the_default_prompt_cache_key_is_that_of_the_run() -> None:
    keys: list[Any] = []

    class Cached(ScriptedModel):
        def _supports_default_prompt_cache_key(self) -> bool:
            return True

        async def get_response(self, *args: Any, **options: Any) -> Any:
            keys.append((options["model_settings"].extra_args or {}).get("prompt_cache_key"))
            return await super().get_response(*args, **options)

    model = Cached([call("c1", "look", city="Nice")], "done")
    async with App([durable(Agent(name="a", model=model, tools=[look]))], "memory:") as app:
        await app.run("a", "go")
        await app.run("a", "go")
    first, again, other, _ = keys
    assert first == again is not None
    assert other not in (first, None)


async def test_an_observer_learns_which_model_has_streamed_its_reply() -> None:
    class Observer:
        kinds = frozenset({ReplyReceived})

        def __init__(self) -> None:
            self.models: list[str] = []

        def begin(self, attempt: AttemptControl, max_runtime: timedelta | None) -> "Observer":
            return self

        def observe(self, event: ObservedEvent) -> None:
            assert isinstance(event, ReplyReceived)
            self.models.append(event.model)

    observer = Observer()
    agent = durable(Agent(name="a", model=ScriptedModel("hello")), stream=True)
    async with App([agent], "memory:", critic=observer) as app:
        await app.run("a", "go")
    assert observer.models == ["scripted-model"]


@pytest.mark.parametrize("kind", ["run", "agent"])
async def test_hooks_see_the_agents_and_tools_of_their_author_and_may_replace_tools(kind: str) -> None:
    seen: list[Any] = []

    @function_tool
    async def look(city: str) -> str:
        return f"{current_call().call_id} is warm"

    async def on_start(context: Any, agent: Agent[Any]) -> None:
        seen.append(agent)
        agent.tools = [look]

    async def on_tool(context: Any, agent: Agent[Any], tool: Tool, *result: Any) -> None:
        seen.extend((agent, tool))

    async def on_handoff(context: Any, one: Agent[Any], other: Agent[Any]) -> None:
        seen.extend((one, other))

    hooks: Any = RunHooks[Any]() if kind == "run" else AgentHooks[Any]()
    hooks.on_agent_start = hooks.on_start = on_start
    hooks.on_tool_start, hooks.on_handoff = on_tool, on_handoff
    guide = Agent(name="guide", model=ScriptedModel("warm"), hooks=hooks if kind == "agent" else None)
    model = ScriptedModel([call("c1", "look", city="Lyon")], [call("c2", "transfer_to_guide")])
    desk = Agent(name="desk", model=model, handoffs=[guide], hooks=hooks if kind == "agent" else None)
    async with App([durable(desk, hooks=hooks if kind == "run" else None)], "memory:") as app:
        assert (await app.run("desk", "go")).output == "warm"
    assert get_outputs(model.requests[1]) == {"c1": "c1 is warm"}
    assert model.tools[0][0] is look
    handoff = [desk, guide] if kind == "run" else [guide, desk]
    expected = [desk, desk, look, *handoff, guide]
    assert len(seen) == len(expected)
    assert all(one is other for one, other in zip(seen, expected, strict=True)), seen


NESTED = ["[" * 5000, "[" * 5000 + "]" * 5000, "[" * 501 + "]" * 501]


@pytest.mark.parametrize("value", ["NaN", '"half \\ud83d"', '"half \ud83d"', *NESTED], ids=range(6))
async def test_arguments_that_no_store_can_keep_are_reported_to_the_model(value: str) -> None:
    called: list[Any] = []

    @function_tool(strict_mode=False)
    async def look(city: Any) -> str:
        called.append(city)
        return "warm"

    asked = ResponseFunctionToolCall(name="look", arguments=f'{{"city": {value}}}', call_id="c1", type="function_call")
    model = ScriptedModel([asked], "done")
    agent = durable(Agent(name="a", model=model, tools=[look]), tools={"look": ToolPolicy(approval=True)})
    async with App([agent], "memory:") as app:
        assert (await app.run("a", "go")).output == "done"
    text = get_outputs(model.requests[1])["c1"]
    assert text.startswith("The arguments cannot be read: ")
    assert called == []


async def test_half_a_surrogate_pair_in_a_reply_is_replaced() -> None:
    async with App([durable(Agent(name="a", model=ScriptedModel("half \ud83d")))], "memory:") as app:
        assert (await app.run("a", "go", run_id="r")).output == "half \ufffd"
        assert (await app.get("r")).output == "half \ufffd"


async def test_a_copy_of_a_durable_agent_runs() -> None:
    agent = durable(Agent(name="a", model=ScriptedModel([call("c1", "look", city="Nice")], "done"), tools=[look]))
    async with App([copy.deepcopy(agent)], "memory:") as app:
        assert (await app.run("a", "go")).output == "done"


async def test_a_run_config_may_be_a_dict() -> None:
    agent = Agent(name="a", model=ScriptedModel([call("c1", "look", city="Nice")], "done"), tools=[look])
    seen: list[Any] = []

    def keep(data: Any) -> Any:
        seen.append(data.agent.name)
        return data.model_data

    async with App([durable(agent, run_config={"call_model_input_filter": keep})], "memory:") as app:
        await app.run("a", "go")
    assert seen == ["a", "a"]
    with pytest.raises(DefinitionError, match="run_config"):
        durable(agent, run_config={"modell": "gpt-5"})


async def test_a_list_of_input_items_is_the_history() -> None:
    model = ScriptedModel("done")
    items: list[Any] = [
        {"role": "user", "content": "My name is Ann."},
        {"role": "assistant", "content": "Hello Ann."},
        {"role": "user", "content": "Who am I?"},
    ]
    async with App([durable(Agent(name="a", model=model))], "memory:") as app:
        await app.run("a", items)
        await app.run("a", ["Look: ", {"type": "input_image", "image_url": "https://example.com/a.png"}])
    assert model.requests[0] == items
    assert [item["role"] for item in model.requests[1]] == ["user"]


async def test_a_tool_that_is_added_while_the_run_executes_is_a_recorded_call() -> None:
    @function_tool
    async def learn() -> str:
        agent.tools.append(look)
        return "learned"

    model = ScriptedModel([call("c1", "learn")], [call("c2", "look", city="Nice")], "done")
    agent = Agent(name="a", model=model, tools=[learn])
    async with App([durable(agent)], "memory:") as app:
        result = await app.run("a", "go")
    assert result.usage.tool_calls == 2
    assert get_outputs(model.requests[2]) == {"c1": "learned", "c2": "Nice is warm"}


async def test_a_tool_sees_the_agent_that_its_author_has_made() -> None:
    seen, asked = list[Any](), list[Any]()

    def is_enabled(context: Any, agent: Any) -> bool:
        asked.append(agent)
        return True

    @function_tool(is_enabled=is_enabled)
    async def whoami(context: ToolContext[Any]) -> str:
        seen.append(context.agent)
        return "you"

    clerk = Agent(name="clerk", model=ScriptedModel([call("c2", "whoami")], "done"), tools=[whoami])
    desk = Agent(name="desk", model=ScriptedModel([call("c1", "transfer_to_clerk")]), handoffs=[clerk])
    async with App([durable(desk)], "memory:") as app:
        assert (await app.run("desk", "go")).output == "done"
    assert len(seen) == 1
    assert asked
    assert all(each is clerk for each in [*seen, *asked])


async def test_the_cost_of_an_agent_as_a_tool_counts() -> None:
    models = {
        "large": ScriptedModel([call("c1", "ask_inner", input="?")], "done"),
        "small": ScriptedModel([call("i1", "look", city="Nice")], "inner is done"),
    }

    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Model:
            return models[model_name or ""]

    inner = Agent(name="inner", model="small", tools=[look])
    agent = durable(
        Agent(name="a", model="large", tools=[inner.as_tool("ask_inner", "Asks.")]),
        run_config=RunConfig(model_provider=Provider()),
        cost=lambda model, usage: {"large": 1.0, "small": 0.25}[model] * usage.requests,
    )
    async with App([agent], "memory:") as app:
        result = await app.run("a", "go")
    assert (result.usage.requests, result.usage.cost_usd) == (4, 2.5)


async def test_dynamic_instructions_see_the_context() -> None:
    def instruct(context: RunContextWrapper[Any], agent: Agent[Any]) -> str:
        return f"{agent.name} works for {context.context}"

    model = ScriptedModel([call("c1", "look", city="Lyon")], "done")
    agent = durable(Agent(name="a", model=model, tools=[look], instructions=instruct), context="ann")
    async with App([agent], "memory:") as app:
        await app.run("a", "go")
    assert model.instructions == ["a works for ann"] * 2


@pytest.mark.parametrize("kind", ["input", "output"])
async def test_a_guardrail_fails_the_run(kind: str) -> None:
    @input_guardrail
    async def no_input(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=kind == "input")

    @output_guardrail
    async def no_output(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=kind == "output")

    agent = Agent(name="a", model=ScriptedModel("done"), input_guardrails=[no_input], output_guardrails=[no_output])
    error = InputGuardrailTripwireTriggered if kind == "input" else OutputGuardrailTripwireTriggered
    async with App([durable(agent)], "memory:") as app:
        with fails_with(error):
            await app.run("a", "go", run_id="r")
        with pytest.raises(RunFailed, match="ripwire"):
            await app.result("r")


async def test_a_tool_that_the_model_invents_fails_the_run_as_in_the_sdk() -> None:
    agent = Agent(name="a", model=ScriptedModel([call("c1", "invented")]), tools=[look])
    async with App([durable(agent)], "memory:") as app:
        with fails_with(ModelBehaviorError, match="invented"):
            await app.run("a", "go")


async def test_a_tool_that_takes_too_long_has_a_result() -> None:
    @function_tool(timeout=0.01)
    async def rest() -> str:
        await asyncio.Event().wait()
        raise AssertionError

    model = ScriptedModel([call("c1", "rest")], "done")
    async with App([durable(Agent(name="a", model=model, tools=[rest]))], "memory:") as app:
        result = await app.run("a", "go")
    assert result.usage.tool_calls == 1, "the result is recorded"
    assert "timed out" in get_outputs(model.requests[1])["c1"]


async def test_tools_of_an_mcp_server_are_recorded_calls(tmp_path: Path) -> None:
    server = Path(__file__).parents[1] / "mcp_server.py"
    (tmp_path / "hold").touch()
    effects: dict[str, Any] = {}

    def find(given: Any) -> ToolPolicy:
        effects[given.name] = given.mcp_annotations
        return ToolPolicy("pure" if given.mcp_annotations.read_only_hint else "once")

    model = ScriptedModel([call("c1", "look", city="Lyon")], "done")
    async with MCPServerStdio({"command": sys.executable, "args": [str(server), str(tmp_path)]}) as mcp:
        agent = durable(Agent(name="a", model=model, mcp_servers=[mcp]), tools=find)
        async with App([agent], "memory:") as app:
            result = await app.run("a", "go")
    assert result.usage.tool_calls == 1
    assert list(effects) == ["look"]
    assert "Lyon is warm" in str(get_outputs(model.requests[1])["c1"])


async def test_tools_of_holdfast_join_those_of_the_agent() -> None:
    class Provider:
        async def tools(self, info: Any) -> Any:
            return [greet]

    @tool(effect="pure")
    async def greet(name: str) -> str:
        return f"hello {name}"

    model = ScriptedModel([call("c1", "greet", name="ann"), call("c2", "greet", nam="ann")], "done")
    async with App([durable(Agent(name="a", model=model))], "memory:", tools=[Provider()]) as app:
        await app.run("a", "go")
    outputs = get_outputs(model.requests[1])
    assert outputs["c1"] == "hello ann"
    assert outputs["c2"].startswith("The arguments do not fit")


async def test_a_conversation_continues_with_its_history() -> None:
    class Echo(ScriptedModel):
        def _find_output(self, items: list[Any]) -> list[Any]:
            return [assistant_message(f"heard {items[-1]['content']}")]

    model = Echo()
    async with App([durable(Agent(name="a", model=model))], "memory:") as app:
        chat = app.conversation("a", "ann")
        assert (await chat.send("one")).output == "heard one"
        assert (await chat.send("two")).output == "heard two"
    assert [len(request) for request in model.requests] == [1, 3]


def test_stored_messages_are_readable_without_the_sdk() -> None:
    response = make_reply("a", _make_response(assistant_message("hm"), call("c1", "look", city="Lyon")), [])
    assert read_message("openai_agents", CODEC.encode(response)) == [
        Reply(text="hm", tool_calls=[ToolCall(id="c1", name="look", arguments={"city": "Lyon"})])
    ]
    thought = {"type": "reasoning", "id": "1", "summary": [{"type": "summary_text", "text": "Is Lyon warm?"}]}
    reply = msgspec.json.encode({"item": "reply", "output": [thought, {"type": "reasoning", "summary": []}]})
    assert read_message("openai_agents", reply) == [Thinking("Is Lyon warm?"), Reply(text="")]
    assert read_message("openai_agents", CODEC.encode(Input(items=[{"role": "user", "content": "go"}]))) == [User("go")]
    output = make_output("c1", "look", {"a": 1})
    assert read_message("openai_agents", CODEC.encode(output)) == [
        ToolResult(call_id="c1", tool="look", content={"a": 1})
    ]


def _make_response(*output: Any) -> Any:
    return ModelResponse(output=list(output), usage=Usage(), response_id=None)


async def test_a_prompt_of_content_parts_reaches_the_model() -> None:
    model = ScriptedModel("done")
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"}
    async with App([durable(Agent(name="a", model=model))], "memory:") as app:
        await app.run("a", ["What is this?", picture])
    assert model.requests[0] == [
        {"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, picture]}
    ]


async def test_the_same_call_is_repeated_as_often_as_the_bound_says() -> None:
    made: list[str] = []

    @function_tool
    async def look(city: str) -> str:
        made.append(city)
        return "warm"

    model = ScriptedModel(*([call(f"c{number}", "look", city="Lyon")] for number in range(9)))
    agent = durable(Agent(name="a", model=model, tools=[look]), bounds=Bounds(max_repeats=2))
    async with App([agent], "memory:") as app:
        with fails_with(RepeatedToolCalls):
            await app.run("a", "go")
    assert made == ["Lyon", "Lyon"]
