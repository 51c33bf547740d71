"""Tools that ask for order: the calls of a reply are made one after the other, and a crash leaves one in doubt."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Approve, RunWaiting, ToolResult, tool
from holdfast.core.agents.tool import Tool
from holdfast.core.errors import DefinitionError
from holdfast.stores.memory import MemoryStore

PROGRAM = Path(__file__).with_name("sequential_process.py")


def run_process(store: str, ledger: Path, fatal: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), store, str(ledger), fatal]
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def test_the_calls_of_a_reply_are_made_in_order_if_one_tool_asks_for_it() -> None:
    seen: list[str] = []

    async def act(name: str) -> str:
        seen.append(f"{name} begins")
        for _ in range(3):
            await asyncio.sleep(0)
        seen.append(f"{name} ends")
        return name

    tools = [tool(effect="pure", name="plain")(act), tool(effect="pure", name="ordered", sequential=True)(act)]
    batch = tool_reply(call("1", "plain", name="a"), call("2", "ordered", name="b"), call("3", "plain", name="c"))
    model = ScriptedModel(batch, tool_reply(call("1", "plain", name="x"), call("2", "plain", name="y")), "done")
    async with App([Agent(name="a", model=model, tools=tools)], None) as app:
        result = await app.run("a", "go")
    assert [message.content for message in result.messages if isinstance(message, ToolResult)] == [*"abcxy"]
    assert seen[:6] == ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]
    assert seen[6:8] == ["x begins", "y begins"]


@pytest.mark.parametrize("fatal", ["b", "d", "e"])
def test_a_kill_leaves_the_call_in_progress_in_doubt_and_no_other(
    tmp_path: Path, durable_store_url: str, fatal: str
) -> None:
    ledger = tmp_path / "ledger"
    assert run_process(durable_store_url, ledger, fatal).returncode == -9
    ended = run_process(durable_store_url, ledger)
    assert ended.stdout.strip() == " | ".join("unknown" if name == fatal else name for name in "abcde"), ended.stderr
    lines = ledger.read_text().splitlines()
    assert [line for line in lines if line.startswith("pay")] == ["pay b", "pay d", "pay e"]


async def test_a_call_that_waits_lets_those_after_it_wait_too() -> None:
    paid: list[str] = []

    @tool(approval=lambda arguments: arguments["name"] == "b", sequential=True)
    async def pay(name: str) -> str:
        paid.append(name)
        return name

    batch = tool_reply(call("1", "pay", name="a"), call("2", "pay", name="b"), call("3", "pay", name="c"))
    async with App([Agent(name="a", model=ScriptedModel(batch, "done"), tools=[pay])], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        assert paid == ["a"]
        await app.answer("r", "2", Approve())
        assert (await app.run("a", "go", run_id="r")).output == "done"
    assert paid == ["a", "b", "c"]


def test_a_wrong_value_is_refused() -> None:
    async def act() -> None: ...

    with pytest.raises(DefinitionError, match="tool act: sequential is 'yes': give True or False"):
        Tool(act, sequential="yes")  # type: ignore[arg-type]  # a mistake on purpose
