"""A workflow that only waits holds no process: its code is unwound, and entered again when the wait has ended."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.simulated_host import SimulatedHost

from holdfast import App, Approve, Deferred, Deny, RunWaiting, Value, current_call, tool
from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.errors import StoreClosed
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import Mail, RunStatus
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.errors import RunCancelled, RunError, RunParked
from holdfast.core.run.info import RunInfo
from holdfast.stores.memory import MemoryStore
from holdfast.workflows import (
    StepDenied,
    StepFailed,
    StepTimeout,
    Workflow,
    ask_person,
    first,
    run_agent,
    saga,
    sleep,
    wait_for,
    workflow,
)


async def start(app: App, flow: Workflow[Any], **inputs: Any) -> RunWaiting:
    with pytest.raises(RunWaiting) as caught:
        await app.run(flow, inputs=inputs, run_id="r")
    return caught.value


async def answer(app: App, value: Any) -> None:
    [waiting] = [call for call in await app.pending() if call.run_id == "r"]
    await app.answer("r", waiting.call_id, value)


async def test_a_signal_resumes_the_workflow_and_except_exception_does_not_stop_it() -> None:
    made: list[str] = []

    @tool
    async def note(text: str) -> None:
        made.append(text)

    @workflow
    async def flow() -> Any:
        await note("before")
        try:
            got = await wait_for("paid")
        except Exception:
            await note("swallowed")
            raise
        finally:
            made.append("finally")
        await note("after")
        return got

    async with App([flow], MemoryStore()) as app:
        waiting = await start(app, flow)
        assert waiting.wake_on == ("signal:paid",)
        details = await app.get("r")
        assert (details.status, details.owner) == (RunStatus.WAITING, None)
        await app.signal("r", "paid", {"euro": 5})
        assert (await app.result("r")).output == {"euro": 5}
    assert made == ["before", "finally", "finally", "after"]


async def test_a_durable_call_in_finally_is_refused_while_the_code_is_unwound() -> None:
    made: list[str] = []

    @tool
    async def note(text: str) -> None:
        made.append(text)

    @workflow
    async def flow() -> str:
        try:
            await wait_for("go")
        finally:
            await note("cleaned up")
        return "done"

    async with App([flow], MemoryStore()) as app:
        await start(app, flow)
        assert made == []
        await app.signal("r", "go", None)
        assert (await app.result("r")).output == "done"
    assert made == ["cleaned up"]


async def test_a_question_an_approval_and_a_result_from_outside() -> None:
    tokens: list[str] = []

    @tool(approval=True)
    async def pay(euro: int) -> int:
        return euro

    @tool
    async def render() -> Deferred:
        tokens.append(current_call().completion_token)
        return Deferred(reason="rendering")

    @workflow
    async def flow() -> list[Any]:
        name = await ask_person("Who?")
        paid = await pay(3)
        try:
            await pay(4)
            denied = ""
        except StepDenied as exc:
            denied = exc.message
        return [name, paid, denied, await render()]

    async with App([flow], MemoryStore()) as app:
        await start(app, flow)
        for value in (Value("Ann"), Approve(arguments={"euro": 7}), Deny(reason="too much")):
            await answer(app, value)
            with pytest.raises(RunWaiting):
                await app.result("r")
        await app.complete_call(tokens[0], "sea.png")
        assert (await app.result("r")).output == ["Ann", 7, "The call was denied: too much.", "sea.png"]


async def test_a_wait_ends_with_its_timeout() -> None:
    @workflow
    async def flow() -> list[str]:
        caught = []
        for wait in (wait_for("never", timeout=0.02), ask_person("?", timeout=timedelta(seconds=0.02))):
            try:
                await wait
            except TimeoutError as exc:
                caught.append(type(exc).__name__)
        return caught

    async with App([flow], MemoryStore()) as app:
        assert (await app.run(flow)).output == [StepTimeout.__name__] * 2


async def test_parallel_branches_each_get_their_own_signal() -> None:
    made: list[str] = []

    @tool
    async def note(text: str) -> None:
        made.append(text)

    async def branch(name: str) -> Any:
        await note(f"begin {name}")
        got = await wait_for(name)
        await note(f"end {name}")
        return got

    @workflow
    async def flow() -> list[Any]:
        return list(await asyncio.gather(branch("a"), branch("b"), branch("c")))

    async with App([flow], MemoryStore()) as app:
        waiting = await start(app, flow)
        assert waiting.wake_on == ("signal:a", "signal:b", "signal:c")
        for name in ("c", "a"):
            await app.signal("r", name, name.upper())
            with pytest.raises(RunWaiting):
                await app.result("r")
        assert made[-2:] == ["end c", "end a"]
        await app.signal("r", "b", "B")
        assert (await app.result("r")).output == ["A", "B", "C"]
    assert len(made) == len(set(made)) == 6


async def test_the_winner_of_a_race_stays_the_winner() -> None:
    entered: list[str] = []

    async def slow() -> str:
        try:
            await sleep(timedelta(days=1))
        except asyncio.CancelledError:
            entered.append("cancelled")
            raise
        return "slow"

    @workflow
    async def flow() -> list[Any]:
        winner, value = await first(slow=slow(), said=ask_person("Go?"))
        again = await wait_for("next")
        return [winner, value, again]

    async with App([flow], MemoryStore()) as app:
        waiting = await start(app, flow)
        assert waiting.wake_at is not None
        await answer(app, Value("yes"))
        with pytest.raises(RunWaiting) as caught:
            await app.result("r")
        # The loser waits no more.
        assert caught.value.wake_at is None
        await app.signal("r", "next", 1)
        assert (await app.result("r")).output == ["said", "yes", 1]
        assert entered == ["cancelled", "cancelled"]  # when it lost, and in the attempt after that


async def test_a_workflow_that_waits_can_be_cancelled() -> None:
    @workflow
    async def flow() -> None:
        await wait_for("never")

    async with App([flow], MemoryStore()) as app:
        await start(app, flow)
        await app.cancel("r")
        assert (await app.get("r")).status is RunStatus.CANCELLED
        with pytest.raises(RunCancelled):
            await app.result("r")


async def test_a_call_with_changed_arguments_parks_the_run_and_is_not_made() -> None:
    paid: list[int] = []

    @tool
    async def pay(at: int) -> int:
        paid.append(at)
        return at

    clock = iter([1, 2, 3])

    @workflow
    async def flow() -> list[int]:
        got = await pay(next(clock))
        await wait_for("go")
        return [got]

    async with App([flow], MemoryStore()) as app:
        await start(app, flow)
        await app.signal("r", "go", None)
        with pytest.raises(RunParked, match="changed arguments") as caught:
            await app.result("r")
        assert '{"at":2}' in str(caught.value)
        assert '{"at":1}' in str(caught.value)
        assert paid == [1]
        clock = iter([1])
        await app.unpark("r")
        assert (await app.result("r")).output == [1]
    assert paid == [1]


async def test_a_person_gives_the_result_of_a_call_with_changed_arguments() -> None:
    arguments = [1]

    @tool
    async def pay(at: int) -> int:
        return at

    @workflow
    async def flow() -> int:
        got: int = await pay(arguments[0])
        await wait_for("go")
        return got

    async with App([flow], MemoryStore()) as app:
        await start(app, flow)
        arguments[0] = 2
        await app.signal("r", "go", None)
        with pytest.raises(RunParked, match="changed arguments"):
            await app.result("r")
        [call] = [each for each in (await app.get("r")).pending_calls if each.tool == "pay"]
        await app.unpark("r", {call.call_id: 20})
        assert (await app.result("r")).output == 20


async def test_a_recorded_call_is_found_although_the_code_was_reordered() -> None:
    made: list[str] = []

    @tool
    async def note(text: str) -> str:
        made.append(text)
        return text

    order = ["a", "b"]

    @workflow
    async def flow() -> list[str]:
        got = [await note(text) for text in order]
        await wait_for("go")
        return got

    async with App([flow], MemoryStore()) as app:
        await start(app, flow)
        order[:] = ["b", "a"]
        await app.signal("r", "go", None)
        assert (await app.result("r")).output == ["b", "a"]
    assert made == ["a", "b"]


async def test_a_child_run_that_waits_lets_its_workflow_wait() -> None:
    @workflow
    async def inner(name: str) -> str:
        return f"{name} {await wait_for('go')}"

    @workflow
    async def flow() -> str:
        return str(await run_agent(inner, inputs={"name": "child"}))

    async with App([flow, inner], MemoryStore()) as app:
        await start(app, flow)
        [child] = (await app.list(parent="r")).runs
        await app.signal(child.run_id, "go", "went")
        assert (await app.result("r")).output == "child went"


async def test_an_equal_call_after_a_race_is_not_that_of_the_branch_that_lost() -> None:
    @workflow
    async def flow() -> list[str]:
        found = []
        for name in ("a", "b"):
            winner, _ = await first(said=wait_for(name), late=sleep(timedelta(days=1)))
            found.append(winner)
        return found

    async with App([flow], MemoryStore()) as app:
        await start(app, flow)
        for name in ("a", "b"):
            await app.signal("r", name, None)
            if name == "a":
                with pytest.raises(RunWaiting):
                    await app.result("r")
        assert (await app.result("r")).output == ["said", "said"]


async def test_a_branch_that_has_begun_before_its_race_is_refused() -> None:
    @workflow
    async def flow() -> None:
        await first(pair=asyncio.gather(sleep(1), sleep(2)), late=sleep(3))

    async with App([flow], MemoryStore()) as app:
        with pytest.raises(RunError, match="a task or a gather"):
            await app.run(flow)


async def test_a_resumed_branch_that_only_finds_recorded_steps_does_not_keep_the_run_in_its_process() -> None:
    @tool
    async def note(text: str) -> str:
        return text

    async def work() -> None:
        await note("a")
        await asyncio.sleep(0.2)  # code of its own, during which the other branches come to rest
        await note("b")

    @workflow
    async def flow() -> list[Any]:
        return list(await asyncio.gather(wait_for("go"), ask_person("Sure?"), work()))

    async with App([flow], MemoryStore()) as app, asyncio.timeout(60):
        await start(app, flow)
        await answer(app, Value("yes"))
        with pytest.raises(RunWaiting):
            await app.result("r")
        await app.signal("r", "go", "went")
        assert (await app.result("r")).output == ["went", "yes", None]


async def _forget(call: ToolContext, result: None) -> None: ...


LOSERS: dict[str, Callable[[], Awaitable[Any]]] = {
    "signal": lambda: wait_for("late"),
    "timer": lambda: sleep(timedelta(minutes=1)),
    "person": lambda: ask_person("Late?"),
}


@pytest.mark.parametrize("kind", LOSERS)
async def test_a_branch_that_lost_before_a_crash_does_not_wake_the_run(kind: str) -> None:
    host = SimulatedHost()
    store, dying = host.inner, SimulatedHost(host.inner)

    @workflow
    async def flow() -> Any:
        winner, _ = await first(won=wait_for("now"), lost=LOSERS[kind]())
        return winner, await wait_for("next")

    async def crash_after_race(method: str) -> None:
        """Let the host die when the winner is recorded, and not that the other branch is cancelled."""
        if any(b"abandoned" in entry.body for entry in (await store.load("r")).entries):
            await dying.crash()
            raise StoreClosed("killed")

    with pytest.raises(RunWaiting):
        await host.executor.start(flow, RunInfo.create(flow, "", run_id="r"))
    await store.post("r", Mail(mail_id="m", topic="signal:now", body=b"null"))
    dying.store.before = crash_after_race
    with pytest.raises(RunWaiting):
        await dying.resume(flow, "r")  # it continues, and nothing of that is stored
    with pytest.raises(RunWaiting) as caught:
        await SimulatedHost(store).resume(flow, "r")
    assert (caught.value.wake_on, caught.value.wake_at) == (("signal:next",), None)
    calls = decode((await store.load("r")).record.progress, Progress).calls
    assert [call.topic for call in calls.undecided] == ["signal:next"]


async def test_a_wait_beside_a_step_that_failed_its_saga_does_not_wake_the_run_endlessly() -> None:
    attempts: list[str] = []

    @tool(undo=_forget)
    async def book() -> None: ...

    @tool
    async def fail() -> None:
        raise LookupError("no seat")

    @workflow
    async def flow() -> Any:
        attempts.append("flow")
        with contextlib.suppress(StepFailed):
            async with saga():
                await book()
                await asyncio.gather(wait_for("paid"), fail())
        return await wait_for("next")

    async with App([flow], MemoryStore()) as app:
        await start(app, flow)
        await app.signal("r", "paid")
        with pytest.raises(RunWaiting) as caught:
            await app.result("r")
        assert caught.value.wake_on == ("signal:next",)
        assert len(attempts) == 2
        await app.signal("r", "next", "went")
        assert (await app.result("r")).output == "went"
    assert len(attempts) == 3


async def test_a_wait_that_the_changed_code_does_not_repeat_does_not_wake_the_run_endlessly() -> None:
    awaited = ["old"]

    @workflow
    async def flow() -> Any:
        return await wait_for(awaited[-1])

    host = SimulatedHost()
    with pytest.raises(RunWaiting):
        await host.executor.start(flow, RunInfo.create(flow, "", run_id="r"))
    awaited.append("new")
    await host.inner.post("r", Mail(mail_id="m", topic="signal:old", body=b"null"))
    with pytest.raises(RunWaiting) as caught:
        await host.resume(flow, "r")
    assert caught.value.wake_on == ("signal:new",)
    assert (await host.get_statuses())["r"] is RunStatus.WAITING  # although the signal is unread
