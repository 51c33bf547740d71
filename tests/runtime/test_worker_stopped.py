"""The runs that recovery has claimed are independent: what stops recovery, or fails beside it, ends none of them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from tests.probe_store import ProbeStore

from holdfast import Agent, App, CheckpointSettings, Reply, Retention, WorkerSettings
from holdfast.checkpoint.errors import CheckpointError, RunDamaged, StoreClosed, StoreUnavailable
from holdfast.checkpoint.record import NewRun, Release, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import WorkerIdentity, this_process
from holdfast.core import Message, ToolSchema
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore


class Gated:
    """A model that answers at once, but for prompts that begin with `long`: those wait for the gate."""

    def __init__(self) -> None:
        self.gate, self.asked = asyncio.Event(), asyncio.Event()

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if getattr(messages[0], "text", "").startswith("long"):
            self.asked.set()
            await self.gate.wait()
        return Reply(text="ok")


async def _record(store: RunStore, run_id: str) -> RunRecord:
    return (await store.load(run_id)).record


async def _until(store: RunStore, run_id: str, status: RunStatus) -> RunRecord:
    async with asyncio.timeout(60):
        while (record := await _record(store, run_id)).status is not status:
            await store.wait_for_change(timedelta(seconds=1))
    return record


async def test_a_store_that_fails_for_a_moment_ends_no_run_in_progress() -> None:
    model = Gated()
    agent = Agent(name="agent", model=model)
    probe = ProbeStore(MemoryStore())
    async with App([agent], probe, worker=False) as app:
        await app.submit(agent, "long", run_id="long")
        await app.submit(agent, "short", run_id="short")
        asked = 0

        async def fail_once(method: str) -> None:
            nonlocal asked
            asked += method == "claim_next"
            if method == "claim_next" and asked == 2:
                model.gate.set()
                raise StoreUnavailable("the connection was lost")

        probe.before = fail_once
        report = await app.recover()
    assert asked > 2
    assert {"long", "short"} == set(report.statuses)
    assert (await _record(probe.inner, "long")).status is RunStatus.DONE


async def test_a_recovery_claims_no_further_run_once_its_app_shuts_down() -> None:
    model, probe = Gated(), ProbeStore(MemoryStore())
    agent = Agent(name="agent", model=model)
    async with App([agent], probe, worker=WorkerSettings(take_runs=False, concurrency=1)) as app:
        for run_id in ("long", "short"):
            await app.submit(agent, run_id, run_id=run_id)
        recovering = asyncio.create_task(app.recover())
        await model.asked.wait()
        claims = probe.calls.count("claim_next")
        closing = asyncio.create_task(app.shutdown())
        await asyncio.sleep(0)
        model.gate.set()
        assert set((await recovering).statuses) == {"long"}
        await closing
    assert probe.calls.count("claim_next") == claims
    assert (await _record(probe.inner, "short")).strikes == 0


async def test_a_run_that_is_loaded_while_its_app_shuts_down_is_left_without_a_strike() -> None:
    probe = ProbeStore(MemoryStore())
    agent = Agent(name="agent", model=Gated())
    loads, loading = asyncio.Event(), asyncio.Event()

    async def hold(method: str) -> None:
        if method == "load" and "claim_next" in probe.calls:
            loads.set()
            await loading.wait()

    async with App([agent], probe, worker=WorkerSettings(take_runs=False)) as app:
        await app.submit(agent, "short", run_id="short")
        probe.before = hold
        recovering = asyncio.create_task(app.recover())
        await loads.wait()
        closing = asyncio.create_task(app.shutdown())
        await asyncio.sleep(0)
        loading.set()
        report = await recovering
        await closing
    assert report.reasons == {"short": "this process is shutting down"}
    record = await _record(probe.inner, "short")
    assert (record.status, record.strikes, record.not_before <= record.updated_at) == (RunStatus.INTERRUPTED, 0, True)


async def test_a_store_that_closes_before_the_worker_waits_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(name="agent", model=Gated())
    probe = ProbeStore(MemoryStore())
    async with App([agent], probe, worker=False) as app:
        closed = False

        async def close_first(method: str) -> None:
            nonlocal closed
            closed = closed or (method == "wait_for_change" and "claim_next" in probe.calls)
            if closed and method in ("wait_for_change", "claim_next"):
                raise StoreClosed("closed")

        probe.before = close_first
        await app.serve()
        assert closed
        probe.before = None
    assert "could not wait for a change" not in caplog.text


@pytest.mark.parametrize("by", ["recover", "serve"])
async def test_runs_continue_when_who_waits_for_them_is_cancelled(by: str) -> None:
    model = Gated()
    agent = Agent(name="agent", model=model)
    store = MemoryStore()
    async with App([agent], store, worker=False) as app:
        await app.submit(agent, "long", run_id="run")
        driving = asyncio.create_task(app.recover() if by == "recover" else app.serve())
        await model.asked.wait()
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        left = await _record(store, "run")
        assert (left.status, left.owner_alive) == (RunStatus.RUNNING, True)
        model.gate.set()
        assert (await app.result("run")).output == "ok"
        assert (await _record(store, "run")).token == left.token


async def test_a_worker_whose_store_gives_no_signs_looks_by_itself_now_and_then() -> None:
    agent = Agent(name="agent", model=Gated())
    probe = ProbeStore(MemoryStore())
    refused = asyncio.Event()

    async def refuse(method: str) -> None:
        if method == "wait_for_change":
            if "claim_next" in probe.calls:
                refused.set()
            raise StoreUnavailable("no connection to listen on")

    probe.before = refuse
    async with App([agent], probe, worker=False) as app:
        serving = asyncio.create_task(app.serve())
        await refused.wait()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert probe.calls.count("claim_next") < 10
        await app.submit(agent, "short", run_id="run")
        await _until(probe.inner, "run", RunStatus.DONE)
    await serving


async def test_a_worker_that_is_cancelled_while_it_waits_for_a_sign_leaves_nothing_behind() -> None:
    probe = ProbeStore(MemoryStore())
    waiting, claiming = asyncio.Semaphore(0), asyncio.Event()

    async def note(method: str) -> None:
        if method == "claim_next":
            claiming.set()
        if method == "wait_for_change":
            waiting.release()
            await asyncio.Event().wait()

    probe.before = note
    async with App([Agent(name="agent", model=Gated())], probe, worker=False) as app:
        await waiting.acquire()  # the one wait of the process, for the janitor
        before = asyncio.all_tasks()
        serving = asyncio.create_task(app.serve())
        await claiming.wait()
        serving.cancel()
        await asyncio.wait([serving])
        assert asyncio.all_tasks() == before
        assert waiting.locked()  # the worker waited there too


def test_an_event_loop_that_ends_leaves_the_runs(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'runs.db'}"

    async def host() -> None:
        model = Gated()
        agent = Agent(name="agent", model=model)
        app = App([agent], url, worker=False)
        await app.__aenter__()
        await app.submit(agent, "long", run_id="run")
        serving = asyncio.create_task(app.serve())
        await model.asked.wait()
        assert not serving.done()
        # It returns with all of it in progress, and asyncio cancels every task there is.

    async def status() -> RunStatus:
        store = SqliteStore(tmp_path / "runs.db")
        await store.open()
        found = await _record(store, "run")
        await store.close()
        return found.status

    asyncio.run(host())
    assert asyncio.run(status()) is RunStatus.INTERRUPTED


async def test_serve_returns_although_the_app_closes_within_a_claim() -> None:
    store, claiming = ProbeStore(MemoryStore()), asyncio.Event()

    async def hang(method: str) -> None:
        if method == "claim_next":
            claiming.set()
            await asyncio.Event().wait()

    async with App([Agent(name="agent", model=Gated())], store, worker=False) as app:
        store.before = hang
        serving = asyncio.create_task(app.serve())
        await claiming.wait()
    await serving


Start = Callable[[App], Awaitable[object]]

_STARTS: dict[str, Start] = {
    "resume": lambda app: app.resume("run"),
    "run": lambda app: app.run("agent", "short", run_id="run"),
    "recover": lambda app: app.recover(),
    "cancel": lambda app: app.cancel("run"),
}


@pytest.mark.parametrize("start", _STARTS)
@pytest.mark.parametrize("at", ["claim", "load"])
async def test_a_caller_that_is_cancelled_before_the_run_is_driven_keeps_no_claim(start: str, at: str) -> None:
    agent = Agent(name="agent", model=Gated())
    probe = ProbeStore(MemoryStore())
    reached = asyncio.Event()
    async with App([agent], probe, worker=False) as app:
        await app.submit(agent, "short", run_id="run")
        claimed = False

        async def hold(method: str) -> None:
            nonlocal claimed
            first, claimed = method in ("claim", "claim_next") and not claimed, claimed or method.startswith("claim")
            if first if at == "claim" else claimed and method in ("load", "get_record"):
                reached.set()
                await asyncio.sleep(0 if at == "claim" else 3600)

        probe.before = hold
        task = asyncio.ensure_future(_STARTS[start](app))
        await reached.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        probe.before = None
        # The claim is taken in the store, and then given back.
        left = await _until(probe.inner, "run", RunStatus.INTERRUPTED)
        assert left.strikes == 0
        assert len((await app.recover()).statuses) == 1


async def test_a_parked_run_that_cannot_be_loaded_by_hand_stays_parked() -> None:
    agent = Agent(name="agent", model=Gated())
    probe = ProbeStore(MemoryStore())
    async with App([agent], probe, worker=False) as app:
        await app.submit(agent, "short", run_id="run")
        claim = await probe.inner.claim("run", app._stored.checkpoints.worker_id)
        await probe.inner.release(claim, Release(status=RunStatus.PARKED, reason="approval"))

        async def damaged_once_claimed(method: str) -> None:
            if method == "load" and "claim" in probe.calls:
                raise RunDamaged("run", "a bit was flipped")

        probe.before = damaged_once_claimed
        with pytest.raises(CheckpointError):
            await app.resume("run")
        left = await _record(probe.inner, "run")
        assert (left.status, left.reason) == (RunStatus.PARKED, "approval")
        probe.before = None
        assert (await app.resume("run")).output == "ok"


@pytest.mark.parametrize("cancelled", [False, True], ids=["fails", "is cancelled"])
async def test_a_resume_by_hand_that_does_not_come_about_revokes_no_cancel(cancelled: bool) -> None:
    agent = Agent(name="agent", model=Gated())
    probe = ProbeStore(MemoryStore())
    reached = asyncio.Event()
    async with App(
        [agent],
        probe,
        worker=False,
        checkpoint=CheckpointSettings(retention=Retention(cancelled=timedelta(hours=1))),
    ) as app:
        await app.submit(agent, "short", run_id="run")
        await probe.inner.request_cancel("run")

        async def lost_once_claimed(method: str) -> None:
            if method == "load" and probe.calls.count("claim") == 2:
                reached.set()
                await asyncio.sleep(3600 if cancelled else 0)
                raise StoreUnavailable("the connection was lost")

        probe.before = lost_once_claimed
        resuming = asyncio.create_task(app.resume("run"))
        await reached.wait()
        if cancelled:
            resuming.cancel()
        await asyncio.wait([resuming])
        left = await _until(probe.inner, "run", RunStatus.CANCELLED)
        assert left.expires_at is not None
        assert left.expires_at - left.updated_at == timedelta(hours=1)
        probe.before = None
        assert not (await app.recover()).statuses
        assert (await app.resume("run")).output == "ok"


async def test_one_run_that_cannot_be_read_is_set_aside_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent(name="agent", model=Gated())
    probe = ProbeStore(MemoryStore())
    async with App([agent], probe, worker=WorkerSettings(take_runs=False, concurrency=1)) as app:
        for run_id in ("first", "second", "third"):
            await app.submit(agent, "short", run_id=run_id)
        probe.fail("load", KeyError("of a codec of one's own"))
        report = await app.recover()
    assert sorted(report.statuses.values()) == ["completed", "completed", "damaged"]
    (broken,) = report.reasons
    left = await _record(probe.inner, broken)
    assert left.status is RunStatus.PARKED
    assert "KeyError" in left.reason
    [parked] = [record.__dict__ for record in caplog.records if getattr(record, "event", "") == "parked"]
    assert {name: parked[name] for name in ("run_id", "agent", "step", "reason")} == {
        "run_id": broken, "agent": "", "step": 0, "reason": left.reason,
    }  # fmt: skip


async def test_the_runs_of_a_process_that_still_seems_alive_are_waited_for_at_boot(tmp_path: Path) -> None:
    agent = Agent(name="agent", model=Gated())
    dead_after = timedelta(seconds=1)
    async with App([agent], f"sqlite:{tmp_path / 'runs.db'}", worker=False) as app:
        await app.submit(agent, "short", run_id="run")
    store = SqliteStore(tmp_path / "runs.db", lease_timeout=dead_after)
    await store.open()
    # A container that was killed just now: its process cannot be seen from here, and its heartbeat is fresh.
    elsewhere = msgspec.structs.replace(this_process(), host="another container")
    await store.register_worker(WorkerIdentity(worker_id="killed", process=elsewhere))
    await store.claim("run", "killed")
    await store.close()
    async with App([agent], SqliteStore(tmp_path / "runs.db", lease_timeout=dead_after)) as app:
        async with asyncio.timeout(60):
            assert (await app.result("run")).output == "ok"


async def test_a_child_that_is_left_to_its_parked_parent_is_not_looked_for_again_and_again() -> None:
    agent = Agent(name="agent", model=Gated())
    probe = ProbeStore(MemoryStore())
    async with App([agent], probe, worker=False) as app:
        await app.submit(agent, "short", run_id="parent")
        claim = await probe.inner.claim("parent", app._stored.checkpoints.worker_id)
        await probe.inner.release(claim, Release(status=RunStatus.PARKED, reason="approval"))
        stored = await probe.inner.load("parent")
        child = NewRun(
            run_id="child", agent_name="agent", parent_run_id="parent", info=stored.record.info, progress=b"{}",
            entries=stored.entries,
        )  # fmt: skip
        await probe.inner.create(child)
    looking = ProbeStore(probe.inner)
    async with App([agent], looking):
        while "claim_next" not in looking.calls:  # noqa: ASYNC110 - the worker has no event for it
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert looking.calls.count("claim_next") < 5
    assert (await _record(probe.inner, "child")).is_interrupted
