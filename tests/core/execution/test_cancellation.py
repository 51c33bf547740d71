"""A cancel at any moment leaves the store settled, and never half-written."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from tests.failed_runs import ends_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import REMOVE_DONE, SimulatedHost

from holdfast.checkpoint.codec import decode_run
from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import Agent, Phase
from holdfast.core.agents.tool import tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.errors import RunKilled, RunParked, Shutdown
from holdfast.core.run.messages import NATIVE_CODEC
from holdfast.core.run.result import Result


async def _turns(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@tool(effect="pure")
async def look() -> str:
    await _turns(2)
    return "seen"


def a_bit_of_everything(sent: Counter[str]) -> Agent:
    """Once and pure calls side by side, a child, two phases: every part of a run, and waits in all of them."""

    @tool
    async def send() -> str:
        await _turns(1)
        sent[current_call().idempotency_key] += 1
        await _turns(1)
        return "sent"

    child = Agent(name="child", model=ScriptedModel(tool_reply(call("c", "send")), "from the child"), tools=[send])

    @tool(effect="idempotent")
    async def ask() -> str:
        result = await current_call().run(child, "sub")
        return str(result.output)

    batch = tool_reply(call("1", "look"), call("2", "send"), call("3", "ask"))
    return Agent(
        name="parent",
        tools=[look, send, ask],
        phases=[
            Phase(name="one", model=ScriptedModel(batch, "x")),
            Phase(name="two", model=ScriptedModel(tool_reply(call("1", "send")), "y")),
        ],
    )


Run = asyncio.Task[Result]
Stop = Callable[[Run, SimulatedHost], None]
Check = Callable[[Run, SimulatedHost, Counter[str]], Awaitable[None]]


async def every_moment(stop: Stop, check: Check) -> None:
    """Stop a run at its first moment, its second, and so on until it ends by itself."""
    for moment in range(10_000):
        host = SimulatedHost(settings=CheckpointSettings(retention=REMOVE_DONE), loop_turns=2)
        await host.inner.open()
        sent: Counter[str] = Counter()
        run = asyncio.create_task(host.executor.run(a_bit_of_everything(sent), "go", run_id="p", on_cancel="cancel"))
        await _turns(moment)
        if run.done():
            assert (await run).output == "y"
            assert await host.list_records() == []
            assert sorted(sent.values()) == [1, 1, 1]
            assert moment > 50
            return
        stop(run, host)
        await asyncio.wait([run])
        assert host.executor.active_run_ids == frozenset()
        await check(run, host, sent)
    raise AssertionError("the run never ended")


async def all_settled(host: SimulatedHost) -> dict[str, RunStatus]:
    """No run is left as if a worker drove it, and every run that is left can be read."""
    statuses = await host.get_statuses()
    assert RunStatus.RUNNING not in statuses.values()
    for run_id in statuses:
        decode_run(await host.inner.load(run_id), NATIVE_CODEC)
    return statuses


async def goes_on(host: SimulatedHost, sent: Counter[str]) -> None:
    """Another process takes the run to its end, and no message is sent twice."""
    result = await SimulatedHost(host.inner).resume(a_bit_of_everything(sent), "p")
    assert (result.output, result.steps) == ("y", 4)
    assert set(sent.values()) <= {1}
    assert await host.list_records() == []


async def test_a_cancel_by_the_caller_at_any_moment_leaves_nothing_running() -> None:
    def cancel(run: Run, host: SimulatedHost) -> None:
        run.cancel()

    async def check(run: Run, host: SimulatedHost, sent: Counter[str]) -> None:
        assert run.cancelled()
        assert set((await all_settled(host)).values()) <= {RunStatus.CANCELLED, RunStatus.DONE}

    await every_moment(cancel, check)


async def test_several_cancels_in_a_row_are_no_worse_than_one() -> None:
    def cancel_thrice(run: Run, host: SimulatedHost) -> None:
        loop = asyncio.get_running_loop()
        run.cancel()
        loop.call_soon(run.cancel)
        loop.call_soon(lambda: loop.call_soon(run.cancel))

    async def check(run: Run, host: SimulatedHost, sent: Counter[str]) -> None:
        assert run.cancelled()
        await all_settled(host)

    await every_moment(cancel_thrice, check)


async def test_a_shutdown_at_any_moment_leaves_a_run_that_continues_and_sends_nothing_twice() -> None:
    def shut_down(run: Run, host: SimulatedHost) -> None:
        for run_id in host.executor.active_run_ids:
            execution = host.executor.get_attempt(run_id)
            assert execution is not None
            execution.stop(Shutdown("now"))

    async def check(run: Run, host: SimulatedHost, sent: Counter[str]) -> None:
        if "p" in await all_settled(host):
            assert isinstance(run.exception(), Shutdown)
            await goes_on(host, sent)

    await every_moment(shut_down, check)


async def test_a_death_at_any_moment_leaves_a_run_that_continues_and_sends_nothing_twice() -> None:
    """What is left of the dead process even continues, like a process that was only cut off from the store."""

    def die(run: Run, host: SimulatedHost) -> None:
        host.store.die()

    async def check(run: Run, host: SimulatedHost, sent: Counter[str]) -> None:
        await host.crash()
        run.exception()
        # One that is done was about to be removed.
        if (await host.get_statuses()).get("p", RunStatus.DONE) is not RunStatus.DONE:
            await goes_on(host, sent)

    await every_moment(die, check)


@pytest.mark.parametrize(
    ("error", "expected"), [(RunKilled("enough"), RunStatus.FAILED), (RunParked("approval"), RunStatus.PARKED)]
)
async def test_a_stop_at_any_moment_settles_the_run_as_it_was_stopped(error: Exception, expected: RunStatus) -> None:
    def stop(run: Run, host: SimulatedHost) -> None:
        execution = host.executor.get_attempt("p")
        if execution is not None:
            execution.stop(error)

    async def check(run: Run, host: SimulatedHost, sent: Counter[str]) -> None:
        statuses = await all_settled(host)
        assert statuses.get("p", expected) is expected
        if expected is RunStatus.PARKED:  # a child is not failed because its parent waits for a person
            assert set(statuses.values()) <= {RunStatus.PARKED, RunStatus.INTERRUPTED, RunStatus.DONE}

    await every_moment(stop, check)


async def test_a_write_in_progress_is_seen_through_before_a_cancel_comes_into_force() -> None:
    host = SimulatedHost(settings=CheckpointSettings(retention=REMOVE_DONE))
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def gate(method: str) -> None:
        if method == "create":
            reached.set()
            await go_on.wait()

    host.store.before = gate
    run = asyncio.create_task(
        host.executor.run(Agent(name="a", model=ScriptedModel("never")), "go", run_id="r", on_cancel="cancel")
    )
    await reached.wait()
    run.cancel()
    await _turns(20)
    assert not run.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await host.get_statuses() == {"r": RunStatus.CANCELLED}


@pytest.mark.parametrize("error", [RunKilled("enough"), Shutdown("now")])
async def test_a_stop_during_a_write_that_then_fails_comes_into_force(error: Exception) -> None:
    before = SimulatedHost()
    with pytest.raises(Shutdown):
        await before.executor.run(Agent(name="a", model=ScriptedModel(Shutdown("a deploy"))), "go", run_id="r")
    host = SimulatedHost(before.inner)
    reached, go_on = asyncio.Event(), asyncio.Event()
    looked: list[str] = []

    async def gate(method: str) -> None:
        if method == "append":
            reached.set()
            await go_on.wait()
            host.store.before = None
            raise StoreError("no room")

    @tool(effect="pure")
    async def look() -> str:
        looked.append("seen")
        return "seen"

    host.store.before = gate
    # It was resumed and has not finished a step: what it intends to do is saved first.
    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "look")), "never"), tools=[look])
    run = asyncio.create_task(host.resume(agent, "r"))
    await reached.wait()
    execution = host.executor.get_attempt("r")
    assert execution is not None
    execution.stop(error)
    go_on.set()
    with ends_with(error):
        await run
    assert looked == []
    assert await host.get_statuses() == ({"r": RunStatus.INTERRUPTED} if isinstance(error, Shutdown) else {})
