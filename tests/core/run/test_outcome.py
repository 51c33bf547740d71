"""The state of a run's checkpoint after every way in which the run can end."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

import pytest
from tests.failed_runs import ends_with, fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import REMOVE_DONE, REMOVE_ENDED, SimulatedHost

from holdfast.checkpoint.codec import Outcome, decode
from holdfast.checkpoint.errors import ClaimLost, StoreFull, StoreUnavailable
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings, Retention
from holdfast.core.agents.agent import Agent, Bounds
from holdfast.core.agents.tool import ToolSchema, tool
from holdfast.core.errors import (
    RunCancelled,
    RunInterrupted,
    RunKilled,
    RunLost,
    RunParked,
    RuntimeExceeded,
    SaveFailed,
    Shutdown,
    ToolFailed,
)
from holdfast.core.execution.executor import Executor
from holdfast.core.ports import Ports
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, Message, Reply
from holdfast.core.run.status import AttemptEnd, classify_error
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock


class HostStopping(Exception):
    """How a host's own code says that it shuts down."""


async def model_that_hangs(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    await asyncio.Event().wait()
    raise AssertionError("that event is never set")


def agent_that_raises(error: BaseException) -> Agent:
    """One good step, then the error: so there is a checkpoint with something in it."""

    @tool(effect="pure")
    async def look() -> str:
        return "seen"

    return Agent(name="a", model=ScriptedModel(tool_reply(call("c1", "look")), error), tools=[look])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, AttemptEnd.DONE),
        (ValueError(), AttemptEnd.FAILED),
        (asyncio.CancelledError(), AttemptEnd.CANCELLED),
        (TimeoutError(), AttemptEnd.FAILED),
        (RunKilled(), AttemptEnd.FAILED),
        (RunCancelled(), AttemptEnd.CANCELLED),
        (RuntimeExceeded("r", timedelta(1)), AttemptEnd.FAILED),
        (Shutdown(), AttemptEnd.INTERRUPTED),
        (RunInterrupted(), AttemptEnd.INTERRUPTED),
        (SaveFailed(), AttemptEnd.INTERRUPTED),
        (KeyboardInterrupt(), AttemptEnd.INTERRUPTED),
        (SystemExit(), AttemptEnd.INTERRUPTED),
        (HostStopping(), AttemptEnd.INTERRUPTED),
        (RunParked("approval"), AttemptEnd.PARKED),
        (ClaimLost("r", 1, 2), AttemptEnd.LOST),
        (RunLost(), AttemptEnd.LOST),
    ],
    ids=repr,
)
def test_the_table_says_how_an_attempt_ends(error: BaseException | None, expected: AttemptEnd) -> None:
    assert classify_error(error, (HostStopping,)) is expected


async def test_success_completes_and_nothing_is_left() -> None:
    host = SimulatedHost()
    result = await host.executor.run(Agent(name="a", model=ScriptedModel("done")), "go")
    assert result.output == "done"
    assert await host.list_records() == []
    assert host.store.write_calls[-1] == "remove"


@pytest.mark.parametrize(
    "error", [ValueError("broken"), RunKilled("stuck"), LookupError(), NotImplementedError()], ids=repr
)
async def test_an_error_fails_the_run_and_is_the_cause_of_what_the_caller_gets(error: Exception) -> None:
    host = SimulatedHost()
    with fails_with(type(error)) as raised:
        await host.executor.run(agent_that_raises(error), "go")
    assert raised.value is error
    assert await host.list_records() == []


async def test_a_failed_run_can_be_kept_and_resumed_by_hand_but_is_no_candidate() -> None:
    host = SimulatedHost(settings=CheckpointSettings(retention=REMOVE_DONE))
    with fails_with(ValueError, match="broken"):
        await host.executor.run(agent_that_raises(ValueError("broken")), "go", run_id="r")
    [record] = await host.list_records()
    assert (record.status, record.is_interrupted, record.reason) == (RunStatus.FAILED, False, "ValueError: broken")
    assert await host.inner.claim_next("other", agents=["a"], limit=10) == ()
    stored = await host.inner.load("r")
    assert stored.entries[-1].kind is EntryKind.OUTCOME
    assert decode(stored.entries[-1].body, Outcome).error == "ValueError: broken"

    result = await SimulatedHost(host.inner).resume(Agent(name="a", model=ScriptedModel("", "well then")), "r")
    assert result.output == "well then"
    assert await host.list_records() == []


