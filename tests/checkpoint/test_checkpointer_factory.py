"""The factory makes one checkpointer per run, and reports why if it cannot."""

import asyncio
import logging
from datetime import timedelta
from typing import Any, Literal

import pytest
from tests.failed_runs import fails_with
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel
from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.checkpointer import StoreCheckpointer
from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.errors import (
    RecordDecodeError,
    RunDamaged,
    RunExists,
    SchemaTooNew,
    StorePermissionError,
    StoreUnavailable,
    UnknownVersion,
)
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import iter_runs
from holdfast.checkpoint.workers import WorkerIdentity
from holdfast.core.agents.agent import Agent
from holdfast.core.errors import DefinitionError, MissingDefinition, NotDurable, RunParked, Shutdown
from holdfast.core.execution.executor import Executor
from holdfast.core.ports import Checkpointer, ChildOutcome, Leave, NullCheckpointer, Ports, Resumption
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, NO_USAGE, MessageCodec, Reply, Usage, User
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd
from holdfast.stores.memory import MemoryStore

AGENT = Agent(name="a", model=ScriptedModel("done"))


class CountingFactory:
    """A host's own factory that counts how often it is asked."""

    def __init__(self, gives: Checkpointer | BaseException | None) -> None:
        self._given = gives
        self.requested: list[RunInfo] = []
        self.closed = False

    async def begin(self, info: RunInfo) -> Checkpointer | None:
        self.requested.append(info)
        if isinstance(self._given, BaseException):
            raise self._given
        return self._given

    async def attach_child(self, info: RunInfo, codec: MessageCodec) -> Resumption | ChildOutcome | None:
        return None

    async def cancel_children(self, run_id: str) -> None:
        return

    async def close(self, *, keep_claims: bool = False) -> None:
        self.closed = True


# -- 4: no store ------------------------------------------------------------------------------------------------------


async def test_a_factory_over_no_store_gives_handles_that_do_nothing() -> None:
    checkpoints = StoreCheckpoints(None)
    await checkpoints.open()
    info = RunInfo(run_id="r", agent_name="a")
    assert isinstance(await checkpoints.begin(info), NullCheckpointer)
    assert await checkpoints.attach_child(info, NATIVE_CODEC) is None
    await checkpoints.cancel_children("r")
    await checkpoints.close()


@pytest.mark.parametrize("require_durability", [False, True])
async def test_runs_of_a_factory_over_no_store_end_without_a_warning(
    caplog: pytest.LogCaptureFixture, require_durability: bool
) -> None:
    executor = Executor(Ports(checkpoints=StoreCheckpoints(None)), require_durability=require_durability)
    for _ in range(2):
        assert (await executor.run(AGENT, "go")).output == "done"
    await executor.shutdown()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_the_store_of_a_factory_without_one_is_an_error_that_says_so() -> None:
    checkpoints = StoreCheckpoints(None)
    with pytest.raises(DefinitionError, match="have no store"):
        _ = checkpoints.store
    with pytest.raises(DefinitionError, match="have no store"):
        _ = checkpoints.worker_id


