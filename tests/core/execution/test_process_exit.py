"""`sys.exit` and KeyboardInterrupt in a tool: all runs are interrupted, and only the one that did it gets a strike."""

import asyncio
import sys
from collections.abc import Sequence
from datetime import timedelta

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.record import RunStatus
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.tool import Tool, ToolSchema, tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.run.messages import Message, Reply


def exit_in_thread() -> None:
    sys.exit(3)


async def exit_in_loop() -> None:
    sys.exit(3)


def interrupt_in_thread() -> None:
    raise KeyboardInterrupt


async def interrupt_in_loop() -> None:
    raise KeyboardInterrupt


@tool(effect="pure")
async def look() -> str:
    return "seen"


class WaitingModel:
    """Waits indefinitely, and says that it does."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


def run_beside_another(culprit: Agent) -> dict[str, tuple[RunStatus, int]]:
    """Execute a run of `culprit` until it ends the process, beside a run that waits. Return status and strikes."""
    hosts: list[SimulatedHost] = []

    async def main() -> None:
        host = SimulatedHost(shutdown_timeout=timedelta(0))
        hosts.append(host)
        model = WaitingModel()
        beside = asyncio.create_task(host.executor.run(Agent(name="b", model=model), "go", run_id="innocent"))
        await model.asked.wait()
        try:
            await host.executor.run(culprit, "go", run_id="culprit")
        finally:
            await asyncio.gather(beside, return_exceptions=True)

    with pytest.raises((SystemExit, KeyboardInterrupt)):
        asyncio.run(main())
    records = asyncio.run(hosts[0].list_records())
    return {record.run_id: (record.status, record.strikes) for record in records}


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "in a batch"])
@pytest.mark.parametrize("function", [exit_in_thread, exit_in_loop, interrupt_in_thread, interrupt_in_loop])
def test_a_tool_that_ends_the_process_interrupts_all_runs(function: object, beside: bool) -> None:
    end = Tool(function, name="end")  # type: ignore[arg-type]
    batch = tool_reply(call("1", "look"), call("2", "end")) if beside else tool_reply(call("2", "end"))
    culprit = Agent(name="a", model=ScriptedModel(batch), tools=[end, look])
    assert run_beside_another(culprit) == {
        "culprit": (RunStatus.INTERRUPTED, 1),
        "innocent": (RunStatus.INTERRUPTED, 0),
    }


def test_a_child_run_that_ends_the_process_interrupts_its_parent_too() -> None:
    child = Agent(name="c", model=ScriptedModel(tool_reply(call("2", "end"))), tools=[Tool(exit_in_loop, name="end")])

    @tool(effect="idempotent")
    async def delegate() -> str:
        return str((await current_call().run(child, "go")).output)

    found = run_beside_another(
        Agent(name="a", model=ScriptedModel(tool_reply(call("1", "delegate"))), tools=[delegate])
    )
    assert found.pop("innocent") == (RunStatus.INTERRUPTED, 0)
    assert len(found) == 2
    assert set(found.values()) == {(RunStatus.INTERRUPTED, 1)}
