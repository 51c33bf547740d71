"""Details of the calls of a step: what a crash finds of them, ids that are used again, calls that have ended."""

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, App, Approve, Deferred, RunWaiting, ToolResult, current_call, tool
from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.progress import Progress
from holdfast.config import CheckpointSettings
from holdfast.core.agents.calls import Effect
from holdfast.core.errors import RunError, Shutdown, ToolFailed
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.execution.native_loop import NativeLoop
from holdfast.core.execution.saving import INTENT_DELAY
from holdfast.core.execution.step import StepContext
from holdfast.core.run.messages import Reply
from holdfast.core.run.state import StepCalls
from holdfast.testing.manual_clock import ManualClock
from holdfast.workflows import start, workflow

KEPT = CheckpointSettings()
MILLISECOND = timedelta(milliseconds=1)


async def read_calls(host: SimulatedHost) -> StepCalls:
    return decode((await host.inner.load("r")).record.progress, Progress).calls


async def let_others_work() -> None:
    """Nothing waits for time or for threads: a turn of the event loop for each of their awaits is enough."""
    for _ in range(200):
        await asyncio.sleep(0)


async def abandon(host: SimulatedHost, run: "asyncio.Task[Any]") -> None:
    """End a host as by SIGKILL, and what still runs of it."""
    await host.crash()
    run.cancel()
    await asyncio.wait([run])


def get_results(model: ScriptedModel) -> list[Any]:
    return [message.content for message in model.requests[-1] if isinstance(message, ToolResult)]


@tool
async def render() -> Deferred:
    return Deferred(reason="a picture")


async def test_a_deferred_call_is_in_the_store_while_another_call_still_works() -> None:
    host, began = SimulatedHost(settings=KEPT), asyncio.Event()

    @tool(effect="pure")
    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    batch = tool_reply(call("1", "render"), call("2", "work"))
    agent = Agent(name="a", model=ScriptedModel(batch, "done"), tools=[render, work])
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await began.wait()
    await let_others_work()
    assert [(wait.call_id, wait.reason) for wait in (await read_calls(host)).undecided] == [("1", "a picture")]
    await abandon(host, run)


async def test_a_crash_leaves_only_the_ordered_call_in_progress_in_doubt() -> None:
    host, began, paid = SimulatedHost(settings=KEPT), asyncio.Event(), list[str]()

    @tool(sequential=True)
    async def pay(name: str) -> str:
        paid.append(name)
        if name == "b" and len(paid) == 2:
            began.set()
            await asyncio.Event().wait()
        return name

    batch = tool_reply(*(call(name, "pay", name=name) for name in "abc"))
    model = ScriptedModel(batch, "done")
    agent = Agent(name="a", model=model, tools=[pay])
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await began.wait()
    await abandon(host, run)
    assert (await SimulatedHost(host.inner, settings=KEPT).resume(agent, "r")).output == "done"
    assert (get_results(model), paid) == (["a", UNKNOWN_OUTCOME, "c"], ["a", "b", "c"])


async def test_a_call_with_the_id_of_one_that_was_in_doubt_is_made() -> None:
    host, began, sent = SimulatedHost(settings=KEPT), asyncio.Event(), list[str]()

    @tool
    async def send(to: str) -> str:
        sent.append(to)
        if to == "ann":
            began.set()
            await asyncio.Event().wait()
        return to

    model = ScriptedModel(tool_reply(call("1", "send", to="ann")), tool_reply(call("1", "send", to="bob")), "done")
    agent = Agent(name="a", model=model, tools=[send])
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await began.wait()
    await abandon(host, run)
    await SimulatedHost(host.inner, settings=KEPT).resume(agent, "r")
    assert (get_results(model), sent) == ([UNKNOWN_OUTCOME, "bob"], ["ann", "bob"])