async def test_a_run_that_takes_too_long_is_failed() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    agent = Agent(name="a", model=model_that_hangs, bounds=Bounds(max_runtime=timedelta(minutes=1)))
    run = asyncio.create_task(host.executor.run(agent, "go"))
    await clock.advance(timedelta(seconds=59))
    assert [record.status for record in await host.list_records()] == [RunStatus.RUNNING]
    await clock.advance(timedelta(seconds=1))
    with fails_with(RuntimeExceeded, match="max_runtime"):
        await run
    assert await host.list_records() == []


async def test_a_cancel_by_the_caller_fails_the_run_and_stays_a_cancel() -> None:
    host = SimulatedHost(settings=CheckpointSettings(retention=REMOVE_DONE))
    begun = asyncio.Event()

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        begun.set()
        return await model_that_hangs(messages, tools)

    run = asyncio.create_task(host.executor.run(Agent(name="a", model=model), "go", on_cancel="cancel"))
    await begun.wait()
    run.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await run
    assert run.cancelled()
    assert [record.status for record in await host.list_records()] == [RunStatus.CANCELLED]


async def test_a_timeout_around_a_run_fails_it_and_stays_a_timeout() -> None:
    host = SimulatedHost()
    await host.checkpoints.open()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await host.executor.run(Agent(name="a", model=model_that_hangs), "go", on_cancel="cancel")
    assert await host.list_records() == []


async def test_a_caller_that_is_cancelled_while_the_host_shuts_down_sees_its_cancel_and_the_run_is_left() -> None:
    host = SimulatedHost()
    begun = asyncio.Event()

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        begun.set()
        return await model_that_hangs(messages, tools)

    run = asyncio.create_task(host.executor.run(Agent(name="a", model=model), "go", run_id="r", on_cancel="cancel"))
    await begun.wait()
    execution = host.executor.get_attempt("r")
    assert execution is not None
    execution.stop(Shutdown("the host goes down"))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}


async def test_a_cancel_that_the_runs_own_code_lets_out_is_no_cancel_of_the_caller() -> None:
    host = SimulatedHost()
    with pytest.raises(RunCancelled, match="from within"):
        await host.executor.run(agent_that_raises(asyncio.CancelledError()), "go")
    assert await host.list_records() == []


@pytest.mark.parametrize("end", ["done", ValueError("broken"), RunParked("approval"), Shutdown("now")], ids=repr)
async def test_a_caller_that_joined_a_run_learns_how_it_ended_and_not_that_its_caller_was_cancelled(
    end: str | Exception,
) -> None:
    host = SimulatedHost()
    begun, go_on, settling, settle = (asyncio.Event() for _ in range(4))

    async def gate(method: str) -> None:
        if method in ("remove", "release"):
            settling.set()
            await settle.wait()

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        begun.set()
        await go_on.wait()
        if isinstance(end, Exception):
            raise end
        return Reply(text=end)

    host.store.before = gate
    run = asyncio.create_task(host.executor.run(Agent(name="a", model=model), "go", run_id="r"))
    await begun.wait()
    joined = asyncio.create_task(host.executor.wait("r"))
    go_on.set()
    await settling.wait()
    run.cancel()
    await asyncio.sleep(0)
    settle.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    if isinstance(end, Exception):
        with ends_with(end):
            await joined
    else:
        result = await joined
        assert result is not None
        assert result.output == end


async def test_a_caller_that_joined_a_run_learns_that_it_was_cancelled() -> None:
    host = SimulatedHost()
    begun = asyncio.Event()

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        begun.set()
        return await model_that_hangs(messages, tools)

    run = asyncio.create_task(host.executor.run(Agent(name="a", model=model), "go", run_id="r", on_cancel="cancel"))
    await begun.wait()
    joined = asyncio.create_task(host.executor.wait("r"))
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(RunCancelled):
        await joined
    await asyncio.wait([run])
    assert run.cancelled()


