"""A redactor that matches ids, times and encoded data leaves the runs of every loop readable."""

from typing import Any

import pytest

from holdfast import App, Approve
from holdfast.config import CheckpointSettings
from holdfast.core.agents.calls import Effect
from holdfast.core.redaction import Redactor
from holdfast.core.run.status import RunStatus
from holdfast.testing.adapter_suite import AgentScript, ScriptedCall, ScriptedTool, import_driver

DRIVERS = ["native", "pydantic_ai", "openai_agents", "langgraph"]

SETTINGS = CheckpointSettings(redact=Redactor(patterns=[r"\d+"]))


@pytest.mark.parametrize("name", DRIVERS)
async def test_a_run_continues_after_an_approval_in_another_process(name: str, durable_store_url: str) -> None:
    driver = import_driver(f"tests.adapters.drivers.{name}:DRIVER")
    looked: list[str] = []

    async def look_up_2(city: str) -> str:
        looked.append(city)
        return f"{city} has plate 4711"

    tools = [
        ScriptedTool(name="look_up_2", function=look_up_2, effect=Effect.PURE),
        ScriptedTool(name="look_up_3", function=look_up_2, effect=Effect.ONCE, needs_approval=True),
    ]
    steps: Any = [
        [ScriptedCall("call-1", "look_up_2", "Bonn")],
        [ScriptedCall("call-2", "look_up_2", "Ulm"), ScriptedCall("call-3", "look_up_3", "Rome")],
        "done",
    ]
    agent = driver.make_agent(AgentScript(steps=steps, tools=tools, name="agent-77"))
    async with App([agent], durable_store_url, checkpoint=SETTINGS) as app:
        await app.submit("agent-77", "go", run_id="r")
        async for _ in app.watch(status=["waiting"]):
            break
        assert looked == ["Bonn", "Ulm"]
    async with App([agent], durable_store_url, checkpoint=SETTINGS) as app:
        [waiting] = await app.pending()
        assert (waiting.call_id.partition("@")[0], waiting.tool) == ("call-3", "look_up_3")
        await app.answer("r", waiting.call_id, Approve())
        assert driver.get_answer((await app.result("r", through_waits=True)).output) == "done"
        assert (await app.get("r")).status is RunStatus.DONE
    assert looked == ["Bonn", "Ulm", "Rome"]
