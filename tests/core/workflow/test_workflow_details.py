"""Details of workflows: the longest wait in a process, a function that continues after its stop, refused races."""

import asyncio
import gc
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.failed_runs import fails_with
from tests.simulated_host import SimulatedHost

from holdfast import App, Bounds, CheckpointSettings, RunWaiting, current_call, tool
from holdfast.checkpoint.record import RunStatus
from holdfast.core.errors import DefinitionError, RunCancelled
from holdfast.core.run.info import RunInfo
from holdfast.core.workflow.suspension import QUIET_PERIOD
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock
from holdfast.workflows import (
    AmbiguousStep,
    Restart,
    StepFailed,
    block_on,
    call,
    first,
    sleep,
    start,
    wait_for,
    workflow,
)


@tool(effect="pure")
async def note(text: str) -> str:
    return text


@tool(effect="pure")
def note_in_thread(text: str) -> str:
    return text


@pytest.mark.parametrize("seconds", [5, 5.001])
async def test_a_wait_of_five_seconds_is_waited_out_in_the_process_and_a_longer_one_holds_none(seconds: float) -> None:
    clock, began = ManualClock(), asyncio.Event()
    lives: list[str] = []

    @workflow
    async def flow() -> str:
        lives.append("entered")
        await note("before")
        began.set()
        await sleep(seconds)
        return "rested"

    async with App([flow], MemoryStore(clock=clock), worker=False, clock=clock) as app:
        running = asyncio.create_task(app.run(flow, run_id="r"))
        await began.wait()
        while not running.done():
            await clock.advance(timedelta(seconds=seconds))
        assert (await running).output == "rested"
    assert len(lives) == (1 if seconds <= 5 else 2)


@pytest.mark.parametrize("in_step", [True, False], ids=["in a step", "between steps"])
async def test_a_plain_function_that_continues_after_a_cancel_makes_no_further_step(in_step: bool) -> None:
    after: list[str] = []
    began = asyncio.Event()

    async def wait_long() -> None:
        began.set()
        await asyncio.Event().wait()

    wait_in_step = tool(effect="pure", name="wait")(wait_long)

    @workflow
    def flow() -> None:
        try:
            block_on(wait_in_step() if in_step else wait_long())
        except BaseException:
            try:
                note_in_thread("after")
            except BaseException as exc:
                after.append(type(exc).__name__)
                raise

    async with App([flow], MemoryStore()) as app:
        running = asyncio.create_task(app.run(flow, run_id="r"))
        await began.wait()
        await app.cancel("r")
        with pytest.raises(RunCancelled):
            await running
    assert after == ["Unwind"]


async def test_a_step_that_a_thread_asks_for_while_its_run_is_cancelled_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, began = asyncio.get_running_loop(), asyncio.Event()
    proceeds, asked, ended = (threading.Event() for _ in range(3))
    call_soon, errors = loop.call_soon_threadsafe, list[str]()

    def ask(*args: Any, **options: Any) -> Any:
        handle = call_soon(*args, **options)
        asked.set()
        return handle

    @workflow
    def flow() -> None:
        call_soon(began.set)
        proceeds.wait(60)
        try:
            note_in_thread("late")
        except BaseException as exc:
            errors.append(type(exc).__name__)
            raise
        finally:
            ended.set()

    host = SimulatedHost(settings=CheckpointSettings())
    running = asyncio.create_task(host.executor.start(flow, RunInfo.create(flow, "", run_id="r")))
    await began.wait()
    monkeypatch.setattr(loop, "call_soon_threadsafe", ask)
    proceeds.set()
    assert asked.wait(60), "the event loop has the request, and has not looked at it"
    attempt = host.executor.get_attempt("r")
    assert attempt is not None
    attempt.stop(RunCancelled("stop"))
    with pytest.raises(RunCancelled):
        await running
    assert await asyncio.to_thread(ended.wait, 60)
    assert errors == ["Unwind"]


async def test_a_race_of_tasks_is_refused_and_their_errors_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("of a branch")

    @workflow
    async def flow() -> Any:
        return await first(both=asyncio.gather(fail(), fail()), late=wait_for("late"))

    async with App([flow], None) as app:
        with fails_with(DefinitionError, match="got a task or a gather"):
            await app.run(flow)
        await asyncio.sleep(0)
        gc.collect()
    assert "never retrieved" not in caplog.text


async def test_each_life_counts_one_restart_and_none_of_them_waits() -> None:
    call_ids: list[str] = []
    turns = 0

    @tool(effect="pure", name="note")
    async def note_id() -> None:
        call_ids.append(current_call().call_id.rpartition(":")[2])

    @workflow
    async def flow(life: int) -> int | Restart:
        await note_id()
        return Restart(life + 1) if life < 3 else life

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with App([flow], None) as app:
        counting = asyncio.create_task(count_turns())
        assert (await app.run(flow, inputs={"life": 0})).output == 3
        counting.cancel()
    assert call_ids == ["1", "1@1", "1@2", "1@3"]
    assert turns < 1000