class BrokenSource:
    name = "a"

    async def build(self, info: RunInfo) -> Agent:
        raise LookupError("no such persona")


async def test_a_failure_while_building_the_agent_fails_the_run() -> None:
    host = SimulatedHost(settings=CheckpointSettings(retention=REMOVE_DONE))
    with fails_with(LookupError):
        await host.executor.run(BrokenSource(), "go")
    assert await host.list_records() == []

    # One that is already in the store: it is not left there as if a worker executed it.
    with pytest.raises(HostStopping):
        await SimulatedHost(host.inner, shutdown_exceptions=(HostStopping,)).executor.run(
            agent_that_raises(HostStopping()), "go", run_id="r"
        )
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}
    with fails_with(LookupError):
        await SimulatedHost(host.inner, settings=CheckpointSettings(retention=REMOVE_DONE)).resume(BrokenSource(), "r")
    assert await host.get_statuses() == {"r": RunStatus.FAILED}


@pytest.mark.parametrize("error", [Shutdown("now"), RunInterrupted("later"), HostStopping("bye")], ids=repr)
async def test_what_means_shutdown_leaves_the_run_for_recovery(error: Exception) -> None:
    host = SimulatedHost(shutdown_exceptions=(HostStopping,))
    with pytest.raises(type(error)):
        await host.executor.run(agent_that_raises(error), "go", run_id="r")
    [record] = await host.list_records()
    assert (record.status, record.is_interrupted, record.strikes) == (RunStatus.INTERRUPTED, True, 0)
    result = await SimulatedHost(host.inner).resume(Agent(name="a", model=ScriptedModel("", "went on")), "r")
    assert (result.output, result.steps) == ("went on", 2)


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_process_that_exits_from_within_a_run_leaves_it(ending: BaseException) -> None:
    hosts: list[SimulatedHost] = []

    async def main() -> None:
        hosts.append(SimulatedHost())
        await hosts[0].executor.run(agent_that_raises(ending), "go", run_id="r")

    with ends_with(ending):
        asyncio.run(main())
    [host] = hosts
    assert asyncio.run(host.get_statuses()) == {"r": RunStatus.INTERRUPTED}


def _with_cause(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        _with_cause(ValueError("no answer"), HostStopping("bye")),
        _with_cause(ValueError("no answer"), _with_cause(OSError("closed"), HostStopping("bye"))),
        ExceptionGroup("two", [ValueError("other"), HostStopping("bye")]),
        ExceptionGroup("two", [ExceptionGroup("one", [_with_cause(OSError("closed"), HostStopping("bye"))])]),
        _with_cause(ValueError("no answer"), ExceptionGroup("one", [HostStopping("bye")])),
    ],
    ids=repr,
)
def test_a_shutdown_exception_is_found_as_a_cause_and_in_a_group(error: Exception) -> None:
    assert classify_error(error, (HostStopping,)) is AttemptEnd.INTERRUPTED
    assert classify_error(error) is AttemptEnd.FAILED


def test_our_own_shutdown_is_found_as_a_cause_and_in_a_group() -> None:
    shutdown = Shutdown("the host shuts down")
    assert classify_error(_with_cause(ValueError("no answer"), shutdown)) is AttemptEnd.INTERRUPTED
    assert classify_error(ExceptionGroup("two", [ValueError("other"), shutdown])) is AttemptEnd.INTERRUPTED


def test_a_cause_that_leads_back_to_its_error_ends_the_search() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert classify_error(first, (HostStopping,)) is AttemptEnd.FAILED


async def test_a_tool_that_says_the_host_shuts_down_leaves_the_run() -> None:
    @tool
    async def deploy() -> None:
        raise HostStopping

    host = SimulatedHost(shutdown_exceptions=(HostStopping,))
    with pytest.raises(HostStopping):
        await host.executor.run(
            Agent(name="a", model=ScriptedModel(tool_reply(call("c", "deploy"))), tools=[deploy]), "", run_id="r"
        )
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}


