"""The factory mints one handle per run, and says what happens when it cannot."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.life import Life
from tests.probe_store import ProbeStore
from tests.script import Script

from holdfast.checkpoint.codec import RunMeta, decode
from holdfast.checkpoint.errors import RunExists, SchemaTooNew, StoreDenied, StoreUnavailable
from holdfast.checkpoint.factory import Checkpoints
from holdfast.checkpoint.handle import NoCheckpointer, StoreCheckpointer
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.run.agent import Agent
from holdfast.run.errors import NotDurable, Shutdown
from holdfast.run.executor import Executor
from holdfast.run.info import RunInfo
from holdfast.run.message import NATIVE_CODEC, MessageCodec, Reply, User
from holdfast.run.ports import Checkpointer, Finished, Ports, Resumption
from holdfast.run.state import RunState
from holdfast.run.usage import NO_USAGE

AGENT = Agent(name="a", model=Script("done"))


class Factory:
    """A host's own factory that counts how often it is asked."""

    def __init__(self, gives: Checkpointer | BaseException | None) -> None:
        self._gives = gives
        self.asked: list[RunInfo] = []
        self.closed = False

    async def begin(self, info: RunInfo) -> Checkpointer | None:
        self.asked.append(info)
        if isinstance(self._gives, BaseException):
            raise self._gives
        return self._gives

    async def rejoin(self, info: RunInfo, codec: MessageCodec) -> Resumption | Finished | None:
        return None

    async def forget(self, run_ids: Sequence[str]) -> None: ...

    async def close(self) -> None:
        self.closed = True


# -- 4: no store ------------------------------------------------------------------------------------------------------


async def test_a_factory_over_no_store_gives_handles_that_do_nothing() -> None:
    checkpoints = Checkpoints(None)
    await checkpoints.open()
    info = RunInfo(run_id="r", agent_name="a")
    assert isinstance(await checkpoints.begin(info), NoCheckpointer)
    assert await checkpoints.rejoin(info, NATIVE_CODEC) is None
    await checkpoints.forget(["x"])
    await checkpoints.settle_again()
    await checkpoints.close()
    assert (await Executor(Ports(checkpoints=checkpoints)).run(AGENT, "go")).output == "done"


# -- 5: one handle per run --------------------------------------------------------------------------------------------


async def test_the_factory_is_asked_once_per_run_with_all_that_the_run_is() -> None:
    factory = Factory(NoCheckpointer())
    executor = Executor(Ports(checkpoints=factory))
    agent = Agent(name="a", model=Script("done"), agent_id="7", model_tier="large")
    await executor.run(
        agent, "go", run_id="r", caller_id="c", channel_id="ch", guild_id="g", labels={"k": "v"}, inputs={"n": 1}
    )
    await executor.run(agent, "again", run_id="s")
    assert [info.run_id for info in factory.asked] == ["r", "s"]
    assert factory.asked[0] == RunInfo(
        run_id="r", agent_name="a", agent_id="7", caller_id="c", channel_id="ch", guild_id="g", model_tier="large",
        labels={"k": "v"}, inputs={"prompt": "go", "n": 1},
    )  # fmt: skip


async def test_the_stored_meta_comes_from_the_run_and_the_prompt_from_its_inputs() -> None:
    store = MemoryStore()
    checkpoints = Checkpoints(store)
    info = RunInfo(
        run_id="r", agent_name="a", agent_id="7", caller_id="c", channel_id="ch", guild_id="g", model_tier="large",
        labels={"k": "v"}, inputs={"prompt": "what I was asked", "n": 1},
    )  # fmt: skip
    handle = await checkpoints.begin(info)
    assert isinstance(handle, StoreCheckpointer)
    assert handle is not await checkpoints.begin(info)
    assert [record async for record in store.records()] == []
    await handle.save(RunState())
    [record] = [record async for record in store.records()]
    assert (record.run_id, record.agent_name, record.caller_id, record.owner) == ("r", "a", "c", checkpoints.worker_id)
    meta = decode(record.meta, RunMeta)
    assert meta.prompt == "what I was asked"
    assert meta.labels == {"k": "v"}


async def test_a_run_without_a_prompt_has_an_empty_one() -> None:
    assert RunMeta.of(RunInfo(run_id="r", agent_name="a")).prompt == ""


