"""When a workflow is cancelled or fails, in whole or in part, its recorded steps are undone, the last one first."""

import asyncio
import contextlib
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.failed_runs import fails_with
from tests.simulated_host import SimulatedHost

from holdfast import App, Bounds, RunWaiting, tool, wait_for
from holdfast.checkpoint.record import RunStatus
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.errors import RunCancelled, RunError, RunParked, StepsExceeded, ToolFailed
from holdfast.core.run.info import RunInfo
from holdfast.core.workflow.definition import Workflow
from holdfast.core.workflow.undo import UNDO_TIMEOUT
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock
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
        with fails_with(StepFailed, match="ValueError: no"):
            await app.run(flow, run_id="r")
        assert DONE == ["reserve a", "reserve b", "release b ticket b", "release a ticket a"]
        assert (await app.get("r")).error is not None


@pytest.mark.parametrize("end", ["fail", "cancel"])
async def test_a_sync_undo_runs_in_a_thread_and_does_not_block_the_event_loop(end: str) -> None:
    is_undoing, may_end, begun = threading.Event(), threading.Event(), asyncio.Event()

    def undo(call: ToolContext, result: str) -> None:
        is_undoing.set()
        assert may_end.wait(30), "the event loop was blocked"
        DONE.append("undone")

    @tool(undo=undo)
    async def take() -> str:
        return "taken"

    @tool
    async def stop() -> None:
        begun.set()
        if end == "fail":
            raise ValueError("no")
        await asyncio.Event().wait()

    @workflow
    async def flow() -> None:
        await take()
        await stop()

    async with App([flow], MemoryStore()) as app:
        running = asyncio.create_task(app.run(flow, run_id="r"))
        await begun.wait()
        if end == "cancel":
            await app.cancel("r")
        assert await asyncio.to_thread(is_undoing.wait, 30)
        may_end.set()  # the event loop comes here while the undo runs
        with contextlib.suppress(RunCancelled, StepFailed, RunError):
            await running
        assert DONE == ["undone"]


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


async def test_a_saga_that_has_failed_fails_in_a_later_attempt_too() -> None:
    fails, caught = [True], list[str]()

    @workflow
    async def flow() -> None:
        try:
            async with saga():
                await reserve("a")
                if fails[0]:
                    raise LookupError("no seat")
        except (LookupError, StepFailed) as exc:
            caught.append(f"{type(exc).__name__}: {exc}")
        await wait_for("go")

    async with App([flow], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, run_id="r")
        assert caught == ["LookupError: no seat"]
        fails[0] = False
        await app.signal("r", "go")
        await app.result("r")
    assert DONE == ["reserve a", "release a ticket a"]
    assert len(caught) == 2
    assert "LookupError: no seat" in caught[1]


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
        with fails_with(LookupError):
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
    with fails_with(StepFailed, match="only in the first attempt"):
        await SimulatedHost(store).resume(flow, "r")
    before, after = DONE[: DONE.index("crash")], DONE[DONE.index("crash") + 1 :]
    assert before[:5] == ["take a", "take b", "take c", "release c", "release b"]
    assert after == ["release b", "release a"]


def make_hanging_flow(started: asyncio.Event) -> Workflow[None]:
    @tool
    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    @workflow
    async def flow() -> None:
        await reserve("a")
        await reserve("b")
        await hang()

    return flow


async def test_a_cancelled_workflow_undoes_its_steps_and_ends_cancelled() -> None:
    started = asyncio.Event()
    flow = make_hanging_flow(started)
    async with App([flow], MemoryStore()) as app:
        await app.submit(flow, run_id="r")
        await started.wait()
        await app.cancel("r")
        with pytest.raises(RunCancelled):
            await app.result("r")
        run = await app.get("r")
        assert run.status is RunStatus.CANCELLED
    assert DONE == ["reserve a", "reserve b", "release b ticket b", "release a ticket a"]