async def test_a_tool_that_parks_the_run_parks_it_with_its_reason() -> None:
    @tool
    async def pay() -> None:
        raise RunParked("approval", "more than 100 EUR")

    host = SimulatedHost()
    with pytest.raises(RunParked):
        await host.executor.run(
            Agent(name="a", model=ScriptedModel(tool_reply(call("c", "pay"))), tools=[pay]), "", run_id="r"
        )
    [record] = await host.list_records()
    assert (record.status, record.reason, record.is_interrupted) == (
        RunStatus.PARKED,
        "approval: more than 100 EUR",
        False,
    )


async def test_a_run_that_was_lost_is_left_alone() -> None:
    store = MemoryStore()
    host, other = SimulatedHost(store), SimulatedHost(store)

    @tool
    async def slow() -> str:
        await other.checkpoints.open()
        await store.claim("r", other.checkpoints.worker_id, steal=True)
        return "done"

    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("c", "slow")), "never"), tools=[slow])
    with pytest.raises(ClaimLost):
        await host.executor.run(agent, "go", run_id="r")
    [record] = await host.list_records()
    assert (record.status, record.owner) == (RunStatus.RUNNING, other.checkpoints.worker_id)
    # The loser tries to release the claim: `RunLost` may be about another run, and then it still owns this one.
    # Only the fence knows. It has refused the release here.
    assert host.store.write_calls[-1] == "release"
    assert (record.reason, record.strikes) == ("", 2)


