"""App.get and App.list: stored runs, read from any process."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.cli.modules import approving
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Reply, Retry, RunWaiting, ToolCall, Usage, WorkerSettings, tool
from holdfast.adapters.pydantic_ai import durable
from holdfast.checkpoint.errors import InvalidCursor, RunNotFound
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.workers import WorkerIdentity, this_process
from holdfast.core.errors import DefinitionError, RunFailed
from holdfast.runtime.reading.run_summary import describe_run
from holdfast.runtime.reading.run_views import make_filter
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

IDLE = WorkerSettings(take_runs=False)
WORKER = WorkerIdentity(worker_id="w1", process=this_process())


@tool
def pay(amount: int) -> str:
    return f"paid {amount}"


async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
    usage = Usage(input_tokens=10, output_tokens=5)
    if len(messages) > 1:
        return Reply(text="done", usage=usage)
    return Reply(tool_calls=[ToolCall(id="c1", name="pay", arguments={"amount": 3})], usage=usage)


async def broken(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
    raise ValueError("no such model")


payer = Agent(name="payer", model=model, tools=[pay])
failing = Agent(name="failing", model=broken)


async def test_a_finished_run_has_its_identity_its_usage_and_its_output() -> None:
    async with App([payer], MemoryStore(), worker=IDLE) as app:
        await app.submit(payer, "pay", run_id="r1", caller_id="me", labels={"team": "a"})
        queued = await app.get("r1")
        assert (queued.status, queued.description, queued.pending_calls) == (RunStatus.QUEUED, "ready for a worker", ())
        await app.resume("r1")
        run = await app.get("r1")
        assert (run.status, run.agent, run.caller, run.labels) == (RunStatus.DONE, "payer", "me", {"team": "a"})
        assert (run.steps, run.usage.total_tokens, run.output, run.error) == (2, 30, "done", None)
        assert (run.description[:22], run.prompt, run.parent, run.owner) == (
            "finished after 2 steps",
            "pay",
            None,
            None,
        )
        assert run.created_at <= run.updated_at < run.expires_at  # type: ignore[operator]


async def test_the_calls_of_a_run_that_failed_are_counted() -> None:
    @tool
    def refund() -> str:
        raise ValueError("no money")

    model = ScriptedModel(tool_reply(call("1", "pay", amount=3), call("2", "refund"), call("3", "pay", amount=4)), "ok")
    async with App([Agent(name="a", model=model, tools=[pay, refund])], MemoryStore(), worker=IDLE) as app:
        await app.run("a", "go", run_id="r")
        assert (await app.get("r")).failed_calls == 1


async def test_a_failed_run_has_its_error() -> None:
    async with App([failing], MemoryStore(), worker=IDLE) as app:
        await app.submit(failing, "go", run_id="r1")
        with fails_with(ValueError, match="no such model"):
            await app.resume("r1")
        run = await app.get("r1")
        assert (run.status, run.output) == (RunStatus.FAILED, None)
        assert "no such model" in (run.error or "")
        with pytest.raises(RunFailed):
            await app.result("r1")


async def test_a_waiting_run_says_which_calls_wait_for_whom() -> None:
    agent = durable(approving.agent)
    store = MemoryStore()
    async with App([agent], store, worker=IDLE) as app:
        await app.submit(agent, "book", run_id="r1")
        with pytest.raises(RunWaiting):
            await app.resume("r1")
        run = await app.get("r1")
        assert (run.status, run.reason) == (RunStatus.WAITING, "approval of pay (c3), approval of pay (c4)")
        assert [(call.call_id, call.tool, call.arguments, call.state) for call in run.pending_calls] == [
            ("c3", "pay", {"amount": 40}, "needs approval"),
            ("c4", "pay", {"amount": 5}, "needs approval"),
        ]
        with pytest.raises(RunNotFound):
            await app.get("unknown")


async def test_a_page_has_the_newest_runs_and_the_cursor_continues() -> None:
    async with App([payer], MemoryStore(), worker=IDLE) as app:
        for number in range(5):
            await app.submit(payer, "pay", run_id=f"r{number}")
        first = await app.list(limit=2)
        assert [run.run_id for run in first.runs] == ["r4", "r3"]
        await app.submit(payer, "pay", run_id="r5")
        second = await app.list(limit=2, cursor=first.cursor)
        assert [run.run_id for run in second.runs] == ["r2", "r1"]
        last = await app.list(limit=2, cursor=second.cursor)
        assert ([run.run_id for run in last.runs], last.cursor) == (["r0"], None)
        with pytest.raises(InvalidCursor):
            await app.list(cursor="nonsense")


async def test_a_listing_is_filtered_by_everything_that_identifies_a_run() -> None:
    clock = ManualClock()
    async with App([payer, failing], MemoryStore(clock=clock), worker=IDLE) as app:
        start = clock.now()
        await app.submit(payer, "pay", run_id="r1", caller_id="me", labels={"team": "a", "env": "test"})
        await clock.advance(timedelta(hours=1))
        await app.submit(failing, "go", run_id="r2", labels={"team": "b"})
        await clock.advance(timedelta(hours=1))
        await app.submit(payer, "pay", run_id="r3", labels={"team": "a"})
        queries: list[tuple[Any, list[str]]] = [
            ({}, ["r3", "r2", "r1"]),
            ({"agent": "payer"}, ["r3", "r1"]),
            ({"caller": "me"}, ["r1"]),
            ({"parent": "r1"}, []),
            ({"labels": {"team": "a"}}, ["r3", "r1"]),
            ({"labels": {"team": "a", "env": "test"}}, ["r1"]),
            ({"since": start + timedelta(minutes=30)}, ["r3", "r2"]),
            ({"since": start, "until": start + timedelta(hours=2)}, ["r2", "r1"]),
            ({"status": "queued", "labels": {"team": "b"}}, ["r2"]),
            ({"status": [RunStatus.DONE, "failed"]}, []),
        ]
        for query, expected in queries:
            assert [run.run_id for run in (await app.list(**query)).runs] == expected, query


async def test_a_running_run_whose_owner_is_dead_is_listed_as_interrupted() -> None:
    store = MemoryStore()
    async with App([payer], store, worker=IDLE) as app:
        for number in range(4):
            await app.submit(payer, "pay", run_id=f"r{number}")
        await store.register_worker(WORKER)
        await store.claim("r0", "w1")
        await store.claim("r1", "dead")
        claim = await store.claim("r2", "w1")
        await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        assert [run.run_id for run in (await app.list(status="running")).runs] == ["r0"]
        page = await app.list(status=["interrupted"], limit=1)
        assert [run.run_id for run in page.runs] == ["r2"]
        page = await app.list(status=["interrupted"], limit=2, cursor=page.cursor)
        assert ([run.run_id for run in page.runs], page.cursor) == (["r1"], None)
        alive, dead = await app.get("r0"), await app.get("r1")
        assert (alive.owner, alive.owner_alive) == ("w1", True)
        assert (dead.owner, dead.owner_alive) == ("dead", False)
        assert dead.description == "worker dead died; ready for another worker"


@pytest.mark.parametrize("failing", ["model", "tool"])
async def test_a_run_that_pauses_before_a_retry_says_until_when(failing: str) -> None:
    store, hour = MemoryStore(), timedelta(hours=1)
    retry = Retry(initial_delay=hour, max_delay=hour, max_elapsed=2 * hour, jitter=0, max_tries=2)

    async def fail(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        raise ConnectionError("refused")

    @tool(name="pay", effect="idempotent", retry=retry)
    async def fail_to_pay(amount: int) -> str:
        raise ConnectionError("refused")

    agent = Agent(name="a", model=fail if failing == "model" else model, tools=[fail_to_pay], retry=retry)
    worker = WorkerSettings(shutdown_timeout=timedelta(0))
    async with App([agent], store, worker=worker) as app:
        before = datetime.now(UTC)
        await app.submit(agent, "pay", run_id="r1")
        while (run := await app.get("r1")).next_retry_at is None:
            await store.wait_for_change(timedelta(seconds=1))
        assert run.next_retry_at >= before + hour - timedelta(milliseconds=1)
        assert (run.status, run.retries, run.retry_error) == (RunStatus.RUNNING, 1, "ConnectionError: refused")
    async with App([agent], store, worker=IDLE) as app:
        assert (await app.get("r1")).next_retry_at is None, "no process pauses any more"


async def test_a_waiting_run_says_what_it_waits_for() -> None:
    store = MemoryStore()
    wake_at = datetime(2999, 1, 1, tzinfo=UTC)
    async with App([payer], store, worker=IDLE) as app:
        await app.submit(payer, "pay", run_id="r1")
        await store.register_worker(WORKER)
        claim = await store.claim("r1", "w1")
        await store.release(claim, Release(status=RunStatus.WAITING, wake_at=wake_at, wake_on=("message",)))
        run = await app.get("r1")
        assert (run.status, run.wake_at, run.description) == (RunStatus.WAITING, wake_at, "waits for mail (message)")


@pytest.mark.parametrize(
    "query",
    [
        {"status": "finished"},
        {"status": 3},
        {"status": "removed"},
        {"agent": payer},
        {"labels": {"team": 1}},
        {"labels": "team=a"},
        {"since": datetime(2026, 1, 1)},
        {"until": 3},
        {"limit": 0},
        {"limit": "50"},
        {"limit": True},
        {"cursor": 3},
        {"agent": "x" * 1_001},
        {"labels": {7: "a"}},
        {"labels": {str(number): "" for number in range(9)}},
        {"labels": {"x" * 1_001: "a"}},
        {"labels": {"team": "x" * 1_001}},
    ],
)
async def test_a_wrong_argument_is_refused(query: Any) -> None:
    async with App([payer], MemoryStore(), worker=IDLE) as app:
        with pytest.raises(DefinitionError):
            await app.list(**query)


async def test_arguments_at_their_bounds_are_accepted() -> None:
    labels = {**{"x" * 1_000 + str(number): "" for number in range(8)}, "holdfast.type": "conversation"}
    labels = {name[-1_000:]: "x" * 1_000 for name in labels}
    async with App([payer], MemoryStore(), worker=IDLE) as app:
        assert (await app.list(limit=1, agent="x" * 1_000, labels=labels)).runs == ()


@pytest.mark.parametrize(
    ("status", "stored", "wanted"),
    [
        (None, None, None),
        ("done", {RunStatus.DONE}, {RunStatus.DONE}),
        (RunStatus.PARKED, {RunStatus.PARKED}, {RunStatus.PARKED}),
        (["interrupted", "done"], {RunStatus.INTERRUPTED, RunStatus.DONE, RunStatus.RUNNING},
         {RunStatus.INTERRUPTED, RunStatus.DONE}),
    ],
)  # fmt: skip
def test_a_run_that_is_stored_as_running_may_be_interrupted(status: Any, stored: Any, wanted: Any) -> None:
    run_filter, found = make_filter(status=status)
    assert (run_filter.statuses, found) == (stored, wanted)


async def test_a_run_with_one_waiting_call_names_no_further_calls() -> None:
    @tool(approval=True)
    async def book(room: int) -> str:
        return "booked"

    model = ScriptedModel(tool_reply(call("1", "book", room=7)), "done")
    async with App([Agent(name="a", model=model, tools=[book])], MemoryStore()) as app:
        with pytest.raises(RunWaiting) as waiting:
            await app.run("a", "go", run_id="r")
        [run] = (await app.list()).runs
    text = "".join(piece.text for piece in describe_run(run, waiting.value.calls, run.updated_at))
    assert text.startswith("waits for approval of book(room=7)")
    assert "more call" not in text