class OriginalHandle(NullCheckpointer):
    """A host's handle with the three methods of the original."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def save(self, state: RunState, *, force: bool = False) -> None:
        self.calls.append("save")

    async def complete(self, output: Any, usage: Usage) -> bool:
        self.calls.append(f"complete {output}")
        return True

    async def fail(self, error: BaseException) -> None:
        self.calls.append(f"fail {error}")


async def test_a_handle_that_overrides_save_complete_and_fail_is_enough() -> None:
    async def broken(messages: Any, tools: Any) -> Any:
        raise ValueError("broken")

    done, failed = OriginalHandle(), OriginalHandle()
    await Executor(Ports(checkpoints=CountingFactory(done))).run(AGENT, "go")
    with fails_with(ValueError, match="broken"):
        await Executor(Ports(checkpoints=CountingFactory(failed))).run(Agent(name="a", model=broken), "go")
    assert (done.calls[0], done.calls[-1]) == ("save", "complete done")
    assert failed.calls[-1] == "fail broken"


# -- 5: one handle per run --------------------------------------------------------------------------------------------


async def test_the_factory_is_asked_once_per_run_with_all_that_the_run_is() -> None:
    factory = CountingFactory(NullCheckpointer())
    executor = Executor(Ports(checkpoints=factory))
    agent = Agent(name="a", model=ScriptedModel("done"), agent_id="7", model_tier="large")
    await executor.run(
        agent, "go", run_id="r", caller_id="c", channel_id="ch", guild_id="g", labels={"k": "v"}, inputs={"n": 1}
    )
    await executor.run(agent, "again", run_id="s")
    assert [info.run_id for info in factory.requested] == ["r", "s"]
    assert factory.requested[0] == RunInfo(
        run_id="r", agent_name="a", agent_id="7", caller_id="c", channel_id="ch", guild_id="g", model_tier="large",
        labels={"k": "v"}, loop="native", prompt="go", inputs={"n": 1},
    )  # fmt: skip


async def test_the_stored_info_comes_from_the_run() -> None:
    store = MemoryStore()
    checkpoints = StoreCheckpoints(store)
    info = RunInfo(
        run_id="r", agent_name="a", agent_id="7", caller_id="c", channel_id="ch", guild_id="g", model_tier="large",
        labels={"k": "v"}, prompt="what I was asked", inputs={"n": 1},
    )  # fmt: skip
    handle = await checkpoints.begin(info)
    assert isinstance(handle, StoreCheckpointer)
    assert handle is not await checkpoints.begin(info)
    assert [record async for record in iter_runs(store)] == []
    await handle.save(RunState())
    [record] = [record async for record in iter_runs(store)]
    assert (record.run_id, record.agent_name, record.caller_id, record.owner) == ("r", "a", "c", checkpoints.worker_id)
    summary = decode(record.info, RunInfo)
    assert summary.prompt == "what I was asked"
    assert summary.labels == {"k": "v"}


async def test_a_run_without_a_prompt_has_an_empty_one() -> None:
    assert RunInfo(run_id="r", agent_name="a").prompt == ""


@pytest.mark.parametrize(
    "trouble", [StoreUnavailable("gone"), StorePermissionError("read-only"), OSError("disk")], ids=repr
)
async def test_if_begin_raises_a_warning_is_logged_and_the_run_is_not_durable(
    trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    factory = CountingFactory(trouble)
    result = await Executor(Ports(checkpoints=factory)).run(AGENT, "go")
    assert result.output == "done"
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert str(trouble) in warning.getMessage()
    assert "without durability" in warning.getMessage()


@pytest.mark.parametrize("trouble", [StoreUnavailable("gone"), OSError("disk")], ids=repr)
async def test_if_begin_raises_and_durability_is_required_the_run_is_refused(trouble: Exception) -> None:
    model = ScriptedModel("done")
    executor = Executor(Ports(checkpoints=CountingFactory(trouble)), require_durability=True)
    with pytest.raises(NotDurable, match=str(trouble)) as raised:
        await executor.run(Agent(name="a", model=model), "go")
    assert raised.value.__cause__ is trouble
    assert model.requests == []


async def test_a_store_that_cannot_be_opened_makes_the_run_not_durable() -> None:
    life = SimulatedHost(require_durability=True)
    life.store.fail("open", SchemaTooNew("runs.db", 9, 1))
    with pytest.raises(NotDurable, match="upgrade holdfast"):
        await life.executor.run(AGENT, "go")
    assert (await life.executor.run(AGENT, "go")).output == "done"  # it is opened when the next run asks for it


async def test_a_factory_may_say_that_a_run_is_not_to_be_durable() -> None:
    assert (
        await Executor(Ports(checkpoints=CountingFactory(None)), require_durability=True).run(AGENT, "go")
    ).output == "done"


async def test_a_factory_that_says_the_host_shuts_down_is_not_overheard() -> None:
    with pytest.raises(Shutdown):
        await Executor(Ports(checkpoints=CountingFactory(Shutdown("now")))).run(AGENT, "go")


async def test_a_required_run_whose_first_save_fails_does_not_ask_the_model() -> None:
    life = SimulatedHost(require_durability=True)
    life.store.fail("create", StorePermissionError("read-only"))
    model = ScriptedModel("done")
    with pytest.raises(Exception, match="read-only"):
        await life.executor.run(Agent(name="a", model=model), "go")
    assert model.requests == []


async def test_a_run_id_that_is_in_the_store_is_refused_whether_durability_is_required_or_not() -> None:
    store = MemoryStore()
    first = SimulatedHost(store)
    handle = await first.checkpoints.begin(RunInfo(run_id="r", agent_name="a"))
    await handle.save(RunState())
    model = ScriptedModel("done")
    with pytest.raises(RunExists, match="choose another id, or resume that run"):
        await SimulatedHost(store).executor.run(Agent(name="a", model=model), "go", run_id="r")
    assert model.requests == []
    assert await first.get_statuses() == {"r": RunStatus.RUNNING}


# -- 6: on a recovery -------------------------------------------------------------------------------------------------


async def test_on_a_recovery_the_handed_over_handle_is_used_and_the_factory_is_not_asked() -> None:
    class Handed(NullCheckpointer):
        def __init__(self) -> None:
            self.calls: list[str] = []

        async def save(self, state: RunState, *, force: bool = False) -> None:
            self.calls.append("save")

        async def complete(self, output: Any, usage: Any) -> bool:
            self.calls.append(f"complete {output}")
            return True

    factory, handed = CountingFactory(NullCheckpointer()), Handed()
    state = RunState()
    state.history.append(User("go"))
    resumption = Resumption(info=RunInfo(run_id="r", agent_name="a"), checkpointer=handed, state=state)
    result = await Executor(Ports(checkpoints=factory)).resume(AGENT, resumption)
    assert result.output == "done"
    assert factory.requested == []
    assert handed.calls == ["save", "complete done"]


# -- closing ----------------------------------------------------------------------------------------------------------


async def test_concurrent_first_runs_register_the_worker_once() -> None:
    host = SimulatedHost(loop_turns=3)
    checkpointers = await asyncio.gather(
        *(host.checkpoints.begin(RunInfo(run_id=run_id, agent_name="a")) for run_id in ("one", "two", "three"))
    )
    assert host.store.calls == ["open", "register_worker"]
    for checkpointer in checkpointers:
        await checkpointer.save(RunState())
    assert {(record.owner, record.owner_alive) for record in await host.list_records()} == {
        (host.checkpoints.worker_id, True)
    }


async def test_closing_discharges_the_worker_and_then_closes_the_store() -> None:
    store = ProbeStore(MemoryStore())
    checkpoints = StoreCheckpoints(store)
    await checkpoints.open()
    await checkpoints.open()
    await checkpoints.close()
    await checkpoints.close()
    assert store.calls == ["open", "register_worker", "deregister_worker", "close"]


async def test_a_store_is_closed_even_if_the_worker_cannot_be_discharged() -> None:
    store = ProbeStore(MemoryStore())
    checkpoints = StoreCheckpoints(store)
    await checkpoints.open()
    store.fail("deregister_worker", StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable):
        await checkpoints.close()
    assert store.calls[-1] == "close"


async def test_a_store_that_does_not_take_the_worker_is_closed_again() -> None:
    store = ProbeStore(MemoryStore())
    checkpoints = StoreCheckpoints(store)
    store.fail("register_worker", StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable):
        await checkpoints.open()
    assert store.calls == ["open", "close"]


class ReopenedStore(MemoryStore):
    """Records the calls of a worker, and keeps its workers when it is closed, as the store of other processes does."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        #: The methods whose answer is lost, and those that do nothing.
        self.loses: set[str] = set()
        self.fails: set[str] = set()

    async def open(self) -> None:
        self.calls.append("open")
        await super().open()

    async def close(self) -> None:
        self.calls.append("close")

    async def register_worker(self, worker: WorkerIdentity) -> None:
        self.calls.append("register_worker")
        await super().register_worker(worker)
        if "register_worker" in self.loses:
            raise StoreUnavailable("the connection was lost")

    async def deregister_worker(self, worker_id: str) -> None:
        if "deregister_worker" in self.fails:
            raise StoreUnavailable("gone")
        self.calls.append("deregister_worker")
        await super().deregister_worker(worker_id)

    async def list_ids(self) -> set[str]:
        return {each.worker.worker_id for each in await self.list_workers()}