async def test_a_call_that_has_ended_starts_no_run() -> None:
    leaked: list[asyncio.Task[Any]] = []
    may_start = asyncio.Event()

    @workflow
    async def flow() -> None: ...

    @tool(effect="pure")
    async def leak() -> None:
        async def start_later() -> None:
            await may_start.wait()
            await start(flow)

        leaked.append(asyncio.create_task(start_later()))

    async with App([Agent(name="a", model=ScriptedModel(tool_reply(call("1", "leak")), "done"), tools=[leak]), flow],
                   "memory:", worker=False) as app:  # fmt: skip
        await app.run("a", "go", run_id="r")
        may_start.set()
        with pytest.raises(RunError, match="call 1 has ended: it cannot start runs"):
            await leaked[0]
        assert [run.run_id for run in (await app.list()).runs] == ["r"]


async def test_the_runs_that_a_call_starts_are_told_apart_by_their_order_or_by_their_keys() -> None:
    run_ids: list[str] = []

    @workflow
    async def flow() -> None: ...

    @tool(effect="idempotent")
    async def start_some() -> None:
        run_ids.extend([(await start(flow, key=key)).run_id for key in (None, None, "x", "x", "y")])

    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "start_some")), "done"), tools=[start_some])
    async with App([agent, flow], "memory:", worker=False) as app:
        await app.run("a", "go", run_id="r")
    assert [run_ids.index(each) for each in run_ids] == [0, 1, 2, 2, 4]


async def test_a_call_that_waits_for_a_run_keeps_the_arguments_that_a_person_has_given() -> None:
    seen: list[str] = []

    @workflow
    async def child() -> str:
        return "deployed"

    @tool(effect="idempotent", approval=True)
    async def deploy(target: str) -> str:
        seen.append(target)
        return str(await (await start(child)).result())

    model = ScriptedModel(tool_reply(call("1", "deploy", target="production")), "done")
    async with App([Agent(name="a", model=model, tools=[deploy]), child], "memory:") as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        await app.answer("r", "1", Approve(arguments={"target": "staging"}))
        assert (await app.run("a", "go", run_id="r", through_waits=True)).output == "done"
    assert (set(seen), get_results(model)) == ({"staging"}, ["deployed"])


class AnnouncingLoop(NativeLoop):
    """Announces one call, and after a moment both again."""

    def __init__(self, effect: Effect, delay: timedelta, clock: ManualClock) -> None:
        self._effect, self._delay, self._clock = effect, delay, clock
        self.announced = asyncio.Event()

    async def run(self, context: StepContext) -> Any:
        await context.start([])
        context.state.history.append(Reply(tool_calls=(call("1", "act"), call("2", "act"))))
        await context.tool_calls.announce({"1": self._effect})
        context.tool_calls._not_started.discard("1")  # as if it had been started
        await self._clock.advance(self._delay)
        await context.tool_calls.announce({"1": self._effect, "2": self._effect})
        self.announced.set()
        await asyncio.Event().wait()


async def test_a_call_that_is_announced_again_stays_as_it_is() -> None:
    clock = ManualClock()
    host, loop = SimulatedHost(settings=KEPT, clock=clock), AnnouncingLoop(Effect.ONCE, MILLISECOND, clock)
    run = asyncio.create_task(host.executor.run(Agent(name="a", loop=loop), "go", run_id="r"))
    await loop.announced.wait()
    attempt = host.executor.get_attempt("r")
    assert attempt is not None
    attempt.stop_for_shutdown()
    with pytest.raises(Shutdown):
        await run
    assert (await read_calls(host)).not_started == ("2",), "the other one was started"


async def test_a_further_call_does_not_delay_the_save_of_those_before_it() -> None:
    clock = ManualClock()
    host, loop = SimulatedHost(settings=KEPT, clock=clock), AnnouncingLoop(Effect.PURE, MILLISECOND, clock)
    run = asyncio.create_task(host.executor.run(Agent(name="a", loop=loop), "go", run_id="r"))
    await loop.announced.wait()
    assert len(host.store.writes) == 1
    await clock.advance(INTENT_DELAY - MILLISECOND)
    assert len(host.store.writes) == 2
    await abandon(host, run)