@pytest.mark.parametrize("retention", [REMOVE_ENDED, REMOVE_DONE])
@pytest.mark.parametrize("error", [StoreFull("no room"), OSError("a host's own store")], ids=repr)
async def test_an_error_while_settling_is_logged_and_does_not_mask_the_runs_own(
    retention: Retention, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    host = SimulatedHost(settings=CheckpointSettings(retention=retention))
    host.store.fail("release", error)
    with caplog.at_level(logging.ERROR), fails_with(ValueError, match="the run's own"):
        await host.executor.run(agent_that_raises(ValueError("the run's own")), "go")
    assert "could not be finalized" in caplog.text
    assert str(error) in caplog.text


async def test_a_failed_run_that_cannot_be_removed_is_not_executed_again(caplog: pytest.LogCaptureFixture) -> None:
    host = SimulatedHost()
    host.store.fail("remove", StoreFull("no room"))
    with fails_with(ValueError, match="the run's own"):
        await host.executor.run(agent_that_raises(ValueError("the run's own")), "go", run_id="r")
    assert "run r has ended, and is removed by the next purge: no room" in caplog.text
    assert (await host.get_statuses()) == {"r": RunStatus.FAILED}
    assert await host.inner.purge() == 1


async def test_an_error_while_completing_is_logged_and_the_result_stands(caplog: pytest.LogCaptureFixture) -> None:
    host = SimulatedHost()
    host.store.fail("release", StoreFull("no room"))
    assert (await host.executor.run(Agent(name="a", model=ScriptedModel("done")), "go")).output == "done"
    assert "could not be finalized" in caplog.text


async def test_what_the_store_would_not_take_at_the_end_is_settled_later() -> None:
    host = SimulatedHost()
    host.store.fail("release", StoreFull("no room"))
    await host.executor.run(Agent(name="a", model=ScriptedModel("done")), "go")
    assert [record.status for record in await host.list_records()] == [RunStatus.RUNNING]
    await host.checkpoints.claims.retry_pending_releases()
    assert await host.list_records() == []


async def test_so_is_the_end_of_a_run_that_began_before_an_earlier_look() -> None:
    host = SimulatedHost()

    async def meanwhile(messages: Sequence[Message]) -> Reply:
        await host.checkpoints.claims.retry_pending_releases()
        host.store.fail("release", StoreFull("no room"))
        return Reply(text="done")

    await host.executor.run(Agent(name="a", model=ScriptedModel(meanwhile)), "go")
    await host.checkpoints.claims.retry_pending_releases()
    assert await host.list_records() == []


async def test_a_look_that_is_cancelled_half_way_forgets_nothing() -> None:
    host = SimulatedHost()
    for run_id in ("one", "two"):
        host.store.fail("release", StoreFull("no room"))
        await host.executor.run(Agent(name="a", model=ScriptedModel("done")), "go", run_id=run_id)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hang(method: str) -> None:
        reached.set()
        await go_on.wait()

    host.store.before = hang
    look = asyncio.create_task(host.checkpoints.claims.retry_pending_releases())
    await reached.wait()
    look.cancel()
    await asyncio.wait([look])
    go_on.set()
    await host.checkpoints.claims.retry_pending_releases()
    assert await host.list_records() == []


async def test_what_the_store_would_not_take_at_the_end_is_settled_at_the_latest_by_a_shutdown() -> None:
    host = SimulatedHost(settings=CheckpointSettings(retention=REMOVE_DONE))
    host.store.fail("release", StoreFull("no room"))
    with fails_with(ValueError, match="the run's own"):
        await host.executor.run(agent_that_raises(ValueError("the run's own")), "go", run_id="r")
    await host.executor.shutdown()
    assert await host.get_statuses() == {"r": RunStatus.FAILED}


async def test_an_error_whose_text_cannot_be_made_still_settles_the_run() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    host = SimulatedHost(settings=CheckpointSettings(retention=REMOVE_DONE))
    with fails_with(Unspeakable):
        await host.executor.run(agent_that_raises(Unspeakable()), "go", run_id="r")
    assert await host.get_statuses() == {"r": RunStatus.FAILED}


@pytest.mark.parametrize("text", ["half a pair \ud800", "nul \0", "long " * 10_000], ids=repr)
async def test_an_error_with_any_text_still_settles_the_run(text: str) -> None:
    host = SimulatedHost(settings=CheckpointSettings(retention=REMOVE_DONE))
    with fails_with(ValueError, match=r"\w"):
        await host.executor.run(agent_that_raises(ValueError(text)), "go", run_id="r")
    [record] = await host.list_records()
    assert record.status is RunStatus.FAILED
    assert record.reason.startswith("ValueError: " + text[:4])
    record.reason.encode()
    assert "\0" not in record.reason


async def test_a_tool_that_ends_the_run_on_an_error_names_it_as_the_cause() -> None:
    @tool(on_error="raise")
    async def fragile() -> None:
        raise LookupError("gone")

    host = SimulatedHost()
    with fails_with(ToolFailed, match=r"fragile.*LookupError: gone") as raised:
        await host.executor.run(
            Agent(name="a", model=ScriptedModel(tool_reply(call("c", "fragile"))), tools=[fragile]), "go"
        )
    assert isinstance(raised.value.__cause__, LookupError)
    assert await host.list_records() == []


async def test_a_store_that_does_not_answer_before_a_once_tool_interrupts_the_run_and_never_fails_it() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock, settings=CheckpointSettings(store_timeout=timedelta(0)))
    called: list[str] = []

    @tool
    async def send() -> None:
        called.append("sent")

    async def ask(messages: Sequence[Message]) -> Reply:
        host.store.fail("append", *[StoreUnavailable("no answer")] * 3)
        return tool_reply(call("c", "send"))

    with pytest.raises(SaveFailed):
        await host.executor.run(Agent(name="a", model=ScriptedModel(ask), tools=[send]), "go", run_id="r")
    assert called == []
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}


async def test_a_run_that_is_claimed_anew_while_it_is_live_here_continues_under_the_new_claim() -> None:
    host = SimulatedHost()
    begun = asyncio.Event()

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if begun.is_set():
            return Reply(text="done")
        begun.set()
        return await model_that_hangs(messages, tools)

    agent = Agent(name="a", model=model)
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await begun.wait()
    claim = await host.inner.claim("r", host.checkpoints.worker_id, steal=True)
    resumption = host.checkpoints.resume(claim, await host.inner.load("r"), NATIVE_CODEC)
    assert (await host.executor.resume(agent, resumption)).output == "done"
    with pytest.raises(RunLost, match="claimed again"):
        await run
    assert await host.get_statuses() == {}


async def test_a_run_without_ports_needs_none() -> None:
    result = await Executor().run(Agent(name="a", model=ScriptedModel("done")), "go")
    assert (result.output, result.steps) == ("done", 1)
    assert await Executor(Ports()).run(Agent(name="a", model=ScriptedModel("done")), "go")
