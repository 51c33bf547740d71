"""Workflows that are stopped: in doubt, by a shutdown, by a cancel."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest
from tests.core.null_listener import NullListener
from tests.simulated_host import SimulatedHost

from holdfast import App, RunWaiting, tool, wait_for
from holdfast.checkpoint.record import RunStatus
from holdfast.core.errors import RunCancelled, RunError, RunParked
from holdfast.core.run.info import RunInfo
from holdfast.core.run.run_events import Event, ToolCalled
from holdfast.stores.memory import MemoryStore
from holdfast.workflows import StepFailed, workflow


async def leave_in_doubt(flow: Any, host: SimulatedHost) -> None:
    with contextlib.suppress(RunError):
        await host.executor.start(flow, RunInfo.create(flow, "", run_id="r"))


@pytest.mark.parametrize("resolved", [True, False])
async def test_a_call_in_doubt_parks_the_workflow_until_a_person_decides(resolved: bool) -> None:
    store = MemoryStore()
    host, made = SimulatedHost(store), 0

    @tool  # in_doubt="report" is for models
    async def pay() -> str:
        nonlocal made
        made += 1
        await host.crash()
        return "paid"

    @workflow
    async def flow() -> str:
        try:
            return str(await pay())
        except StepFailed as exc:
            return exc.type_name

    await leave_in_doubt(flow, host)
    async with App([flow], store) as app:
        with pytest.raises(RunParked, match="in doubt"):
            await app.result("r")
        [call] = (await app.get("r")).pending_calls
        assert call.state == "in doubt"
        await app.unpark("r", {call.call_id: "it was paid"} if resolved else None)
        assert (await app.result("r")).output == ("it was paid" if resolved else "Error")
    assert made == 1


async def test_a_shutdown_lets_calls_finish_and_another_app_continues() -> None:
    store, release, both = MemoryStore(), asyncio.Event(), asyncio.Event()
    started: list[str] = []
    made: list[str] = []

    @tool
    async def work(name: str) -> str:
        started.append(name)
        if len(started) == 2:
            both.set()
        await release.wait()
        made.append(name)
        return name

    async def branch(name: str) -> list[str]:
        try:
            return [await work(f"{name}1"), await work(f"{name}2")]
        except Exception as exc:
            raise AssertionError from exc

    @workflow
    async def flow() -> list[list[str]]:
        return list(await asyncio.gather(branch("a"), branch("b")))

    app = App([flow], store)
    await app.__aenter__()
    await app.submit(flow, run_id="r")
    await both.wait()
    closing = asyncio.create_task(app.shutdown(timedelta(seconds=20)))
    await asyncio.sleep(0)
    release.set()
    await closing
    assert sorted(made) == ["a1", "b1"]
    async with App([flow], store) as other:
        result = await other.result("r")
        assert result.output == [["a1", "a2"], ["b1", "b2"]]
        assert (await other.get("r")).strikes == 0
    assert sorted(made) == ["a1", "a2", "b1", "b2"]


async def test_a_cancel_stops_a_workflow_and_its_other_tasks() -> None:
    started = asyncio.Event()
    cleaned: list[str] = []

    @tool
    async def hang(name: str) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(name)

    @workflow
    async def flow() -> None:
        task = asyncio.create_task(hang("a"))
        try:
            await hang("b")
        finally:
            with contextlib.suppress(Exception):
                await hang("refused")
            del task

    async with App([flow], MemoryStore()) as app:
        await app.submit(flow, run_id="r")
        await started.wait()
        await app.cancel("r")
        with pytest.raises(RunCancelled):
            await app.result("r")
        assert (await app.get("r")).status is RunStatus.CANCELLED
    assert "refused" not in cleaned


async def test_a_workflow_that_waits_with_plain_code_beside_it_is_unwound() -> None:
    @workflow
    async def flow() -> Any:
        async def forever() -> None:
            await asyncio.Event().wait()

        task = asyncio.ensure_future(forever())
        try:
            return (await asyncio.gather(wait_for("go"), asyncio.sleep(0)))[0]
        finally:
            task.cancel()

    async with App([flow], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, run_id="r")
        await app.signal("r", "go", "went")
        assert (await app.result("r")).output == "went"


async def test_a_listener_may_call_a_tool_when_the_workflow_has_ended() -> None:
    heard: list[str] = []

    @tool
    async def thank(name: str) -> str:
        return f"thank you, {name}"

    class ThankingListener(NullListener):
        async def on_output(self, info: RunInfo, output: Any) -> None:
            heard.append(await thank(output))

    @workflow
    async def flow() -> str:
        return "Ada"

    async with App([flow], MemoryStore(), listener=ThankingListener()) as app:
        await app.run(flow)
    assert heard == ["thank you, Ada"]


async def test_a_branch_that_is_cancelled_before_its_run_is_not_recorded_as_cancelled() -> None:
    store, begun, hangs = MemoryStore(), asyncio.Event(), [True]
    branches: list[asyncio.Task[Any]] = []

    @tool(effect="pure")
    async def read(name: str) -> str:
        if hangs[0]:
            begun.set()
            await asyncio.Event().wait()
        return name

    @workflow
    async def flow() -> list[str]:
        branches[:] = [asyncio.ensure_future(read(name)) for name in "ab"]
        return list(await asyncio.gather(*branches))

    before = asyncio.all_tasks()
    async with App([flow], store) as app:
        waiting = asyncio.create_task(app.run(flow, run_id="r"))
        await begun.wait()
        others = asyncio.all_tasks() - before
        for task in (*branches, *others):  # as the end of an event loop does: it cancels them in any order
            task.cancel()
        await asyncio.wait([waiting])
    hangs[0] = False
    async with App([flow], store) as other:
        assert (await other.result("r")).output == ["a", "b"]


async def test_a_thread_that_was_not_started_because_another_branch_parks_the_run_is_no_failed_step() -> None:
    made: list[str] = []
    parking = asyncio.Event()

    class Listener(NullListener):
        async def on_event(self, info: RunInfo, event: Event) -> None:
            if isinstance(event, ToolCalled) and event.tool == "note":
                await parking.wait()
                for _ in range(100):  # turns of the event loop in which the other branch stops the run
                    await asyncio.sleep(0)

    @tool(effect="idempotent")
    async def park() -> str:
        if parking.is_set():
            return "continued"
        parking.set()
        raise RunParked("test", "look at it")

    @tool
    def note(text: str) -> str:
        made.append(text)
        return text

    @workflow
    async def flow() -> list[str]:
        return list(await asyncio.gather(note("in a thread"), park()))

    async with App([flow], MemoryStore(), listener=Listener()) as app:
        with pytest.raises(RunParked):
            await app.run(flow, run_id="r")
        assert made == []
        await app.unpark("r")
        assert (await app.result("r")).output == ["in a thread", "continued"]
    assert made == ["in a thread"]