async def test_a_second_cancel_does_not_stop_the_undo() -> None:
    started, undoing, release_now = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def release_slowly(call: ToolContext, result: str) -> None:
        undoing.set()
        await release_now.wait()
        DONE.append(f"release {result}")

    @tool(undo=release_slowly)
    async def take(name: str) -> str:
        return name

    @tool
    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    @workflow
    async def flow() -> None:
        await take("a")
        await hang()

    executor = SimulatedHost().executor
    running = asyncio.create_task(executor.start(flow, RunInfo.create(flow, "", run_id="r")))
    await started.wait()
    attempt = executor.get_attempt("r")
    assert attempt is not None
    attempt.stop(RunCancelled("first"))
    await undoing.wait()
    attempt.stop(RunCancelled("second"))
    attempt.kill("a critic")
    release_now.set()
    with pytest.raises(RunCancelled, match="first"):
        await running
    assert DONE == ["release a"]


async def test_a_shutdown_during_the_undo_of_a_cancelled_run_leaves_it_to_the_next_attempt() -> None:
    store, started, undoing = MemoryStore(), asyncio.Event(), asyncio.Event()
    hangs = [True]

    async def release_later(call: ToolContext, result: str) -> None:
        if hangs[0] and result == "a":
            undoing.set()
            await asyncio.Event().wait()
        DONE.append(f"release {result}")

    @tool(undo=release_later)
    async def take(name: str) -> str:
        return name

    @tool
    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    @workflow
    async def flow() -> None:
        await take("a")
        await take("b")
        await hang()

    async with App([flow], store) as app:
        running = asyncio.create_task(app.run(flow, run_id="r", on_cancel="cancel"))
        await started.wait()
        running.cancel()
        await undoing.wait()
        await app.shutdown(timedelta(0))
        await asyncio.gather(running, return_exceptions=True)
    assert DONE == ["release b"]
    hangs[0] = False
    async with App([flow], store) as other:
        with pytest.raises(RunCancelled):
            await other.result("r")
    assert DONE == ["release b", "release a"]


async def test_a_workflow_that_reaches_its_bound_undoes_its_steps() -> None:
    @workflow(bounds=Bounds(max_steps=2))
    async def flow() -> None:
        for seat in ("a", "b", "c"):
            await reserve(seat)

    async with App([flow], MemoryStore()) as app:
        with fails_with(StepsExceeded):
            await app.run(flow, run_id="r")
        assert (await app.get("r")).status is RunStatus.FAILED
    assert DONE == ["reserve a", "reserve b", "release b ticket b", "release a ticket a"]


async def test_a_tool_that_fails_the_run_undoes_its_steps() -> None:
    @tool(on_error="raise")
    async def fail() -> None:
        raise ValueError("no")

    @workflow
    async def flow() -> None:
        await reserve("a")
        await fail()

    async with App([flow], MemoryStore()) as app:
        with fails_with(ToolFailed):
            await app.run(flow, run_id="r")
    assert DONE == ["reserve a", "release a ticket a"]


async def test_an_undo_has_the_timeout_of_its_tool(caplog: pytest.LogCaptureFixture) -> None:
    async def never_ends(call: ToolContext, result: Any) -> None:
        DONE.append("undo begins")
        await asyncio.Event().wait()

    @tool(undo=never_ends, timeout=timedelta(milliseconds=1))
    async def take() -> None: ...

    @workflow
    async def flow() -> None:
        await reserve("a")
        await take()
        raise LookupError("the end")

    async with App([flow], MemoryStore()) as app:
        with fails_with(LookupError):
            await app.run(flow, run_id="r")
        assert (await app.get("r")).failed_calls == 1
    assert DONE[1:-1] == ["undo begins"] * 4
    assert DONE[-1] == "release a ticket a"
    assert "was not undone: tool undo take did not finish within 0.001 seconds" in caplog.text