async def test_a_worker_that_could_not_be_deregistered_is_deregistered_once_by_the_next_open() -> None:
    store = ReopenedStore()
    checkpoints = StoreCheckpoints(store)
    await checkpoints.open(("a",))
    store.fails.add("deregister_worker")
    with pytest.raises(StoreUnavailable):
        await checkpoints.close()
    store.fails.clear()
    store.calls.clear()
    await checkpoints.open(("a",))
    assert await store.list_ids() == {checkpoints.worker_id}
    await checkpoints.close()
    await checkpoints.open(("a",))
    assert store.calls == [
        "open", "deregister_worker", "register_worker", "deregister_worker", "close", "open", "register_worker"
    ]  # fmt: skip


async def test_a_registration_that_may_have_succeeded_is_undone_by_the_next_open() -> None:
    store = ReopenedStore()
    checkpoints = StoreCheckpoints(store)
    store.loses.add("register_worker")
    with pytest.raises(StoreUnavailable):
        await checkpoints.open()
    assert len(await store.list_ids()) == 1
    store.loses.clear()
    await checkpoints.open()
    assert await store.list_ids() == {checkpoints.worker_id}


async def test_a_worker_that_keeps_its_claims_stays_registered_after_the_next_open() -> None:
    store = ReopenedStore()
    checkpoints = StoreCheckpoints(store)
    await checkpoints.open()
    first = checkpoints.worker_id
    await checkpoints.close(keep_claims=True)
    await checkpoints.open()
    assert await store.list_ids() == {first, checkpoints.worker_id}


