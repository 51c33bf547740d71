"""When a workflow or a part of it fails, its recorded steps are undone, the last one first."""

import contextlib
from typing import Any

import pytest
from tests.simulated_host import SimulatedHost

from holdfast import App, tool
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.errors import RunError
from holdfast.core.run.info import RunInfo
from holdfast.stores.memory import MemoryStore
from holdfast.workflows import StepFailed, saga, workflow

DONE: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    DONE.clear()


async def release(call: ToolContext, result: str) -> None:
    DONE.append(f"release {call.arguments['seat']} {result}")


@tool(undo=release)
async def reserve(seat: str) -> str:
    DONE.append(f"reserve {seat}")
    return f"ticket {seat}"


@tool
async def refuse() -> None:
    raise ValueError("no")


async def test_a_failed_workflow_undoes_its_steps_in_reverse() -> None:
    @workflow
    async def flow() -> None:
        await reserve("a")
        await reserve("b")
        await refuse()

    async with App([flow], MemoryStore()) as app:
        with pytest.raises(StepFailed, match="ValueError: no"):
            await app.run(flow, run_id="r")
        assert DONE == ["reserve a", "reserve b", "release b ticket b", "release a ticket a"]
        assert (await app.get("r")).error is not None


async def test_a_saga_undoes_its_own_steps_and_the_function_continues() -> None:
    @workflow
    async def flow() -> str:
        await reserve("kept")
        try:
            async with saga():
                await reserve("a")
                await refuse()
        except StepFailed:
            await reserve("instead")
        return "went on"

    async with App([flow], MemoryStore()) as app:
        assert (await app.run(flow)).output == "went on"
    assert DONE == ["reserve kept", "reserve a", "release a ticket a", "reserve instead"]


async def test_an_undo_that_fails_is_recorded_and_the_others_are_made(caplog: pytest.LogCaptureFixture) -> None:
    async def never(call: ToolContext, result: Any) -> None:
        raise RunError("cannot be undone")

    @tool(undo=never)
    async def burn() -> None:
        DONE.append("burn")

    @workflow
    async def flow() -> None:
        await reserve("a")
        await burn()
        raise LookupError("the end")

    async with App([flow], MemoryStore()) as app:
        with pytest.raises(LookupError):
            await app.run(flow, run_id="r")
        assert (await app.get("r")).failed_calls == 1
    assert DONE == ["reserve a", "burn", "release a ticket a"]
    assert "was not undone" in caplog.text


async def test_a_crash_between_two_undos_repeats_none_and_the_workflow_stays_failed() -> None:
    host = SimulatedHost()
    fails = [True]

    async def release_and_die(call: ToolContext, result: str) -> None:
        DONE.append(f"release {result}")
        if result == "b" and fails[0]:
            fails[0] = False
            await host.crash()

    @tool(undo=release_and_die)
    async def take(name: str) -> str:
        DONE.append(f"take {name}")
        return name

    @workflow
    async def flow() -> str:
        for name in ("a", "b", "c"):
            await take(name)
        if fails[0]:
            raise LookupError("only in the first attempt")
        await take("d")
        return "done"

    store = host.inner
    with contextlib.suppress(RunError, LookupError):
        await host.executor.start(flow, RunInfo.create(flow, "", run_id="r"))
    # The undo of b was not recorded: it is repeated. That of c was, and d is never taken.
    DONE.append("crash")
    with pytest.raises(StepFailed, match="only in the first attempt"):
        await SimulatedHost(store).resume(flow, "r")
    before, after = DONE[: DONE.index("crash")], DONE[DONE.index("crash") + 1 :]
    assert before[:5] == ["take a", "take b", "take c", "release c", "release b"]
    assert after == ["release b", "release a"]
