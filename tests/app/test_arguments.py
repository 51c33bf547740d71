"""Arguments of the wrong type are refused where they are given, with what to give instead."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Bounds, Phase, RunWaiting, tool
from holdfast.checkpoint.errors import RunNotClaimable
from holdfast.core import Tool
from holdfast.core.errors import DefinitionError, InvalidRunId
from holdfast.fanout import FanoutSettings
from holdfast.runtime.operations.bulk_actions import BULK_ACTIONS
from holdfast.stores.memory import MemoryStore
from holdfast.workflows import background_tools

MODEL = ScriptedModel("never")
AGENT = Agent(name="a", model=MODEL)


def look(city: str) -> str:
    return city


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (Bounds, "max_steps", "5"),
        (Bounds, "max_steps", 1.5),
        (Bounds, "max_steps", 0),
        (Bounds, "max_repeats", None),
        (Bounds, "max_runtime", 5),
        (Bounds, "max_runtime", timedelta(0)),
        (Phase, "name", 7),
        (Phase, "prompt", 7),
        (Phase, "bounds", 5),
        (Agent, "name", 7),
        (Agent, "model", "openai:gpt-5"),
        (Agent, "instructions", None),
        (Agent, "tools", look),
        (Agent, "tools", [7]),
        (Agent, "phases", ["one"]),
        (Agent, "bounds", 5),
        (Agent, "agent_id", 7),
        (Agent, "model_tier", None),
        (Agent, "compact", "yes"),
        (Agent, "missing_tools", "ignore"),
        (Tool, "function", "look"),
        (Tool, "name", 7),
        (Tool, "description", 7),
        (Tool, "effect", 7),
        (Tool, "reconcile", "yes"),
        (Tool, "in_doubt", "ask"),
        (Tool, "on_error", True),
        (FanoutSettings, "max_concurrency", "4"),
        (FanoutSettings, "max_per_provider", 0),
        (FanoutSettings, "max_per_provider", {"openai": "4"}),
        (FanoutSettings, "bounds", 5),
        (FanoutSettings, "fanout_id", 7),
        (FanoutSettings, "retry_failed", "no"),
        (FanoutSettings, "shutdown_timeout", 30),
        (FanoutSettings, "handle_signals", None),
    ],
)
def test_a_definition_refuses_a_value_of_the_wrong_type(make: Any, field: str, value: Any) -> None:
    required: dict[Any, dict[str, Any]] = {
        Agent: {"name": "a", "model": MODEL}, Phase: {"name": "p"}, Tool: {"function": look}
    }  # fmt: skip
    with pytest.raises(DefinitionError, match=r"is |tool"):
        make(**{**required.get(make, {}), field: value})


def test_a_decorated_tool_refuses_an_option_of_the_wrong_type() -> None:
    wrong: Any = "sometimes"
    with pytest.raises(DefinitionError, match="on_error is 'sometimes': give one of report, raise"):
        tool(on_error=wrong)(look)


@pytest.mark.parametrize("agents", [AGENT, None, 7, "a", ["a"], [Agent], [None], [look]])
def test_an_app_refuses_what_is_no_agent(agents: Any) -> None:
    with pytest.raises(DefinitionError, match=r"give a list of agents|is not an agent"):
        App(agents, None)


def test_an_app_refuses_what_provides_no_tools() -> None:
    wrong: Any = look  # a tool belongs to an agent
    with pytest.raises(DefinitionError, match="tools is"):
        App([AGENT], None, tools=[wrong])


@pytest.mark.parametrize("store", [7, ["sqlite:"], object(), MemoryStore])
def test_an_app_refuses_what_is_no_store(store: Any) -> None:
    with pytest.raises(DefinitionError, match="store is"):
        App([AGENT], store)


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("agent", 7, DefinitionError),
        ("agent", None, DefinitionError),
        ("run_id", 7, InvalidRunId),
        ("run_id", "a b", DefinitionError),
        ("caller_id", 7, DefinitionError),
        ("channel_id", None, DefinitionError),
        ("labels", ["a"], DefinitionError),
        ("labels", {"a": 1}, DefinitionError),
        ("labels", {1: "a"}, DefinitionError),
        ("inputs", 7, DefinitionError),
        ("prompt", 7, DefinitionError),
    ],
)
async def test_run_and_submit_refuse_an_argument_of_the_wrong_type(
    argument: str, value: Any, error: type[Exception]
) -> None:
    arguments: dict[str, Any] = {"agent": AGENT, "prompt": "go", argument: value}
    async with App([AGENT], MemoryStore()) as app:
        calls: list[Callable[..., Any]] = [app.run, app.submit]
        for call in calls:
            with pytest.raises(error):
                await call(**arguments)
    assert not MODEL.requests


async def test_a_timeout_that_is_no_duration_and_an_unknown_on_cancel_are_refused() -> None:
    wrong: Any = 5
    async with App([AGENT], MemoryStore()) as app:
        with pytest.raises(DefinitionError, match="timeout is 5: give a timedelta"):
            await app.shutdown(timeout=wrong)
        with pytest.raises(DefinitionError, match="on_cancel is 5: give one of"):
            await app.run(AGENT, "go", on_cancel=wrong)
        with pytest.raises(DefinitionError, match="on_cancel is 5: give one of"):
            await app.resume("r", on_cancel=wrong)


async def test_an_agent_with_the_name_of_another_one_of_the_app_is_refused() -> None:
    async with App([AGENT], MemoryStore()) as app:
        with pytest.raises(DefinitionError, match="another agent of this App is named 'a'"):
            await app.run(Agent(name="a", model=MODEL), "go")


async def test_an_id_of_a_message_has_at_most_200_characters() -> None:
    async with App([AGENT], MemoryStore(), worker=False) as app:
        await app.submit(AGENT, "go", run_id="r")
        assert await app.send("r", "hello", id="x" * 200) == "x" * 200
        for wrong in ("", "x" * 201, "answer:1", "turn:1"):
            with pytest.raises(DefinitionError, match="the id is"):
                await app.send("r", "hello", id=wrong)


def test_background_tools_without_agents_are_refused() -> None:
    with pytest.raises(DefinitionError, match="got no agents"):
        background_tools([])


async def test_a_run_that_waits_for_an_answer_is_not_resumed_by_hand() -> None:
    @tool(approval=True)
    async def pay() -> None: ...

    agent = Agent(name="payer", model=ScriptedModel(tool_reply(call("c", "pay")), "done"), tools=[pay])
    async with App([agent], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run(agent, "go", run_id="r")
        with pytest.raises(RunNotClaimable):
            await app.requeue("r")
        assert (await app.get("r")).reason == "approval of pay (c)"


def test_actions_that_cannot_be_taken_back_are_confirmed() -> None:
    assert {name for name, action in BULK_ACTIONS.items() if action.is_destructive} == {"cancel", "remove"}