async def test_a_workflow_that_says_that_it_only_restarts_may_return_anything() -> None:
    @workflow
    async def flow(life: int) -> Restart:
        return Restart(1) if life == 0 else "over"  # type: ignore[return-value]  # it says so

    async with App([flow], None) as app:
        assert (await app.run(flow, inputs={"life": 0})).output == "over"


async def test_a_step_that_another_task_begins_in_the_quiet_time_is_not_unwound() -> None:
    clock, made = ManualClock(), list[str]()
    rests, proceeds, ends, began = (asyncio.Event() for _ in range(4))

    @tool(effect="pure", name="note")
    async def note_slowly() -> str:
        made.append("note")
        began.set()
        await ends.wait()
        return "noted"

    @workflow
    async def flow() -> list[Any]:
        async def work() -> str:
            await note("first")
            rests.set()
            await proceeds.wait()
            return await note_slowly()

        return [*await asyncio.gather(work(), wait_for("go"))]

    async with App([flow], MemoryStore(clock=clock), clock=clock) as app:
        running = asyncio.create_task(app.run(flow, run_id="r", through_waits=True))
        await rests.wait()
        await clock.advance(QUIET_PERIOD / 2)
        proceeds.set()
        await began.wait()
        await clock.advance(QUIET_PERIOD)
        ends.set()
        await clock.advance(2 * QUIET_PERIOD)
        await app.signal("r", "go", 1)
        while not running.done():
            await clock.advance(QUIET_PERIOD)
        assert (await running).output == ["noted", 1]
    assert made == ["note"]


async def test_a_step_whose_function_has_an_unknown_annotation_returns_plain_data() -> None:
    async def find() -> "Unknown":  # type: ignore[name-defined]  # noqa: F821
        return {"found": 1}

    @workflow
    async def flow() -> Any:
        return await call("find", find)

    async with App([flow], None) as app:
        assert (await app.run(flow)).output == {"found": 1}


@pytest.mark.parametrize(
    ("tool_name", "advice"), [("first", "first(KEY, ...)"), ("saga", "saga(KEY)"), ("pay", "pay.keyed(KEY)(...)")]
)
def test_who_makes_one_call_in_two_tasks_reads_how_to_tell_them_apart(tool_name: str, advice: str) -> None:
    error = AmbiguousStep(tool_name)
    assert error.tool == tool_name
    assert str(error).startswith(f"two tasks of the workflow call {tool_name} with the same arguments")
    assert str(error).endswith(f"Give each a key, such as {advice}")


async def test_a_workflow_makes_at_most_ten_thousand_steps() -> None:
    @workflow
    async def flow() -> None: ...

    assert (await flow.build(RunInfo.create(flow, ""))).bounds == Bounds(max_steps=10_000)


async def test_code_that_waits_for_no_step_is_unwound_after_a_second() -> None:
    clock, began = ManualClock(), asyncio.Event()

    async def wait_for_nothing() -> None:
        began.set()
        await note("recorded")
        await asyncio.Event().wait()

    @workflow
    async def flow() -> None:
        await asyncio.gather(wait_for("go"), wait_for_nothing())

    async with App([flow], MemoryStore(clock=clock), worker=False, clock=clock) as app:
        running = asyncio.create_task(app.run(flow, run_id="r"))
        await began.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        await clock.advance(timedelta(seconds=0.5))
        assert (await app.get("r")).status is RunStatus.RUNNING
        await clock.advance(timedelta(seconds=0.5))
        for _ in range(100):
            await asyncio.sleep(0)
        assert (await app.get("r")).status is RunStatus.WAITING
        with pytest.raises(RunWaiting):
            await running


async def test_the_log_names_five_of_the_calls_that_the_code_no_longer_repeats(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lives: list[int] = []

    @workflow
    async def flow() -> None:
        lives.append(1)
        if len(lives) == 1:
            for number in range(6):
                await note.keyed(str(number))("old")
        await wait_for("go")

    async with App([flow], "memory:") as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, run_id="r")
        await app.signal("r", "go", 1)
        await app.result("r")
    [text] = [record.getMessage() for record in caplog.records if "were not repeated" in record.getMessage()]
    assert text.endswith("6 recorded calls were not repeated: " + ", ".join(f"note:{number}:1" for number in range(5)))


async def test_a_message_to_a_started_run_that_has_ended_is_an_error_of_its_step() -> None:
    @workflow
    async def child() -> None: ...

    @workflow
    async def flow() -> str:
        started = await start(child)
        await started.result()
        try:
            await started.send("too late")
        except StepFailed as exc:
            return exc.message
        return "sent"

    async with App([flow, child], "memory:") as app:
        output = (await app.run(flow, through_waits=True)).output
    assert output.endswith("has ended: it reads no more messages")