@pytest.mark.parametrize("trouble", [StoreUnavailable("gone"), StoreDenied("read-only"), OSError("disk")], ids=repr)
async def test_if_begin_raises_a_warning_is_logged_and_the_run_is_not_durable(
    trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    factory = Factory(trouble)
    result = await Executor(Ports(checkpoints=factory)).run(AGENT, "go")
    assert result.output == "done"
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert str(trouble) in warning.getMessage()
    assert "without durability" in warning.getMessage()


@pytest.mark.parametrize("trouble", [StoreUnavailable("gone"), OSError("disk")], ids=repr)
async def test_if_begin_raises_and_durability_is_required_the_run_is_refused(trouble: Exception) -> None:
    model = Script("done")
    executor = Executor(Ports(checkpoints=Factory(trouble)), required=True)
    with pytest.raises(NotDurable, match=str(trouble)) as raised:
        await executor.run(Agent(name="a", model=model), "go")
    assert raised.value.__cause__ is trouble
    assert model.asked == []


async def test_a_store_that_cannot_be_opened_makes_the_run_not_durable() -> None:
    life = Life(required=True)
    life.store.fail("open", SchemaTooNew("runs.db", 9, 1))
    with pytest.raises(NotDurable, match="upgrade holdfast"):
        await life.executor.run(AGENT, "go")
    assert (await life.executor.run(AGENT, "go")).output == "done"  # it is opened when the next run asks for it


async def test_a_factory_may_say_that_a_run_is_not_to_be_durable() -> None:
    assert (await Executor(Ports(checkpoints=Factory(None)), required=True).run(AGENT, "go")).output == "done"


async def test_a_factory_that_says_the_host_shuts_down_is_not_overheard() -> None:
    with pytest.raises(Shutdown):
        await Executor(Ports(checkpoints=Factory(Shutdown("now")))).run(AGENT, "go")


async def test_a_required_run_whose_first_save_fails_does_not_ask_the_model() -> None:
    life = Life(required=True)
    life.store.fail("create", StoreDenied("read-only"))
    model = Script("done")
    with pytest.raises(Exception, match="read-only"):
        await life.executor.run(Agent(name="a", model=model), "go")
    assert model.asked == []


async def test_a_run_id_that_is_in_the_store_is_refused_whether_durability_is_required_or_not() -> None:
    store = MemoryStore()
    first = Life(store)
    handle = await first.checkpoints.begin(RunInfo(run_id="r", agent_name="a"))
    await handle.save(RunState())
    model = Script("done")
    with pytest.raises(RunExists, match="choose another id, or resume that run"):
        await Life(store).executor.run(Agent(name="a", model=model), "go", run_id="r")
    assert model.asked == []
    assert await first.statuses() == {"r": Status.RUNNING}


# -- 6: on a recovery -------------------------------------------------------------------------------------------------


async def test_on_a_recovery_the_handed_over_handle_is_used_and_the_factory_is_not_asked() -> None:
    class Handed(NoCheckpointer):
        def __init__(self) -> None:
            self.calls: list[str] = []

        async def save(self, state: RunState, *, urgent: bool = False) -> None:
            self.calls.append("save")

        async def complete(self, output: Any, usage: Any) -> None:
            self.calls.append(f"complete {output}")

    factory, handed = Factory(NoCheckpointer()), Handed()
    state = RunState()
    state.history.append(User("go"))
    resumption = Resumption(info=RunInfo(run_id="r", agent_name="a"), checkpointer=handed, state=state)
    result = await Executor(Ports(checkpoints=factory)).resume(AGENT, resumption)
    assert result.output == "done"
    assert factory.asked == []
    assert handed.calls == ["save", "complete done"]


# -- closing ----------------------------------------------------------------------------------------------------------


async def test_closing_discharges_the_worker_and_then_closes_the_store() -> None:
    store = ProbeStore(MemoryStore())
    checkpoints = Checkpoints(store)
    await checkpoints.open()
    await checkpoints.open()
    await checkpoints.close()
    await checkpoints.close()
    assert store.calls == ["open", "enlist", "discharge", "close"]


async def test_a_store_is_closed_even_if_the_worker_cannot_be_discharged() -> None:
    store = ProbeStore(MemoryStore())
    checkpoints = Checkpoints(store)
    await checkpoints.open()
    store.fail("discharge", StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable):
        await checkpoints.close()
    assert store.calls[-1] == "close"


async def test_a_store_that_does_not_take_the_worker_is_closed_again() -> None:
    store = ProbeStore(MemoryStore())
    checkpoints = Checkpoints(store)
    store.fail("enlist", StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable):
        await checkpoints.open()
    assert store.calls == ["open", "close"]


async def test_a_finished_child_is_met_with_its_end_and_an_unknown_one_is_not_met() -> None:
    store = MemoryStore()
    checkpoints = Checkpoints(store)
    info = RunInfo(run_id="child", agent_name="a", parent_run_id="parent")
    assert not await _met(checkpoints, info)
    handle = await checkpoints.begin(info)
    state = RunState()
    state.history.append(Reply(text="x"))
    await handle.save(state)
    await handle.complete({"a": 1}, NO_USAGE)
    met = await checkpoints.rejoin(info, NATIVE_CODEC)
    assert met == Finished(output={"a": 1}, usage=NO_USAGE)
    await checkpoints.forget(["child", "nobody"])
    assert await checkpoints.rejoin(info, NATIVE_CODEC) is None


async def _met(checkpoints: Checkpoints, info: RunInfo) -> bool:
    await checkpoints.open()
    return await checkpoints.rejoin(info, NATIVE_CODEC) is not None


# -- meeting a child again --------------------------------------------------------------------------------------------

CHILD = RunInfo(run_id="child", agent_name="a", parent_run_id="parent")


async def _with_a_child(left: Status) -> Life:
    """A life whose store has a child of an earlier one."""
    life = Life()
    handle = await life.checkpoints.begin(CHILD)
    await handle.save(RunState())
    await (handle.park("approval") if left is Status.PARKED else handle.release("approval"))
    return life


@pytest.mark.parametrize("left", [Status.INTERRUPTED, Status.PARKED])
@pytest.mark.parametrize("at", ["claim", "load"])
async def test_whoever_is_cancelled_while_it_meets_a_child_leaves_it_as_it_was(left: Status, at: str) -> None:
    life = await _with_a_child(left)
    reached, answer = asyncio.Event(), asyncio.Event()

    async def hold(method: str) -> None:
        if method == at and (at == "claim" or "claim" in life.store.calls):
            reached.set()
            await answer.wait()

    life.store.before = hold
    meeting = asyncio.create_task(life.checkpoints.rejoin(CHILD, NATIVE_CODEC))
    await reached.wait()
    meeting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await meeting
    answer.set()
    async with asyncio.timeout(60):
        while life.store.changes[-2:] != ["claim", "settle"]:
            await life.inner.changed(timedelta(seconds=1))
    [record] = await life.records()
    assert (record.status, record.reason, record.strikes) == (left, "approval", 0)
    assert isinstance(await life.checkpoints.rejoin(CHILD, NATIVE_CODEC), Resumption)


async def test_who_meets_a_child_again_waits_until_a_cancelled_meeting_has_left_it() -> None:
    life = await _with_a_child(Status.INTERRUPTED)
    reached, answer = asyncio.Event(), asyncio.Event()

    async def hold(method: str) -> None:
        if method == "claim":
            reached.set()
            await answer.wait()

    life.store.before = hold
    first = asyncio.create_task(life.checkpoints.rejoin(CHILD, NATIVE_CODEC))
    await reached.wait()
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(life.checkpoints.rejoin(CHILD, NATIVE_CODEC))
    answer.set()
    assert isinstance(await second, Resumption)
    # Else the late claim would have taken the child from whoever drives it.
    assert life.store.changes[-3:] == ["claim", "settle", "claim"]


async def test_a_child_that_was_about_to_be_met_is_gone_when_it_is_forgotten() -> None:
    life = await _with_a_child(Status.INTERRUPTED)
    reached = asyncio.Event()

    async def hold(method: str) -> None:
        if method == "load" and "claim" in life.store.calls:
            reached.set()
            await asyncio.sleep(0)

    life.store.before = hold
    meeting = asyncio.create_task(life.checkpoints.rejoin(CHILD, NATIVE_CODEC))
    await reached.wait()
    meeting.cancel()
    await asyncio.wait([meeting])
    await life.checkpoints.forget(["child"])
    assert await life.records() == []


async def test_a_child_that_cannot_be_loaded_once_it_is_claimed_is_left_as_it_was() -> None:
    life = await _with_a_child(Status.PARKED)

    async def refuse(method: str) -> None:
        if method == "load" and "claim" in life.store.calls:
            raise StoreUnavailable("the connection was lost")

    life.store.before = refuse
    with pytest.raises(StoreUnavailable):
        await life.checkpoints.rejoin(CHILD, NATIVE_CODEC)
    [record] = await life.records()
    assert (record.status, record.reason, record.strikes) == (Status.PARKED, "approval", 0)
