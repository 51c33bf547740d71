"""A store that fails once, or at first, and ports of the host that raise."""

import logging
from datetime import timedelta

import pytest
from tests.failed_runs import fails_with
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import REMOVE_ENDED, SimulatedHost

from holdfast import Agent, App, current_call, tool
from holdfast.checkpoint.errors import StoreFull, StoreUnavailable
from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings
from holdfast.core.errors import NotDurable, RunInterrupted, RunLost, SaveFailed
from holdfast.core.metrics import RunMetrics
from holdfast.core.observer import (
    PUBLIC_EVENTS,
    AttemptControl,
    AttemptEnded,
    AttemptStarted,
    CallEnded,
    ObservedEvent,
    StepEnded,
)
from holdfast.core.ports import Ports
from holdfast.stores.memory import MemoryStore

KEPT = CheckpointSettings()


@tool(effect="once")
async def book() -> str:
    return "booked"


@tool(effect="pure")
async def look() -> str:
    return "seen"


class Refusal:
    """Refuses the n-th call of one method of the store."""

    def __init__(self, method: str, number: int, error: Exception) -> None:
        self._method, self._left, self._error = method, number, error

    async def __call__(self, method: str) -> None:
        if method == self._method:
            self._left -= 1
            if self._left == 0:
                raise self._error


async def test_a_run_whose_first_save_fails_is_refused_and_not_said_to_wait_for_recovery() -> None:
    host = SimulatedHost(require_durability=True)
    host.store.before = Refusal("create", 1, OSError("the disk is gone"))
    with pytest.raises(NotDurable, match="run r was refused: it could not be recorded: the disk is gone"):
        await host.executor.run(Agent(name="a", model=ScriptedModel("never")), "go", run_id="r")
    assert await host.get_statuses() == {}


async def test_the_save_of_a_step_waits_for_a_store_that_is_unavailable_for_a_moment() -> None:
    host = SimulatedHost(settings=KEPT, require_durability=True)
    host.store.before = Refusal("append", 1, StoreUnavailable("away for a moment"))
    model = ScriptedModel(tool_reply(call("1", "look")), "done")
    assert (await host.executor.run(Agent(name="a", model=model, tools=[look]), "go", run_id="r")).output == "done"
    assert await host.get_statuses() == {"r": RunStatus.DONE}


@pytest.mark.parametrize("error", [StoreFull("no room"), OSError("the disk is gone")], ids=repr)
async def test_a_caller_gets_no_result_that_the_store_does_not_have(error: Exception) -> None:
    metrics = RunMetrics()
    host = SimulatedHost(settings=KEPT, require_durability=True, metrics=metrics)
    host.store.before = Refusal("release", 1, error)
    with pytest.raises(SaveFailed, match=f"has a result that could not be saved, and waits for recovery: {error}"):
        await host.executor.run(Agent(name="a", model=ScriptedModel("done")), "go", run_id="r")
    assert await host.get_statuses() == {"r": RunStatus.RUNNING}
    assert metrics.get("a").attempts == {"interrupted": 1}
    await host.checkpoints.claims.retry_pending_releases()
    assert await host.get_statuses() == {"r": RunStatus.DONE}


async def test_a_message_after_a_result_that_was_not_stored_is_read_before_the_only_result() -> None:
    store = ProbeStore(MemoryStore(), before=Refusal("release", 1, OSError("the disk is gone")))
    model = ScriptedModel("without it", "with it")
    async with App([Agent(name="a", model=model)], store) as app:
        with pytest.raises(SaveFailed):
            await app.run("a", "go", run_id="r")
        await app.send("r", "and this")
        await app._stored.checkpoints.claims.retry_pending_releases()
        assert (await app.run("a", "go", run_id="r")).output == "with it"
        assert (await app.result("r")).output == "with it"