async def test_a_run_without_a_store_has_no_timer_for_its_calls() -> None:
    clock = ManualClock()
    loop = AnnouncingLoop(Effect.PURE, timedelta(0), clock)
    async with App([Agent(name="a", loop=loop)], None, clock=clock) as app:
        waiting = clock.waiting
        run = asyncio.create_task(app.run("a", "go", run_id="r", on_cancel="cancel"))
        await loop.announced.wait()
        assert clock.waiting == waiting
        run.cancel()
        await asyncio.wait([run])


def test_a_tool_that_ends_the_process_shuts_its_executor_down() -> None:
    hosts: list[SimulatedHost] = []

    async def main() -> None:
        host = SimulatedHost(settings=KEPT, shutdown_timeout=timedelta(0))
        hosts.append(host)
        began = asyncio.Event()

        @tool(effect="pure")
        async def end() -> None:
            raise SystemExit(3)

        async def wait_forever(messages: Any, tools: Any) -> Any:
            began.set()
            await asyncio.Event().wait()

        other = asyncio.create_task(host.executor.run(Agent(name="b", model=wait_forever), "go", run_id="other"))
        await began.wait()
        model = ScriptedModel(tool_reply(call("1", "end")))
        await asyncio.wait([
            other, asyncio.create_task(host.executor.run(Agent(name="a", model=model, tools=[end]), "go", run_id="r"))
        ])  # fmt: skip

    with pytest.raises(SystemExit) as ended:
        asyncio.run(main())
    assert ended.value.code == 3
    assert hosts[0].executor.draining
    assert hosts[0].store.at_close is not None, "the store was closed"
    assert {record.run_id: record.status.value for record in hosts[0].store.at_close} == {
        "r": "interrupted",
        "other": "interrupted",
    }


async def test_a_resumed_run_whose_supervisor_never_began_is_left_to_others() -> None:
    host = SimulatedHost(settings=KEPT)
    agent = Agent(name="a", model=ScriptedModel(Shutdown("down"), "done"))
    with pytest.raises(Shutdown):
        await host.executor.run(agent, "go", run_id="r")
    again = SimulatedHost(host.inner, settings=KEPT)
    resumption = await again.claim(agent, "r")
    before = asyncio.all_tasks()
    caller = asyncio.create_task(again.executor.resume(agent, resumption))
    await asyncio.sleep(0)
    begun = asyncio.all_tasks() - before
    assert len(begun) == 2, "the supervisor has not begun"
    for task in begun:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await let_others_work()
    assert [record.is_interrupted for record in await again.list_records()] == [True]
    await again.executor.shutdown()


async def test_errors_that_nobody_waits_for_are_not_logged_as_never_retrieved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host, began, may_fail = SimulatedHost(settings=KEPT), asyncio.Event(), asyncio.Event()

    async def fail(messages: Any, tools: Any) -> Any:
        raise ValueError("of the child")

    async def fail_later(messages: Any, tools: Any) -> Any:
        began.set()
        await may_fail.wait()
        raise ValueError("of a run whose caller has left")

    child = Agent(name="child", model=fail)

    @tool(effect="idempotent")
    async def ask() -> str:
        return str((await current_call().run(child, "go")).output)

    @tool(effect="pure", on_error="raise")
    async def raise_error() -> None:
        raise ValueError("of a call")

    left = asyncio.create_task(host.executor.run(Agent(name="left", model=fail_later), "go", run_id="left"))
    await began.wait()
    left.cancel()
    await asyncio.wait([left])
    asks = tool_reply(call("1", "ask"))
    await host.executor.run(Agent(name="a", model=ScriptedModel(asks, "done"), tools=[ask]), "go", run_id="r")
    both = tool_reply(call("1", "raise_error"), call("2", "raise_error"))
    with fails_with(ToolFailed):
        await host.executor.run(Agent(name="b", model=ScriptedModel(both), tools=[raise_error]), "go", run_id="s")
    may_fail.set()
    await let_others_work()
    assert host.executor.active_run_ids == frozenset()
    gc.collect()
    assert "never retrieved" not in caplog.text
