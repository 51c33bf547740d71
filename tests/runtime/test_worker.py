"""The worker and the parts beside it, with a clock that a test advances: what is taken, parked, reported and left."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Reply, RunWaiting, User, WorkerSettings, ask_person
from holdfast.batteries.schedule import Schedule
from holdfast.checkpoint.checkpointer import StoreCheckpointer
from holdfast.checkpoint.codec import encode
from holdfast.checkpoint.errors import (
    CheckpointError,
    RecordDecodeError,
    RunBusy,
    RunConflict,
    RunDamaged,
    RunNotClaimable,
    StoreUnavailable,
)
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import Release, RunFilter, RunStatus
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.core.errors import DefinitionError, MissingDefinition, RunCancelled, RunLost, RunParked, Shutdown
from holdfast.core.run.info import RunInfo
from holdfast.core.run.mail import MESSAGE_TOPIC, Mail, encode_message
from holdfast.core.run.messages import ToolCall, ToolResult
from holdfast.core.run.state import Faults, RunState
from holdfast.runtime.janitor import Janitor
from holdfast.runtime.operations.submitting import make_queued_run
from holdfast.runtime.streams.watch import StatusWatch
from holdfast.runtime.worker import RecoveryReport, RecoveryStatus
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock
from holdfast.testing.store_processes.store_under_test import add_worker

AGENT = Agent(name="a", model=ScriptedModel("done"))
SECOND = timedelta(seconds=1)


class Gate:
    """A model whose replies each wait until it is opened."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies) or [Reply(text="done")]
        self.requests: list[list[Any]] = []
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def __call__(self, messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        self.requests.append(list(messages))
        self.reached.set()
        await self.open.wait()
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


async def leave(store: RunStore, run_id: str, release: Release) -> None:
    """Leave a run as a worker does that gives up."""
    claim = await store.claim(run_id, await add_worker(store))
    await store.release(claim, release)


# -- the loop -----------------------------------------------------------------------------------------------------


async def test_a_worker_that_was_stopped_takes_no_further_run() -> None:
    clock = ManualClock()
    store = ProbeStore(MemoryStore(clock=clock))
    async with App([AGENT], store, clock=clock) as app:
        await clock.advance(SECOND)
        assert app._parts is not None
        worker = app._parts.worker
        taking = [worker.is_taking_runs]
        worker.stop()
        assert [*taking, worker.is_taking_runs] == [True, False]
        await clock.advance(SECOND)
        store.calls.clear()
        await app.submit("a", "go", run_id="r")
        await clock.advance(10 * SECOND)
        assert "claim_next" not in store.calls
        assert (await app.get("r")).status is RunStatus.QUEUED


async def test_a_worker_takes_no_more_runs_at_once_than_its_concurrency_and_each_as_one_ends() -> None:
    clock, gate = ManualClock(), Gate()
    settings = WorkerSettings(concurrency=2)
    agent = Agent(name="a", model=gate)
    async with App([agent], MemoryStore(clock=clock), clock=clock, worker=settings) as app:
        for number in range(4):
            await app.submit("a", "go", run_id=f"r{number}")
        await clock.advance(3 * SECOND)
        assert [run.status for run in (await app.list()).runs].count(RunStatus.RUNNING) == 2
        gate.open.set()
        await clock.advance(SECOND / 2)  # a run that ends wakes the loop
        assert {run.status for run in (await app.list()).runs} == {RunStatus.DONE}


@pytest.mark.parametrize("takes_runs", [True, False])
async def test_a_serve_that_is_cancelled_ends_only_a_loop_that_it_has_begun(takes_runs: bool) -> None:
    clock = ManualClock()
    settings = WorkerSettings(take_runs=takes_runs)
    async with App([AGENT], MemoryStore(clock=clock), clock=clock, worker=settings) as app:
        assert app._parts is not None
        worker = app._parts.worker
        for _ in range(2):
            serving = asyncio.create_task(worker.serve())
            await clock.advance(SECOND)
            assert worker.is_taking_runs
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            assert worker.is_taking_runs is takes_runs


async def test_a_loop_that_waits_ends_as_soon_as_it_is_stopped() -> None:
    clock = ManualClock()
    store = ProbeStore(MemoryStore(clock=clock))
    async with App([AGENT], store, clock=clock, worker=WorkerSettings(take_runs=False)) as app:
        assert app._parts is not None
        worker = app._parts.worker
        serving = asyncio.create_task(worker.serve())
        await clock.advance(SECOND / 2)
        polls = store.calls.count("claim_next")
        worker.stop()
        for _ in range(20):
            await asyncio.sleep(0)
        assert serving.done()
        await serving
        assert store.calls.count("claim_next") == polls


async def test_a_loop_that_is_stopped_waits_for_the_runs_in_progress() -> None:
    clock, gate = ManualClock(), Gate()
    settings = WorkerSettings(take_runs=False)
    async with App([Agent(name="a", model=gate)], MemoryStore(clock=clock), clock=clock, worker=settings) as app:
        assert app._parts is not None
        await app.submit("a", "go", run_id="r")
        serving = asyncio.create_task(app._parts.worker.serve())
        await gate.reached.wait()
        app._parts.worker.stop()
        await clock.advance(5 * SECOND)
        assert not serving.done()
        gate.open.set()
        await serving
        assert (await app.get("r")).status is RunStatus.DONE


async def test_a_closed_app_leaves_neither_a_task_nor_a_timer() -> None:
    clock, before = ManualClock(), asyncio.all_tasks()
    store = ProbeStore(MemoryStore(clock=clock))
    async with App([AGENT], store, clock=clock) as app:
        await app.submit("a", "go", run_id="later", not_before=clock.now() + timedelta(days=1))
        await clock.advance(SECOND)
        watching = asyncio.create_task(anext(app.events("later")))
        await watching

        async def hang(method: str) -> None:
            if method == "pending":
                await asyncio.Event().wait()

        store.before = hang
        assert app._parts is not None
        asking = asyncio.create_task(app._parts.health.find_problem())
        await clock.advance(3 * SECOND)
        assert await asking == "the store has not answered within 2 seconds"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert clock.waiting == 0


@pytest.mark.parametrize("max_runs", [1, 3])
async def test_a_worker_with_a_number_of_runs_ends_after_them(max_runs: int) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    settings = WorkerSettings(max_runs=max_runs)
    async with App([AGENT], store, clock=clock, worker=settings) as app:
        for number in range(4):
            await app.submit("a", "go", run_id=f"r{number}")
        serving = asyncio.create_task(app.serve())
        await clock.advance(10 * SECOND)
        await serving
        assert app._parts is not None
        assert not app._parts.worker.is_taking_runs
        assert await app.count(status="done") == max_runs


async def test_recovery_asks_again_a_second_after_an_error_while_runs_are_in_progress() -> None:
    clock, gate = ManualClock(), Gate()
    store = ProbeStore(MemoryStore(clock=clock))
    settings = WorkerSettings(take_runs=False, concurrency=2)
    async with App([Agent(name="a", model=gate)], store, clock=clock, worker=settings) as app:
        await app.submit("a", "go", run_id="r1")
        recovering = asyncio.create_task(app.recover())
        await gate.reached.wait()
        await app.submit("a", "go", run_id="r2")
        gate.open.set()
        report = await recovering
        assert set(report.statuses.values()) == {RecoveryStatus.COMPLETED}
        store.fail("claim_next", StoreUnavailable("away"))
        with pytest.raises(StoreUnavailable, match="away"):
            await app.recover()
        assert str(await app.recover()) == "nothing to recover"


async def test_recovery_takes_further_runs_after_an_error_although_no_other_run_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.runtime.worker.POLL_INTERVAL", timedelta(milliseconds=1))
    first, second, store = Gate(), Gate(), ProbeStore(MemoryStore())
    quick = Agent(name="quick", model=ScriptedModel("done"))
    agents = [Agent(name="a", model=first), Agent(name="b", model=second), quick]
    async with App(agents, store, worker=WorkerSettings(take_runs=False)) as app:
        await app.submit("a", "go", run_id="r1")
        await app.submit("quick", "go", run_id="r0")
        asked = 0

        async def fail_once(method: str) -> None:
            nonlocal asked
            asked += method == "claim_next"
            if method == "claim_next" and asked == 2:
                await app.submit("b", "go", run_id="r2")
                raise StoreUnavailable("away")

        store.before = fail_once
        recovering = asyncio.create_task(app.recover())
        await second.reached.wait()
        first.open.set()
        second.open.set()
        assert set((await recovering).statuses) == {"r0", "r1", "r2"}


def test_a_report_counts_runs_by_status() -> None:
    report = RecoveryReport()
    assert str(report) == "nothing to recover"
    report.statuses["r1"] = RecoveryStatus.FAILED
    assert str(report) == "recovered 1 run: 1 failed"
    report.statuses |= {"r2": RecoveryStatus.COMPLETED, "r3": RecoveryStatus.COMPLETED}
    assert str(report) == "recovered 3 runs: 2 completed, 1 failed"
    assert report.runs_with(RecoveryStatus.COMPLETED) == ["r2", "r3"]


# -- strikes ------------------------------------------------------------------------------------------------------


async def test_the_fourth_claim_without_a_step_parks_a_run_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    async with App([Agent(name="b", model=ScriptedModel("done", "done"))], store, worker=False) as app:
        for strikes, run_id in enumerate(["zero", "one", "two", "three"]):
            await app.submit("b", "go", run_id=run_id)
            await leave(store, run_id, Release(status=RunStatus.INTERRUPTED, strikes=strikes))
        report = await app.recover()
        assert report.runs_with(RecoveryStatus.COMPLETED) == ["zero", "one", "two"]
        assert report.runs_with(RecoveryStatus.PARKED) == ["three"]
        assert report.reasons == {"three": "poison"}
        record = await get_record(store, "three")
        reason = "poison: 3 owners in a row died or gave up in step 1 without finishing it"
        assert (record.status, record.reason) == (RunStatus.PARKED, reason)
        assert [each.message for each in caplog.records if "three" in each.message and reason in each.message]
        assert app._executor is not None
        assert app._executor.metrics.get("b").strikes == 3, "the first claim of a run does not follow another one"
        with pytest.raises(RunParked, match="3 owners in a row"):
            await app.run("b", "go", run_id="three")
        assert (await app.resume("three")).output == "done", "a person may try once more"


@pytest.mark.parametrize(
    ("below", "status"),
    [
        ([], RunStatus.PARKED),
        ([("child", "r", 2)], RunStatus.DONE),
        ([("child", "r", 3)], RunStatus.PARKED),
        ([("child", "r", 3), ("grandchild", "child", 0)], RunStatus.DONE),
        ([("child", "r", 3), ("grandchild", "child", 3)], RunStatus.PARKED),
        ([("child", "another", 0)], RunStatus.PARKED),
    ],
)
async def test_a_run_whose_child_makes_progress_is_not_parked(
    below: list[tuple[str, str, int]], status: RunStatus
) -> None:
    store = MemoryStore()
    async with App([AGENT], store, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        await leave(store, "r", Release(status=RunStatus.INTERRUPTED, strikes=3))
        for run_id, parent, strikes in below:
            info = RunInfo(run_id=run_id, agent_name="of another process", parent_run_id=parent)
            await store.create(make_queued_run(info, Progress(), []))
            await leave(store, run_id, Release(status=RunStatus.INTERRUPTED, strikes=strikes))
        await app.recover()
        assert (await get_record(store, "r")).status is status


@pytest.mark.parametrize(("exit_step", "last"), [(1, "; exit code 7"), (2, "")])
async def test_a_poisoned_run_names_the_calls_in_which_its_owners_died(exit_step: int, last: str) -> None:
    store = MemoryStore()
    async with App([AGENT], store, worker=False) as app:
        state = RunState(faults=Faults(exit_step=exit_step, exit_error="exit code 7"))
        asked = [ToolCall(id="c1", name="look"), ToolCall(id="c2", name="pay"), ToolCall(id="c3", name="send")]
        state.history.extend([User("go"), Reply(tool_calls=asked)])
        state.results["c1"] = ToolResult(call_id="c1", tool="look")
        checkpointer = await app._stored.checkpoints.begin(RunInfo.create(AGENT, "go", run_id="r"))
        await checkpointer.save(state, force=True)
        assert isinstance(checkpointer, StoreCheckpointer)
        assert checkpointer.claim is not None
        await store.release(checkpointer.claim, Release(status=RunStatus.INTERRUPTED, strikes=3))
        await app.recover()
        reason = (await get_record(store, "r")).reason
    calls = "in step 1 while calling pay, send without finishing it"
    assert reason == f"poison: 3 owners in a row died or gave up {calls}{last}"


async def test_a_caller_parks_a_poisoned_run_too() -> None:
    store = MemoryStore()
    async with App([AGENT], store, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        await leave(store, "r", Release(status=RunStatus.INTERRUPTED, strikes=3))
        with pytest.raises(RunParked, match="3 owners in a row"):
            await app.run("a", "go", run_id="r")
        assert (await app.get("r")).status is RunStatus.PARKED


@pytest.mark.parametrize(
    ("error", "status", "stored", "reason"),
    [
        (RunDamaged("r", "x"), "damaged", "parked", "damaged: run r is damaged and was left unchanged: x"),
        (RecordDecodeError("of another type"), "damaged", "parked", "damaged: of another type"),
        (KeyError("x"), "damaged", "parked", "damaged: KeyError: 'x'"),
        (CheckpointError("a newer version"), "interrupted", "interrupted", "a newer version"),
        (RunLost("another worker has it"), "interrupted", "running", ""),
    ],
    ids=repr,
)
async def test_a_run_that_cannot_be_loaded_is_reported_and_the_others_are_executed(
    error: Exception, status: str, stored: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    store = ProbeStore(MemoryStore(clock=clock))
    async with App([AGENT], store, clock=clock, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        await app.submit("a", "go", run_id="fine")
        store.fail("load", error)
        report = await app.recover()
        assert report.statuses == {"r": status, "fine": "completed"}
        assert report.reasons == {"r": reason.removeprefix("damaged: ") or str(error)}
        record = await get_record(store, "r")
        assert (record.status, record.reason) == (stored, reason)
        waits = record.not_before - clock.now()
        assert waits == (MissingDefinition.retry_after if stored == "interrupted" else timedelta(0))
        assert bool(caplog.records) is (stored != "running")


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_run_whose_owner_left_a_cancel_unnoticed_is_cancelled_instead_of_resumed(cancelled: bool) -> None:
    store, model = MemoryStore(), ScriptedModel("done")
    async with App([Agent(name="a", model=model)], store, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        claim = await store.claim("r", await add_worker(store))
        if cancelled:
            await store.request_cancel("r")
        await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        report = await app.recover()
        status = (await get_record(store, "r")).status
    if cancelled:
        assert report.statuses == {"r": RecoveryStatus.INTERRUPTED}
        assert report.reasons == {"r": "run r was cancelled before it was resumed"}
        assert (status, model.requests) == (RunStatus.CANCELLED, [])
    else:
        assert (status, len(model.requests)) == (RunStatus.DONE, 1)


# -- by hand ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [RunStatus.INTERRUPTED, RunStatus.PARKED])
async def test_a_run_that_is_resumed_by_hand_is_not_ended_by_an_earlier_cancel(status: RunStatus) -> None:
    store = MemoryStore()
    async with App([AGENT], store, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        claim = await store.claim("r", await add_worker(store))
        await store.request_cancel("r")
        await store.release(claim, Release(status=status, reason="left"))
        assert (await app.resume("r")).output == "done"
        assert (await get_record(store, "r")).status is RunStatus.DONE


async def test_a_caller_of_a_run_that_was_asked_to_cancel_does_not_revoke_that() -> None:
    model = ScriptedModel("done")
    store = MemoryStore()
    async with App([Agent(name="a", model=model)], store, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        await leave(store, "r", Release(status=RunStatus.INTERRUPTED))
        await store.request_cancel("r")
        with pytest.raises(RunCancelled):
            await app.run("a", "go", run_id="r")
        assert (await get_record(store, "r")).status is RunStatus.CANCELLED
    assert model.requests == []


async def test_a_run_is_requeued_only_if_it_has_stopped() -> None:
    gate, store = Gate(), MemoryStore()
    asks = Agent(
        name="asks", model=ScriptedModel(tool_reply(call("c", "ask_person", question="?")), "x"), tools=[ask_person]
    )
    async with App([Agent(name="a", model=gate), asks], store, worker=False) as app:
        await app.submit("a", "go", run_id="queued")
        await app.requeue("queued")
        assert (await app.get("queued")).status is RunStatus.QUEUED
        running = asyncio.create_task(app.run("a", "go", run_id="r"))
        await gate.reached.wait()
        with pytest.raises(RunBusy, match="r"):
            await app.requeue("r")
        gate.open.set()
        await running
        with pytest.raises(RunNotClaimable):
            await app.requeue("r")
        with pytest.raises(RunWaiting):
            await app.run("asks", "go", run_id="w")
        with pytest.raises(RunNotClaimable):
            await app.requeue("w")
        await app.cancel("w")
        await app.requeue("w")
        assert (await app.get("w")).status is RunStatus.INTERRUPTED
        await leave(store, "queued", Release(status=RunStatus.PARKED, reason="poison", strikes=3))
        await app.requeue("queued")
        record = await get_record(store, "queued")
        assert (record.status, record.strikes) == (RunStatus.INTERRUPTED, 0)


async def test_a_caller_of_a_run_elsewhere_leaves_while_runs_of_its_app_still_end() -> None:
    clock, gate = ManualClock(), Gate()
    store = MemoryStore(clock=clock)
    async with App([Agent(name="a", model=gate)], store, clock=clock, worker=False) as app:
        slow = asyncio.create_task(app.run("a", "go", run_id="slow"))
        await gate.reached.wait()
        await app.submit("a", "go", run_id="elsewhere")
        await store.claim("elsewhere", await add_worker(store))
        waiting = asyncio.create_task(app.run("a", "go", run_id="elsewhere"))
        await clock.advance(SECOND)
        closing = asyncio.create_task(app.shutdown(timedelta(hours=1)))
        await clock.advance(5 * SECOND)
        assert waiting.done()
        with pytest.raises(Shutdown, match="run elsewhere had not ended: this App is shutting down"):
            await waiting
        assert not slow.done()
        gate.open.set()
        await slow
        await closing


async def test_a_caller_does_not_wait_for_the_backoff_of_a_run_and_other_waits_are_kept() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    hour = timedelta(hours=1)
    async with App([AGENT], store, clock=clock, worker=False) as app:
        for run_id in ("backoff", "sleeps"):
            await app.submit("a", "go", run_id=run_id)
        await leave(store, "backoff", Release(status=RunStatus.INTERRUPTED, delay=hour))
        await leave(store, "sleeps", Release(status=RunStatus.WAITING, wake_at=clock.now() + hour))
        running = [asyncio.create_task(app.run("a", "go", run_id=run_id)) for run_id in ("backoff", "sleeps")]
        await clock.advance(SECOND)
        assert [task.done() for task in running] == [True, False]
        await clock.advance(hour - 2 * SECOND)
        assert not running[1].done()
        await clock.advance(2 * SECOND)
        assert [(await task).output for task in running] == ["done", "done"]


# -- the janitor --------------------------------------------------------------------------------------------------


async def test_mail_and_cancels_from_other_processes_reach_a_run_in_progress() -> None:
    clock, gate = ManualClock(), Gate(Reply(text="first"), Reply(text="second"))
    store = MemoryStore(clock=clock)
    async with App([Agent(name="a", model=gate)], store, clock=clock, worker=False) as app:
        running = asyncio.create_task(app.run("a", "go", run_id="r"))
        await gate.reached.wait()
        await store.post("r", Mail(mail_id="m", topic=MESSAGE_TOPIC, body=encode_message("and then?")))
        await clock.advance(2 * SECOND)
        gate.open.set()
        assert (await running).output == "second"
        assert gate.requests[-1][-1] == User("and then?")
        gate.open.clear()
        gate.reached.clear()
        running = asyncio.create_task(app.run("a", "go", run_id="r2"))
        await gate.reached.wait()
        await store.request_cancel("r2")
        await clock.advance(2 * SECOND)
        with pytest.raises(RunCancelled, match="run r2 was cancelled"):
            await running


@pytest.mark.parametrize("counts_runs", [True, False])
async def test_a_janitor_counts_runs_only_for_telemetry(counts_runs: bool) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    async with App([AGENT], store, clock=clock, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        assert app._executor is not None
        services = app._stored
        janitor = Janitor(services.checkpoints, app._executor, services.changes, clock=clock, counts_runs=counts_runs)
        await janitor.tick()
        metrics = app._executor.metrics
        assert metrics.stored_runs == ({("a", "queued"): 1} if counts_runs else {})
        assert [*metrics.queues] == (["a"] if counts_runs else [])


# -- what others see ----------------------------------------------------------------------------------------------


async def test_a_run_that_has_ended_is_seen_once() -> None:
    store = MemoryStore()
    async with App([AGENT], store, worker=False) as app:
        watch = StatusWatch(store, RunFilter())
        await app.submit("a", "go", run_id="r")
        assert [event.status for event in await watch.look()] == ["queued"]
        await app.run("a", "go", run_id="r")
        await app.run("a", "go", run_id="quick")
        seen = [(event.run_id, event.status) for event in await watch.look()]
        assert sorted(seen) == [("quick", "done"), ("r", "done")]
        assert await watch.look() == []


async def test_a_watch_does_not_see_what_had_ended_before_it() -> None:
    store = MemoryStore()
    async with App([AGENT], store, worker=False) as app:
        await app.run("a", "go", run_id="before")
        watch = StatusWatch(store, RunFilter())
        assert await watch.look() == []
        await app.run("a", "go", run_id="after")
        assert [event.run_id for event in await watch.look()] == ["after"]


# -- requests -----------------------------------------------------------------------------------------------------


async def test_a_run_that_was_stored_without_a_digest_is_known_by_its_first_entry() -> None:
    store = MemoryStore()
    async with App([AGENT], store, worker=False) as app:
        info = RunInfo.create(AGENT, "go", run_id="r")
        new = make_queued_run(info, Progress(), [])
        await store.create(msgspec.structs.replace(new, info=encode(msgspec.structs.replace(info, request_digest=""))))
        with pytest.raises(RunConflict):
            await app.run("a", "stop", run_id="r")
        assert (await app.run("a", "go", run_id="r")).output == "done"


def test_a_schedule_needs_a_store_and_has_its_type() -> None:
    schedule = Schedule()
    with pytest.raises(DefinitionError, match="schedule submits runs, and this App has no store"):
        App([AGENT], None, schedule=schedule)
    App([AGENT], MemoryStore(), schedule=schedule)
    wrong: Any = [schedule]
    with pytest.raises(DefinitionError, match="schedule is"):
        App([AGENT], MemoryStore(), schedule=wrong)