@workflow
async def waiting_flow() -> Any:
    await reserve("a")
    await reserve("b")
    try:
        return await wait_for("go")
    except Exception:
        DONE.append("a cancel is no exception")
        raise


async def start_waiting_flow(app: App) -> None:
    with pytest.raises(RunWaiting):
        await app.run(waiting_flow, run_id="r")


async def test_a_workflow_that_is_cancelled_while_it_waits_undoes_its_steps() -> None:
    async with App([waiting_flow], MemoryStore()) as app:
        await start_waiting_flow(app)
        await app.cancel("r")
        with pytest.raises(RunCancelled):
            await app.result("r")
        assert (await app.get("r")).status is RunStatus.CANCELLED
    assert DONE == ["reserve a", "reserve b", "release b ticket b", "release a ticket a"]


async def test_a_cancel_without_a_worker_is_left_to_the_next_one() -> None:
    store = MemoryStore()
    async with App([waiting_flow], store, worker=False) as app:
        await start_waiting_flow(app)
        await app.cancel("r")
        await app.cancel("r")
        run = await app.get("r")
        assert run.status is RunStatus.INTERRUPTED
        assert run.cancel_requested
    async with App([waiting_flow], store) as other:
        with pytest.raises(RunCancelled):
            await other.result("r")
    assert DONE == ["reserve a", "reserve b", "release b ticket b", "release a ticket a"]


async def test_a_cancelled_function_that_waits_for_no_step_is_ended_after_the_timeout_of_an_undo() -> None:
    clock, entered, hangs = ManualClock(), asyncio.Event(), [False]

    @workflow
    async def flow() -> Any:
        await reserve("a")
        if hangs[0]:
            entered.set()
            await asyncio.Event().wait()
        return await wait_for("go")

    async with App([flow], MemoryStore(clock=clock), clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, run_id="r")
        hangs[0] = True
        await app.cancel("r")
        await entered.wait()
        await clock.advance(UNDO_TIMEOUT)
        with pytest.raises(RunCancelled):
            await app.result("r")
    assert DONE == ["reserve a", "release a ticket a"]


async def test_a_parked_workflow_that_is_cancelled_undoes_its_steps() -> None:
    host = SimulatedHost()

    @tool
    async def pay() -> None:
        await host.crash()

    @workflow
    async def flow() -> None:
        await reserve("a")
        await pay()

    with contextlib.suppress(RunError):
        await host.executor.start(flow, RunInfo.create(flow, "", run_id="r"))
    async with App([flow], host.inner) as app:
        with pytest.raises(RunParked, match="in doubt"):
            await app.result("r")
        await app.cancel("r")
        with pytest.raises(RunCancelled):
            await app.result("r")
    assert DONE == ["reserve a", "release a ticket a"]


async def test_a_workflow_without_undo_is_cancelled_at_once() -> None:
    @workflow
    async def flow() -> Any:
        return await wait_for("go")

    async with App([flow], MemoryStore(), worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, run_id="r")
        await app.cancel("r")
        assert (await app.get("r")).status is RunStatus.CANCELLED


async def test_a_requested_cancel_continues_its_undo_after_a_shutdown() -> None:
    store, undoing, hangs = MemoryStore(), asyncio.Event(), [True]

    async def release_later(call: ToolContext, result: str) -> None:
        if hangs[0] and result == "a":
            undoing.set()
            await asyncio.Event().wait()
        DONE.append(f"release {result}")

    @tool(undo=release_later)
    async def take(name: str) -> str:
        return name

    @workflow
    async def flow() -> Any:
        await take("a")
        await take("b")
        return await wait_for("go")

    async with App([flow], store) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, run_id="r")
        await app.cancel("r")
        await undoing.wait()
        await app.shutdown(timedelta(0))
    assert DONE == ["release b"]
    hangs[0] = False
    async with App([flow], store) as other:
        with pytest.raises(RunCancelled):
            await other.result("r")
        assert (await other.get("r")).strikes == 0
    assert DONE == ["release b", "release a"]
