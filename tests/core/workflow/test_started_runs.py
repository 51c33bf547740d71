"""Runs that workflows and tools start in the background."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Approve, ToolResult, User, tool
from holdfast.checkpoint.errors import ClaimLost, StorePermissionError, StoreReplaced, StoreUnavailable
from holdfast.checkpoint.record import Mail, NewRun, Receipt, RunStatus, StoredRun
from holdfast.checkpoint.store import RECORD_ONLY
from holdfast.checkpoint.workers import Claim
from holdfast.core import Tool
from holdfast.core.run.mail import ENDED_TOPIC
from holdfast.errors import RunCancelled, RunNotFound
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.workflows import (
    StartedRun,
    StepFailed,
    StepTimeout,
    background_tools,
    first,
    run_agent,
    start,
    wait_for,
    workflow,
)

TIMEOUT = 60


@workflow
async def double(number: int) -> int:
    return number * 2


@workflow
async def echo(text: str) -> str:
    return text


@workflow
async def wait_long(name: str) -> str:
    return str(await wait_for(name))


@workflow
async def fail(text: str) -> str:
    raise ValueError(text)


@workflow
async def gather_doubles(count: int) -> list[int]:
    started = [await start(double, inputs={"number": number}) for number in range(count)]
    return list(await asyncio.gather(*(each.result() for each in started)))


@workflow
async def relay(text: str) -> str:
    gate = await start(wait_long, inputs={"name": text})
    return str(await gate.result())


@workflow
async def relay_all(count: int) -> list[str]:
    return list(await asyncio.gather(*(run_agent(relay, inputs={"text": f"go{number}"}) for number in range(count))))


@pytest.fixture(params=["memory:", "sqlite:runs.db"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(request.param)


async def wait_for_status(app: App, run_id: str, *statuses: str) -> None:
    async for event in app.watch(status=list(statuses)):
        if event.run_id == run_id:
            return


@pytest.mark.asyncio
async def test_a_workflow_waits_for_all_runs_that_it_has_started(url: str) -> None:
    async with asyncio.timeout(TIMEOUT), App([gather_doubles, double], url) as app:
        result = await app.run(gather_doubles, inputs={"count": 5}, run_id="r")
        assert result.output == [0, 2, 4, 6, 8]
        children = (await app.list(parent="r")).runs
        assert [child.status for child in children] == [RunStatus.DONE] * 5


@pytest.mark.asyncio
async def test_a_child_ends_with_its_parent_and_a_detached_run_does_not(url: str) -> None:
    @workflow
    async def leave() -> list[str]:
        child = await start(wait_long, "child")
        own = await start(wait_long, "detached", detached=True)
        return [child.run_id, own.run_id]

    async with asyncio.timeout(TIMEOUT), App([leave, wait_long], url) as app:
        child, detached = (await app.run(leave, run_id="r")).output
        await app.get(child)
        with pytest.raises(RunCancelled):
            await app.result(child, through_waits=True)
        await app.signal(detached, "detached", "still here")
        assert (await app.result(detached, through_waits=True)).output == "still here"


@pytest.mark.asyncio
async def test_a_failed_run_is_a_failed_step_and_a_late_one_a_timeout(url: str) -> None:
    @workflow
    async def ask() -> list[str]:
        found = []
        for started in (await start("fail", "no luck"), await start("wait_long", "never")):
            try:
                await started.result(timeout=timedelta(seconds=0.1))
            except StepTimeout:
                found.append("late")
            except StepFailed as error:
                found.append(error.message)
        return found

    async with asyncio.timeout(TIMEOUT), App([ask, fail, wait_long], url) as app:
        [failed, late] = (await app.run(ask)).output
        assert late == "late"
        assert "no luck" in failed or failed == "late"


@pytest.mark.asyncio
async def test_a_parent_sends_to_a_run_reads_its_status_and_cancels_it(url: str) -> None:
    @workflow
    async def control() -> list[str]:
        child = await start(wait_long, "x")
        before = await child.status()
        await child.cancel()
        try:
            await child.result()
        except StepFailed as error:
            return [before.value, error.type_name]
        return []

    async with asyncio.timeout(TIMEOUT), App([control, wait_long], url) as app:
        before, error = (await app.run(control)).output
        assert before in ("queued", "running", "waiting")
        assert error == "RunCancelled"


@pytest.mark.asyncio
async def test_the_first_of_several_started_runs_wins(url: str) -> None:
    @workflow
    async def race() -> str:
        slow, fast = await start(wait_long, "slow"), await start(double, inputs={"number": 4})
        winner, value = await first(slow=slow.result(), fast=fast.result())
        return f"{winner} {value}"

    async with asyncio.timeout(TIMEOUT), App([race, wait_long, double], url) as app:
        assert (await app.run(race)).output == "fast 8"


@pytest.mark.asyncio
async def test_a_parent_that_waits_for_a_run_holds_no_claim_and_is_woken_by_its_end(url: str) -> None:
    @workflow
    async def hold() -> str:
        return await (await start(wait_long, "go")).result()

    async with asyncio.timeout(TIMEOUT), App([hold, wait_long], url) as app:
        await app.submit(hold, run_id="r")
        await wait_for_status(app, "r", "waiting")
        [child] = (await app.list(parent="r")).runs
        waiting = await app.get("r")
        assert f"waits for the end of wait_long {child.run_id}" in waiting.description
        assert [call.state for call in waiting.pending_calls] == ["waiting"]
        await wait_for_status(app, child.run_id, "waiting")
        await app.signal(child.run_id, "go", "ahead")
        assert (await app.result("r")).output == "ahead"


@pytest.mark.asyncio
async def test_a_cancel_of_the_parent_cancels_children_that_wait_or_are_queued(url: str) -> None:
    @workflow
    async def hold() -> str:
        await start(wait_long, "first")
        return await (await start(wait_long, "second")).result()

    async with asyncio.timeout(TIMEOUT), App([hold, wait_long], url) as app:
        await app.submit(hold, run_id="r")
        await wait_for_status(app, "r", "waiting")
        await app.cancel("r")
        children = (await app.list(parent="r")).runs
        assert len(children) == 2
        for child in children:
            with pytest.raises(RunCancelled):
                await app.result(child.run_id, through_waits=True)


@pytest.mark.asyncio
async def test_a_tool_starts_a_run_and_is_called_again_when_it_has_ended(url: str) -> None:
    calls: list[str] = []

    @tool(effect="idempotent")
    async def delegate(number: int) -> int:
        calls.append("called")
        started: StartedRun[Any] = await start("double", inputs={"number": number})
        return int(await started.result())

    @workflow
    async def outer() -> int:
        return int(await delegate(21))

    async with asyncio.timeout(TIMEOUT), App([outer, double], url) as app:
        assert (await app.run(outer, run_id="r")).output == 42
        assert len((await app.list(parent="r")).runs) == 1
        assert len(calls) >= 1


@pytest.mark.asyncio
async def test_a_removed_parent_takes_its_children_and_leaves_detached_runs(url: str) -> None:
    @workflow
    async def leave() -> list[str]:
        child, own = await start(double, inputs={"number": 1}), await start(wait_long, "x", detached=True)
        await child.result()
        return [child.run_id, own.run_id]

    async with asyncio.timeout(TIMEOUT), App([leave, double, wait_long], url) as app:
        child, detached = (await app.run(leave, run_id="r")).output
        await app.open_store.remove("r")
        with pytest.raises(RunNotFound):
            await app.get(child)
        assert (await app.get(detached)).status is not RunStatus.CANCELLED


@pytest.mark.asyncio
async def test_usage_of_a_started_run_counts_once_however_often_its_result_is_read(url: str) -> None:
    @tool(effect="pure")
    async def look() -> str:
        return "seen"

    @workflow
    async def worker(number: int) -> str:
        return str(await look())

    @workflow
    async def ask() -> str:
        started = await start(worker, inputs={"number": 1})
        await started.result()
        return await started.result()

    async with asyncio.timeout(TIMEOUT), App([ask, worker], url) as app:
        result = await app.run(ask)
        assert result.usage.tool_calls == 4  # three steps of its own, and one of the child


async def pay_back(euro: int) -> str:
    """Refund a customer."""
    return f"refunded {euro}"


def find_task_ids(messages: Sequence[Any]) -> list[str]:
    return [str(each.content) for each in messages if isinstance(each, ToolResult) and each.tool == "start_task"]


@pytest.mark.asyncio
async def test_a_conversation_stays_open_while_a_refund_waits_for_approval(url: str) -> None:
    refund = Tool(pay_back, name="refund", approval=True)
    clerk = Agent(name="clerk", model=ScriptedModel(tool_reply(call("1", "refund", euro=40)), "paid"), tools=[refund])
    model = ScriptedModel(
        tool_reply(call("1", "start_task", agent="clerk", prompt="refund 40 euro")),
        "Your refund is on its way to approval.",
        "We open at nine.",
        "Your refund was paid.",
    )
    desk = Agent(name="desk", model=model, tools=background_tools([clerk]))
    async with asyncio.timeout(TIMEOUT), App([desk, clerk], url) as app:
        chat = app.conversation(desk, "ann")
        assert (await chat.send("Give me 40 euro back")).output == "Your refund is on its way to approval."
        [task] = (await app.list(parent=chat.run_id)).runs
        await wait_for_status(app, task.run_id, "waiting")
        assert (await chat.send("When do you open?")).output == "We open at nine."
        [approval] = await app.pending()
        await app.answer(approval.run_id, approval.call_id, Approve(), by="boss")
        assert (await app.result(task.run_id)).output == "paid"
        assert (await chat.send("And my refund?")).output == "Your refund was paid."
        told = [each.text for each in model.requests[-1] if isinstance(each, User)]
        assert f"Background task {task.run_id.rpartition(':')[2]} (clerk) has ended: done." in told


async def test_a_model_that_misuses_a_task_reads_what_is_wrong() -> None:
    model = ScriptedModel(
        tool_reply(
            call("unknown", "start_task", agent="unknown", prompt="x"),
            call("itself", "start_task", agent="planner", prompt="x"),
            call("none", "wait_for_tasks", task_ids=[]),
            call("below another", "message_task", task_id="1:2", text="hello"),
        ),
        tool_reply(call("first", "start_task", agent="wait_long", prompt="x")),
        tool_reply(call("second", "start_task", agent="wait_long", prompt="y")),
        "done",
    )
    planner = Agent(name="planner", model=model, tools=background_tools([wait_long, "planner"], max_tasks=1))
    async with asyncio.timeout(TIMEOUT), App([planner, wait_long], "memory:") as app:
        result = await app.run(planner, "go")
    errors = {
        each.call_id: str(each.content) for each in result.messages if isinstance(each, ToolResult) and each.error
    }
    assert errors.keys() == {"unknown", "itself", "none", "below another", "second"}
    assert "there is no agent 'unknown': use one of wait_long, planner" in errors["unknown"]
    assert "planner is an ancestor of this task" in errors["itself"]
    assert "give the ids of one or more tasks" in errors["none"]
    assert "there is no task '1:2': list_tasks shows all" in errors["below another"]
    assert "1 tasks have not ended" in errors["second"]


@pytest.mark.asyncio
async def test_a_planner_waits_for_the_first_of_its_tasks_and_reads_its_result(url: str) -> None:
    async def choose(messages: Sequence[Any]) -> Any:
        return tool_reply(call("3", "wait_for_tasks", task_ids=find_task_ids(messages)))

    model = ScriptedModel(
        tool_reply(
            call("1", "start_task", agent="echo", prompt="8"), call("2", "start_task", agent="wait_long", prompt="x")
        ),
        choose,
        tool_reply(call("4", "list_tasks")),
        "eight",
    )
    planner = Agent(name="planner", model=model, tools=background_tools(["echo", wait_long]))
    async with asyncio.timeout(TIMEOUT), App([planner, echo, wait_long], url) as app:
        result = await app.run(planner, "double 4", run_id="r")
        results = {each.tool: each.content for each in result.messages if isinstance(each, ToolResult)}
        assert [each["result"] for each in results["wait_for_tasks"]] == ["8"]
        assert [each["agent"] for each in results["list_tasks"]] == ["echo", "wait_long"]
        assert results["list_tasks"][0].keys() == {"task_id", "agent", "status"}, "it needs no reason"
        [left] = [child for child in (await app.list(parent="r")).runs if child.agent == "wait_long"]
        with pytest.raises(RunCancelled):
            await app.result(left.run_id, through_waits=True)


async def test_a_run_that_waits_for_one_it_has_started_can_be_shown(url: str) -> None:
    @workflow
    async def parent() -> str:
        return str(await (await start(wait_long, "go")).result())

    async with App([parent, wait_long], url) as app:
        await app.submit(parent, run_id="r")
        await wait_for_status(app, "r", "waiting")
        details = await app.get("r")
        assert [(each.kind, each.state) for each in details.pending_calls] == [("run", "waiting")]
        [child] = (await app.list(parent="r")).runs
        await app.signal(child.run_id, "go", "went")
        assert (await app.result("r", through_waits=True)).output == "went"


class Failing(MemoryStore):
    """Raises an error three times when a run creates or sends to the run that it starts."""

    def __init__(self, method: str, error: Exception, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self._method, self._error = method, error
        self.failed_at: list[float] = []

    def _fail(self, method: str, run_id: str) -> None:
        if method == self._method and run_id.startswith("r:") and len(self.failed_at) < 3:
            self.failed_at.append(self._clock.monotonic())
            raise self._error

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        self._fail("create", run.run_id)
        return await super().create(run, worker_id=worker_id, connection=connection)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        self._fail("post", run_id)
        return await super().post(run_id, mail)


@workflow
async def send_hello() -> str:
    run = await start(wait_long, "never")
    await run.send("hello")
    await run.cancel()
    return "sent"


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("create", StorePermissionError("read-only")),
        ("post", StoreReplaced("another file")),
        ("post", StoreUnavailable("try later")),
        ("post", ClaimLost("another", 1, 2)),
        ("post", OSError("the disk is gone")),
    ],
    ids=repr,
)
async def test_an_error_of_the_store_is_no_result_of_a_step_however_long_it_lasts(
    method: str, error: Exception
) -> None:
    clock = ManualClock()
    store = Failing(method, error, clock)
    async with asyncio.timeout(TIMEOUT), App([send_hello, wait_long], store, clock=clock) as app:
        await app.submit(send_hello, run_id="r")
        while (record := (await store.load("r")).record).status is not RunStatus.DONE:
            assert record.strikes == 0 or record.status is RunStatus.RUNNING
            await clock.advance(timedelta(seconds=1))
        assert (await app.result("r")).output == "sent"
    first_at, second_at, third_at = store.failed_at
    assert min(second_at - first_at, third_at - second_at) >= 5


class EndsDuringRead(MemoryStore):
    """The child ends, and its notice reaches the process of the parent, while the parent reads that it has not."""

    def __init__(self) -> None:
        super().__init__()
        self.was_late = False
        self._notified = asyncio.Event()

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id, after=after)
        if run_id == "r" and any(mail.topic.startswith(ENDED_TOPIC) for mail in stored.mail):
            self._notified.set()
        if run_id.startswith("r:") and after == RECORD_ONLY and not self.was_late and not stored.record.is_terminal:
            self.was_late = True
            await self._notified.wait()
        return stored


@tool(effect="idempotent")
async def double_in_background(number: int) -> int:
    return await (await start(double, inputs={"number": number})).result()


@workflow
async def wait_for_double(number: int) -> int:
    return await (await start(double, inputs={"number": number})).result()


@pytest.mark.parametrize("kind", ["workflow", "agent"])
async def test_a_run_that_ends_while_its_parent_asks_for_it_gives_its_result(kind: str) -> None:
    store = EndsDuringRead()
    model = ScriptedModel(tool_reply(call("c1", "double_in_background", number=4)), "eight")
    agent = Agent(name="agent", model=model, tools=[double_in_background])
    async with asyncio.timeout(TIMEOUT), App([wait_for_double, double, agent], store) as app:
        if kind == "workflow":
            assert (await app.run(wait_for_double, inputs={"number": 4}, run_id="r")).output == 8
        else:
            assert (await app.run(agent, "double 4", run_id="r")).output == "eight"
            [result] = [message for message in model.requests[-1] if isinstance(message, ToolResult)]
            assert result.content == 8
    assert store.was_late


async def test_the_end_of_a_started_run_wakes_the_parents_of_the_child_that_has_started_it(url: str) -> None:
    async with asyncio.timeout(TIMEOUT), App([relay_all, relay, wait_long], url) as app:
        await app.submit(relay_all, inputs={"count": 3}, run_id="r")
        await wait_for_status(app, "r", "waiting")
        gates = [run.run_id for run in (await app.list(agent="wait_long")).runs]
        assert len(gates) == 3
        for gate in gates:
            for number in range(3):
                await app.signal(gate, f"go{number}", "opened")
        assert (await app.result("r", through_waits=True)).output == ["opened"] * 3
