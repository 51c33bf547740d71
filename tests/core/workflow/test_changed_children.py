"""A workflow that starts a run with other arguments in each attempt is parked. It does not start one run for each."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import NOT_EXECUTED, App
from holdfast.errors import RunParked
from holdfast.stores.memory import MemoryStore
from holdfast.workflows import Restart, Workflow, first, run_agent, start, wait_for, workflow

TIMEOUT = 60


@workflow
async def leaf(text: str) -> str:
    return f"{text} {await wait_for('go')}"


@workflow
async def echo(text: str) -> str:
    return text


@workflow
async def relay(text: str) -> str:
    """Wait for another run, so that the run that waits for this one is unwound."""
    return await (await start(echo, text)).result()


async def start_and_wait(text: str) -> str:
    return await (await start(leaf, text)).result()


async def run_as_step(text: str) -> str:
    return str(await run_agent(leaf, text))


MAKE = pytest.mark.parametrize("make", [start_and_wait, run_as_step])
Make = Callable[[str], Awaitable[str]]


def make_flow(function: Callable[[], Awaitable[Any]]) -> Workflow[Any]:
    return Workflow(function, name="flow")


async def list_children(app: App) -> list[str]:
    return [run.run_id for run in (await app.list(parent="r")).runs]


async def wait_until_waiting(app: App, run_id: str, topic: str = "") -> None:
    async for event in app.watch(status=["waiting"]):
        if event.run_id == run_id and any(topic in each for each in (await app.get(run_id)).wake_on):
            return


async def park(app: App, texts: list[str]) -> str:
    """Let the run wait for its child, change what it starts, and end the child. Return the reason."""
    await app.submit("flow", run_id="r")
    await wait_until_waiting(app, "r")
    [child] = await list_children(app)
    await wait_until_waiting(app, child)
    texts[:] = ["b"]
    await app.signal(child, "go", "went")
    with pytest.raises(RunParked, match="changed arguments") as caught:
        await app.result("r", through_waits=True)
    assert await list_children(app) == [child]
    return str(caught.value)


@MAKE
async def test_a_run_is_not_started_again_with_changed_arguments(make: Make) -> None:
    texts = ["a"]

    async def flow() -> str:
        return await make(texts[0])

    async with asyncio.timeout(TIMEOUT), App([make_flow(flow), leaf], MemoryStore()) as app:
        reason = await park(app, texts)
        assert '"prompt":"a"' in reason
        assert '"prompt":"b"' in reason
        [asked] = [each for each in (await app.get("r")).pending_calls if each.state == "in doubt"]
        assert asked.arguments["prompt"] == "b"  # a person is asked about this call alone
        texts[:] = ["a"]  # the code is corrected
        await app.unpark("r")
        assert (await app.result("r")).output == "a went"
        assert len(await list_children(app)) == 1


async def test_a_person_gives_the_run_that_the_changed_call_means() -> None:
    texts = ["a"]

    async def flow() -> str:
        return await start_and_wait(texts[0])

    async with asyncio.timeout(TIMEOUT), App([make_flow(flow), leaf], MemoryStore()) as app:
        await park(app, texts)
        [child] = await list_children(app)
        [call] = [each for each in (await app.get("r")).pending_calls if each.tool == "start leaf"]
        await app.unpark("r", {call.call_id: {"run_id": child, "agent": "leaf"}})
        assert (await app.result("r")).output == "a went"
        assert await list_children(app) == [child]


async def test_a_person_lets_the_changed_call_start_another_run() -> None:
    texts = ["a"]

    async def flow() -> str:
        return await run_as_step(texts[0])

    async with asyncio.timeout(TIMEOUT), App([make_flow(flow), leaf], MemoryStore()) as app:
        await park(app, texts)
        [call] = [each for each in (await app.get("r")).pending_calls if each.arguments == {"prompt": "b"}]
        await app.unpark("r", {call.call_id: NOT_EXECUTED})
        await wait_until_waiting(app, "r")
        assert len(await list_children(app)) == 2


@pytest.mark.parametrize("kind", ["start", "run_agent"])
async def test_further_children_are_started_once_the_recorded_ones_are_met(kind: str) -> None:
    """In a loop, in parallel branches, in a race, after a deploy that adds some, and in the next life."""
    names, attempts = ["a", "b"], 0

    async def make(text: str) -> str:
        return await (await start(relay, text)).result() if kind == "start" else str(await run_agent(relay, text))

    async def branch(name: str) -> str:
        await run_agent(echo, name)
        return await make(name)

    async def flow(life: int) -> Any:
        nonlocal attempts
        attempts += 1
        made = [await make(f"{number}") for number in range(2)]
        made += await asyncio.gather(*(branch(name) for name in names))
        if life == 1:
            await wait_for("deployed")
            return Restart(2)
        winner, _ = await first(one=make("one"), other=wait_for("never"))
        return [*made, winner, await make("last")]

    async with asyncio.timeout(TIMEOUT), App([Workflow(flow, name="flow"), relay, echo], MemoryStore()) as app:
        running = asyncio.create_task(app.run("flow", inputs={"life": 1}, run_id="r", through_waits=True))
        await wait_until_waiting(app, "r", "deployed")
        names[:] = ["new", "b", "a"]  # the new call of the first branch waits for those of the others
        await app.signal("r", "deployed", None)
        assert (await running).output == ["0", "1", "new", "b", "a", "one", "last"]
        relays = [run for run in (await app.list(parent="r", limit=200)).runs if run.agent == "relay"]
        assert len(relays) == len(["0", "1", "a", "b", "new"]) + len(["0", "1", "new", "b", "a", "one", "last"])
    assert attempts > len(relays) // 2  # it was called again with recorded calls


async def test_a_fork_starts_the_children_after_it_with_other_arguments() -> None:
    async def flow() -> str:
        return str(await run_agent(echo, f"{await run_agent(echo, 'a')} b"))

    async with asyncio.timeout(TIMEOUT), App([make_flow(flow), echo], MemoryStore()) as app:
        result = await app.run("flow", run_id="r")
        [call] = result.messages[1].tool_calls
        assert (await app.result(await app.fork("r", 1, results={call.id: "z"}))).output == "z b"
