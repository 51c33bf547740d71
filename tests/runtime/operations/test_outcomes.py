"""The outcome of a stored run: its result, or the error that says why it has none."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, RunWaiting, Value, ask_person
from holdfast.checkpoint.codec import encode
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord, RunStatus, StoredRun
from holdfast.core.errors import RunCancelled, RunFailed, RunParked
from holdfast.core.run.mail import BUDGET_TOPIC
from holdfast.core.run.state import StepCalls
from holdfast.core.run.turns import TURN_TOPIC, ConversationIdle
from holdfast.core.run.waiting import BudgetExhausted, WaitingCall, WaitKind
from holdfast.runtime.operations.outcomes import (
    is_settled,
    make_parked_error,
    raise_if_waiting,
    read_result,
    read_waiting,
)
from holdfast.stores.memory import MemoryStore

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
AGENT = Agent(name="a", model=ScriptedModel("done"))


async def make_stored() -> StoredRun:
    store = MemoryStore()
    async with App([AGENT], store, worker=False) as app:
        await app.run("a", "go", run_id="r")
        return await store.load("r")


def make_waiting(record: RunRecord, *wake_on: str, kind: WaitKind | None = None, **changes: Any) -> RunRecord:
    waits = {}
    if kind is not None:
        waits["c"] = WaitingCall(
            run_id="r", call_id="c", step=1, tool="t", kind=kind, arguments={}, asked_at=NOW, expires_at=NOW
        )
    progress = encode(Progress(calls=StepCalls(waits=waits)))
    given = {"status": RunStatus.WAITING, "wake_on": wake_on, "progress": progress, **changes}
    return msgspec.structs.replace(record, **given)


@pytest.mark.parametrize(
    ("status", "reason", "error", "text"),
    [
        (RunStatus.PARKED, "in doubt: pay: twice", RunParked, "pay: twice"),
        (RunStatus.CANCELLED, "", RunCancelled, "run r was cancelled"),
        (RunStatus.FAILED, "ValueError: no", RunFailed, "ValueError: no"),
    ],
)
async def test_a_run_without_a_result_raises_why(
    status: RunStatus, reason: str, error: type[Exception], text: str
) -> None:
    stored = await make_stored()
    assert read_result(stored, {"a": AGENT}).output == "done"
    ended = msgspec.structs.replace(stored, record=msgspec.structs.replace(stored.record, status=status, reason=reason))
    with pytest.raises(error, match=text):
        read_result(ended, {"a": AGENT})
    without_outcome = msgspec.structs.replace(stored, entries=stored.entries[:-1])
    with pytest.raises(RunFailed):
        read_result(without_outcome, {"a": AGENT})


async def test_a_run_is_settled_when_it_has_ended_or_needs_a_person() -> None:
    record = (await make_stored()).record
    settled = [status for status in RunStatus if is_settled(msgspec.structs.replace(record, status=status))]
    assert set(settled) == {RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.PARKED}
    error = make_parked_error(msgspec.structs.replace(record, reason="in doubt: pay: twice"))
    assert (error.reason, error.detail) == ("in doubt", "pay: twice")


async def test_what_a_run_waits_for_is_an_error_unless_it_is_a_time() -> None:
    record = (await make_stored()).record
    budget = read_waiting(make_waiting(record, BUDGET_TOPIC, kind="signal", reason="its budget", wake_at=NOW))
    assert isinstance(budget, BudgetExhausted)
    idle, turn = make_waiting(record, TURN_TOPIC), make_waiting(record, TURN_TOPIC, kind="approval")
    assert type(read_waiting(idle)) is ConversationIdle
    assert type(read_waiting(turn)) is RunWaiting
    assert type(read_waiting(make_waiting(record, "x"))) is RunWaiting
    for waiting in (make_waiting(record, BUDGET_TOPIC), idle, turn):
        with pytest.raises(RunWaiting):
            raise_if_waiting(waiting)
    raise_if_waiting(make_waiting(record, kind="timer"))
    raise_if_waiting(msgspec.structs.replace(turn, status=RunStatus.INTERRUPTED))


async def test_a_result_is_waited_for_and_through_waits_only_if_asked() -> None:
    model = ScriptedModel(tool_reply(call("c", "ask_person", question="?")), "done")
    async with App([Agent(name="a", model=model, tools=[ask_person])], MemoryStore()) as app:
        await app.submit("a", "go", run_id="r")
        with pytest.raises(RunWaiting):
            await app.result("r")
        result = asyncio.create_task(app.result("r", through_waits=True))
        await asyncio.sleep(0)
        await app.answer("r", "c", Value("blue"))
        assert (await result).output == "done"
