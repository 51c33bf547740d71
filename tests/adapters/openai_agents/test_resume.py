"""Runs that die and go on: nothing that is recorded happens again, and the model sees what it would have seen."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    function_tool,
    handoff,
    input_guardrail,
)
from agents.extensions.handoff_filters import remove_all_tools
from tests.adapters.crash_simulator import RUN, CrashSimulator
from tests.adapters.openai_agents.scripted_model import ScriptedModel, call
from tests.simulated_host import SimulatedHost

from holdfast import RunInfo
from holdfast.adapters.openai_agents import ToolPolicy, durable
from holdfast.core.agents.calls import Completed
from holdfast.core.errors import DefinitionError, MissingDefinition, RunParked
from holdfast.stores.memory import MemoryStore


def make_tools(deaths: CrashSimulator) -> list[Any]:
    @function_tool
    async def look(city: str) -> str:
        await deaths.reach(f"look {city}", results=1 if city == "Bonn" else 0)
        return f"{city} is warm"

    @function_tool
    async def pay(city: str) -> dict[str, int]:
        await deaths.reach(f"pay {city}")
        return {city: 5}

    return [look, pay]


def get_outputs(items: list[Any]) -> dict[str, Any]:
    """What the model read as the result of each call."""
    return {item["call_id"]: item["output"] for item in items if item.get("type") == "function_call_output"}


async def test_a_crash_within_a_batch_repeats_neither_the_model_call_nor_finished_calls() -> None:
    deaths = CrashSimulator("look Bonn")
    model = ScriptedModel([call("c1", "pay", city="Lyon"), call("c2", "look", city="Bonn")], "done")
    agent = Agent(name="traveller", model=model, tools=make_tools(deaths))
    result = await deaths.run(durable(agent, tools={"look": ToolPolicy("pure")}))
    assert result.output == "done"
    assert sorted(deaths.passed) == ["look Bonn", "look Bonn", "pay Lyon"]
    assert len(model.requests) == 2
    assert get_outputs(model.requests[1]) == {"c1": "{'Lyon': 5}", "c2": "Bonn is warm"}
    assert (result.usage.requests, result.usage.input_tokens, result.usage.tool_calls) == (2, 20, 2)


async def test_a_once_call_in_doubt_is_reported_and_not_made_again() -> None:
    deaths = CrashSimulator("pay Lyon")
    model = ScriptedModel([call("c1", "pay", city="Lyon")], "done")
    agent = Agent(name="traveller", model=model, tools=make_tools(deaths))
    await deaths.run(durable(agent))
    assert deaths.passed == ["pay Lyon"]
    assert get_outputs(model.requests[1])["c1"].startswith("Unknown outcome")


async def test_a_call_in_doubt_is_reconciled() -> None:
    async def find(context: Any) -> Completed:
        return Completed({"Lyon": 7})

    deaths = CrashSimulator("pay Lyon")
    model = ScriptedModel([call("c1", "pay", city="Lyon")], "done")
    agent = Agent(name="traveller", model=model, tools=make_tools(deaths))
    await deaths.run(durable(agent, tools={"pay": ToolPolicy(reconcile=find)}))
    assert get_outputs(model.requests[1]) == {"c1": "{'Lyon': 7}"}


@pytest.mark.parametrize(("policy", "error"), [("defer", MissingDefinition), ("park", RunParked)])
async def test_a_deploy_that_removes_a_tool(policy: Any, error: type[Exception]) -> None:
    deaths = CrashSimulator("look Lyon")
    tools = make_tools(deaths)
    model = ScriptedModel([call("c1", "look", city="Lyon")], "done")
    before = durable(Agent(name="traveller", model=model, tools=tools), tools={"look": ToolPolicy("pure")})
    after = durable(Agent(name="traveller", model=model, tools=tools[1:]), missing_tools=policy)
    with pytest.raises(error, match="look"):
        await deaths.run(before, then=after)


async def test_a_removed_tool_is_reported_to_the_model() -> None:
    deaths = CrashSimulator("look Lyon")
    tools = make_tools(deaths)
    model = ScriptedModel([call("c1", "look", city="Lyon")], "done")
    before = durable(Agent(name="traveller", model=model, tools=tools), tools={"look": ToolPolicy("pure")})
    after = durable(Agent(name="traveller", model=model, tools=tools[1:]), missing_tools="report")
    assert (await deaths.run(before, then=after)).output == "done"
    assert "look" in get_outputs(model.requests[-1])["c1"]


async def test_the_context_is_made_again_and_left() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def connect(info: RunInfo) -> AsyncIterator[str]:
        log.append(f"enter {info.run_id}")
        yield f"context {len(log)}"
        log.append("leave")

    @function_tool
    async def tell(context: RunContextWrapper[str]) -> str:
        await deaths.reach("tell")
        return context.context

    deaths = CrashSimulator("tell")
    model = ScriptedModel([call("c1", "tell")], "done")
    await deaths.run(
        durable(Agent(name="a", model=model, tools=[tell]), context=connect, tools={"tell": ToolPolicy("pure")})
    )
    assert [each for each in log if each != "leave"] == [f"enter {RUN}", f"enter {RUN}"]
    assert log[-1] == "leave"
    assert get_outputs(model.requests[-1])["c1"].startswith("context ")


async def test_the_active_agent_survives_and_sees_what_its_filter_left() -> None:
    deaths = CrashSimulator("look Nice")
    tools = make_tools(deaths)
    clerk_model = ScriptedModel([call("c3", "look", city="Nice")], [call("c4", "pay", city="Nice")], "done")
    clerk = Agent(name="clerk", model=clerk_model, tools=tools)
    desk_model = ScriptedModel([call("c1", "pay", city="Lyon")], [call("c2", "transfer_to_clerk")])
    desk = Agent(name="desk", model=desk_model, tools=tools, handoffs=[handoff(clerk, input_filter=remove_all_tools)])
    result = await deaths.run(durable(desk, tools={"look": ToolPolicy("pure")}))
    assert result.output == "done"
    assert (len(desk_model.requests), len(clerk_model.requests)) == (2, 3)
    assert [list(get_outputs(request)) for request in clerk_model.requests] == [[], ["c3"], ["c3", "c4"]]
    assert deaths.passed.count("pay Lyon") == 1


async def test_an_agent_that_was_handed_over_to_and_has_not_replied_is_the_active_one() -> None:
    class Model(ScriptedModel):
        async def get_response(self, *args: Any, **options: Any) -> Any:
            await deaths.reach("clerk is asked")
            return await super().get_response(*args, **options)

    deaths = CrashSimulator("clerk is asked")
    clerk = Agent(name="clerk", model=Model("the clerk is done"))
    desk_model = ScriptedModel([call("c1", "transfer_to_clerk")])
    desk = Agent(name="desk", model=desk_model, handoffs=[clerk])
    assert (await deaths.run(durable(desk))).output == "the clerk is done"
    assert len(desk_model.requests) == 1
    assert deaths.passed == ["clerk is asked", "clerk is asked"]


async def test_a_handoff_callback_whose_outcome_is_unknown_is_not_called_again() -> None:
    async def on_handoff(context: RunContextWrapper[Any]) -> None:
        await deaths.reach("handoff")

    deaths = CrashSimulator("handoff")
    clerk = Agent(name="clerk", model=ScriptedModel("the clerk is done"))
    model = ScriptedModel([call("c1", "transfer_to_clerk")])
    desk = Agent(name="desk", model=model, handoffs=[handoff(clerk, on_handoff=on_handoff)])
    assert (await deaths.run(durable(desk))).output == "the clerk is done"
    assert deaths.passed == ["handoff"]


async def test_input_guardrails_run_until_the_first_turn_is_recorded() -> None:
    checked: list[Any] = []

    @input_guardrail(run_in_parallel=False)
    async def check(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        checked.append(given)
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    deaths = CrashSimulator("look Lyon", "look Nice")
    model = ScriptedModel([call("c1", "look", city="Lyon")], [call("c2", "look", city="Nice")], "done")
    agent = Agent(name="a", model=model, tools=make_tools(deaths), input_guardrails=[check])
    await deaths.run(durable(agent, tools={"look": ToolPolicy("pure")}))
    assert len(checked) == 2


async def test_hooks_see_the_usage_of_the_whole_run() -> None:
    seen: list[int] = []

    class Hooks(RunHooks[Any]):
        async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
            seen.append(context.usage.requests)

    deaths = CrashSimulator("look Lyon", "look Nice")
    model = ScriptedModel([call("c1", "look", city="Lyon")], [call("c2", "look", city="Nice")], "done")
    agent = Agent(name="a", model=model, tools=make_tools(deaths))
    await deaths.run(durable(agent, tools={"look": ToolPolicy("pure")}, hooks=Hooks()))
    assert seen == [3]


async def test_a_message_after_the_answer_is_answered() -> None:
    store = MemoryStore()
    host = SimulatedHost(store)

    @function_tool
    async def look(city: str) -> str:
        execution = host.executor.get_attempt(RUN)
        assert execution is not None
        execution.nudge("and Faro?")
        return "warm"

    class Model(ScriptedModel):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> Any:
            response = await super().get_response(system_instructions, input, *args, **options)
            if len(self.requests) == 2:
                execution = host.executor.get_attempt(RUN)
                assert execution is not None
                execution.nudge("and Bari?")
            return response

    model = Model([call("c1", "look", city="Lyon")], "done")
    await host.executor.run(durable(Agent(name="a", model=model, tools=[look])), "go", run_id=RUN)
    users = [[item["content"] for item in request if item.get("role") == "user"] for request in model.requests]
    assert users == [["go"], ["go", "and Faro?"], ["go", "and Faro?", "and Bari?"]]


async def test_a_compacted_conversation_is_what_a_resumed_run_continues() -> None:
    async def keep_last(items: Any) -> Any:
        return items[-2:] if len(items) > 4 else None

    deaths = CrashSimulator("look Bari")
    cities = ["Lyon", "Nice", "Bari"]
    steps = [[call(f"c{number}", "look", city=city)] for number, city in enumerate(cities)]

    class Model(ScriptedModel):
        def _find_output(self, items: list[Any]) -> list[Any]:
            last = items[-1].get("call_id", "c-1")
            return super()._find_output([{"call_id": f"c{number}"} for number in range(int(last[1:]) + 1)])

    model = Model(*steps, "done")
    agent = Agent(name="a", model=model, tools=make_tools(deaths))
    assert (await deaths.run(durable(agent, tools={"look": ToolPolicy("pure")}, compact=keep_last))).output == "done"
    assert [len(request) for request in model.requests] == [1, 3, 2, 4]


async def test_the_input_filter_of_the_user_works_on_every_request() -> None:
    def add_date(data: Any) -> Any:
        data.model_data.input.append({"role": "developer", "content": "today"})
        return data.model_data

    deaths = CrashSimulator("look Lyon")
    model = ScriptedModel([call("c1", "look", city="Lyon")], "done")
    agent = Agent(name="a", model=model, tools=make_tools(deaths))
    config = RunConfig(call_model_input_filter=add_date)
    await deaths.run(durable(agent, tools={"look": ToolPolicy("pure")}, run_config=config))
    assert [str(request).count("today") for request in model.requests] == [1, 1]


def test_what_cannot_be_recorded_is_refused() -> None:
    from agents import LocalShellTool

    async def run_command(request: Any) -> str:
        return ""

    with pytest.raises(DefinitionError, match="LocalShellTool cannot be recorded"):
        durable(Agent(name="a", tools=[LocalShellTool(executor=run_command)]))
    with pytest.raises(DefinitionError, match="give RunHooks here, and AgentHooks to the agent"):
        durable(Agent(name="a"), hooks=AgentHooks())  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="two agents are named 'a'"):
        durable(Agent(name="a", handoffs=[Agent(name="a")]))
    with pytest.raises(DefinitionError, match="give a ToolPolicy"):
        durable(Agent(name="a"), tools={"look": "maybe"})  # type: ignore[dict-item]