async def test_a_parent_does_not_use_the_result_of_a_child_that_was_not_stored() -> None:
    child = Agent(name="child", model=ScriptedModel("of the child", "repeated"))

    @tool(effect="idempotent")
    async def ask() -> str:
        return str((await current_call().run(child, "go")).output)

    host = SimulatedHost(settings=KEPT, require_durability=True)
    host.store.before = Refusal("release", 1, OSError("the disk is gone"))
    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "ask")), "done"), tools=[ask])
    with pytest.raises(RunInterrupted):
        await host.executor.run(agent, "go", run_id="r")
    assert set((await host.get_statuses()).values()) == {RunStatus.RUNNING, RunStatus.INTERRUPTED}


async def test_a_caller_gets_no_result_of_a_run_that_another_worker_has_taken_at_its_end() -> None:
    store = MemoryStore()
    host, other = SimulatedHost(store, settings=KEPT), SimulatedHost(store)
    await other.checkpoints.open()

    async def take(method: str) -> None:
        if method == "release":
            await store.claim("r", other.checkpoints.worker_id, steal=True)

    host.store.before = take
    with pytest.raises(RunLost):
        await host.executor.run(Agent(name="a", model=ScriptedModel("done")), "go", run_id="r")
    assert (await host.get_statuses()) == {"r": RunStatus.RUNNING}


async def test_a_failed_run_that_cannot_be_removed_is_not_executed_again() -> None:
    host = SimulatedHost(settings=CheckpointSettings(retention=REMOVE_ENDED))
    host.store.before = Refusal("remove", 1, OSError("the disk is gone"))
    agent = Agent(name="a", model=ScriptedModel(ValueError("no")))
    with fails_with(ValueError, match="no"):
        await host.executor.run(agent, "go", run_id="r")
    assert await host.get_statuses() == {"r": RunStatus.FAILED}


async def test_a_check_of_the_claim_is_not_counted_as_a_save() -> None:
    metrics = RunMetrics()
    host = SimulatedHost(settings=KEPT, metrics=metrics)
    model = ScriptedModel(tool_reply(call("1", "book")), "done")
    await host.executor.run(Agent(name="a", model=model, tools=[book]), "go", run_id="r")
    counted = metrics.get("a")
    saves = [method for method in host.store.calls if method in ("create", "append")]
    assert sum(counted.saves.counts) == len(saves)
    assert sum(counted.claim_checks.counts) == 0, "a write has just proven the claim"


class Broken:
    """An audit, a recorder, a critic and a watch that raise wherever they are called after `calls_before`."""

    def __init__(self, calls_before: int = 0) -> None:
        self._left, self.calls = calls_before, 0

    def _call(self) -> None:
        self.calls += 1
        self._left -= 1
        if self._left < 0:
            raise ValueError("broken")

    kinds: frozenset[type] = PUBLIC_EVENTS | {AttemptStarted, CallEnded, StepEnded, AttemptEnded}

    def begin(self, attempt: AttemptControl, max_runtime: timedelta | None = None) -> "Broken":
        self._call()
        return self

    def observe(self, event: ObservedEvent) -> None:
        self._call()


@pytest.mark.parametrize("calls_before", [0, 1, 2, 3])
@pytest.mark.parametrize("port", ["audit", "critic"])
async def test_an_audit_or_a_critic_that_raises_is_logged_and_does_not_fail_the_run(
    port: str, calls_before: int, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Broken(calls_before)
    ports = Ports(observers=(broken,)) if port == "audit" else Ports(critic=broken)
    host = SimulatedHost(settings=KEPT, ports=ports)
    model = ScriptedModel(tool_reply(call("1", "book")), "done")
    agent = Agent(name="a", model=model, tools=[book])
    with caplog.at_level(logging.ERROR, "holdfast.run"):
        assert (await host.executor.run(agent, "go", run_id="r")).output == "done"
    assert await host.get_statuses() == {"r": RunStatus.DONE}
    assert any("its observer Broken" in record.getMessage() for record in caplog.records)
    assert broken.calls <= calls_before + 2, "it is not called again, but to be closed"