async def test_a_store_that_is_open_gets_one_worker_and_none_after_a_close() -> None:
    store = ReopenedStore()
    await store.open()
    checkpoints = StoreCheckpoints(store)
    seen = [checkpoints.is_open]
    await checkpoints.register()
    await checkpoints.register()
    assert [*seen, checkpoints.is_open] == [False, True]
    await checkpoints.close()
    await checkpoints.register()
    assert store.calls == ["open", "register_worker", "deregister_worker", "close"]


async def test_a_finished_child_is_met_with_its_end_and_an_unknown_one_is_not_met() -> None:
    store = MemoryStore()
    checkpoints = StoreCheckpoints(store)
    info = RunInfo(run_id="child", agent_name="a", parent_run_id="parent")
    assert not await _attach_child(checkpoints, info)
    handle = await checkpoints.begin(info)
    state = RunState()
    state.history.append(Reply(text="x"))
    await handle.save(state)
    await handle.complete({"a": 1}, NO_USAGE)
    met = await checkpoints.attach_child(info, NATIVE_CODEC)
    assert met == ChildOutcome(output={"a": 1}, usage=NO_USAGE)


async def _attach_child(checkpoints: StoreCheckpoints, info: RunInfo) -> bool:
    await checkpoints.open()
    return await checkpoints.attach_child(info, NATIVE_CODEC) is not None


# -- meeting a child again --------------------------------------------------------------------------------------------

CHILD = RunInfo(run_id="child", agent_name="a", parent_run_id="parent")


async def _make_host_with_child(left: RunStatus) -> SimulatedHost:
    """A life whose store has a child of an earlier one."""
    life = SimulatedHost()
    handle = await life.checkpoints.begin(CHILD)
    await handle.save(RunState())
    end: Literal[AttemptEnd.PARKED, AttemptEnd.INTERRUPTED] = (
        AttemptEnd.PARKED if left is RunStatus.PARKED else AttemptEnd.INTERRUPTED
    )
    await handle.leave(Leave(end, reason="approval"))
    return life


@pytest.mark.parametrize("left", [RunStatus.INTERRUPTED, RunStatus.PARKED])
@pytest.mark.parametrize("at", ["claim", "load"])
async def test_a_caller_that_is_cancelled_while_it_attaches_to_a_child_leaves_it_as_it_was(
    left: RunStatus, at: str
) -> None:
    life = await _make_host_with_child(left)
    reached, answer = asyncio.Event(), asyncio.Event()

    async def hold(method: str) -> None:
        if method == at and (at == "claim" or "claim" in life.store.calls):
            reached.set()
            await answer.wait()

    life.store.before = hold
    meeting = asyncio.create_task(life.checkpoints.attach_child(CHILD, NATIVE_CODEC))
    await reached.wait()
    meeting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await meeting
    answer.set()
    async with asyncio.timeout(60):
        while life.store.write_calls[-2:] != ["claim", "release"]:
            await life.inner.wait_for_change(timedelta(seconds=1))
    [record] = await life.list_records()
    assert (record.status, record.reason, record.strikes) == (left, "approval", 0)
    assert isinstance(await life.checkpoints.attach_child(CHILD, NATIVE_CODEC), Resumption)


async def test_who_meets_a_child_again_waits_until_a_cancelled_meeting_has_left_it() -> None:
    life = await _make_host_with_child(RunStatus.INTERRUPTED)
    reached, answer = asyncio.Event(), asyncio.Event()

    async def hold(method: str) -> None:
        if method == "claim":
            reached.set()
            await answer.wait()

    life.store.before = hold
    first = asyncio.create_task(life.checkpoints.attach_child(CHILD, NATIVE_CODEC))
    await reached.wait()
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(life.checkpoints.attach_child(CHILD, NATIVE_CODEC))
    answer.set()
    assert isinstance(await second, Resumption)
    # Otherwise the late claim would have taken the child from the worker that executes it.
    assert life.store.write_calls[-3:] == ["claim", "release", "claim"]


async def test_a_child_that_cannot_be_loaded_once_it_is_claimed_is_left_as_it_was() -> None:
    life = await _make_host_with_child(RunStatus.PARKED)

    async def refuse(method: str) -> None:
        if method == "load" and "claim" in life.store.calls:
            raise StoreUnavailable("the connection was lost")

    life.store.before = refuse
    with pytest.raises(StoreUnavailable):
        await life.checkpoints.attach_child(CHILD, NATIVE_CODEC)
    [record] = await life.list_records()
    assert (record.status, record.reason, record.strikes) == (RunStatus.PARKED, "approval", 0)


@pytest.mark.parametrize(
    ("error", "seen", "text"),
    [
        (RunDamaged("child", "a gap"), RunParked, "damaged: a child run cannot be read: run child is damaged"),
        (RecordDecodeError("no JSON"), RunParked, "damaged: a child run cannot be read: no JSON"),
        (UnknownVersion("child", 9, 1), MissingDefinition, "a child run cannot be read here: run child has format"),
        (StoreUnavailable("away"), StoreUnavailable, "away"),
    ],
    ids=lambda given: type(given).__name__,
)
async def test_the_parent_of_a_child_that_cannot_be_read_learns_why(
    error: Exception, seen: type[Exception], text: str
) -> None:
    life = await _make_host_with_child(RunStatus.INTERRUPTED)
    life.store.fail("load", error)
    with pytest.raises(seen, match=text):
        await life.checkpoints.attach_child(CHILD, NATIVE_CODEC)
    assert await life.get_statuses() == {"child": RunStatus.INTERRUPTED}
