"""Which worker executed a run, and how each attempt ended."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.runtime.conftest import ProcessHarness
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Approve, RunWaiting, WorkerSettings
from holdfast.checkpoint.codec import encode
from holdfast.checkpoint.progress import MAX_ATTEMPTS, AttemptLog, AttemptRecord, Progress
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.checkpoint.workers import Claim
from holdfast.core import Tool
from holdfast.core.errors import RunFailed
from holdfast.core.run.status import AttemptEnd
from holdfast.runtime.reading.run_views import read_attempts
from holdfast.stores.memory import MemoryStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_killed_worker_died_and_a_drained_one_was_stopped(harness: ProcessHarness) -> None:
    killed = harness.start("serve")
    async with harness.app() as app:
        await app.submit("errand", "note gate note", run_id="r")
        await asyncio.to_thread(harness.wait_for_effect, "r gate c1")
        [working] = (await app.get("r")).attempts
        assert (working.number, working.end) == (1, None)
        killed.kill()
        killed.wait()
        assert [attempt.end for attempt in (await app.get("r")).attempts] == ["died"]
        async with harness.app(worker=WorkerSettings(shutdown_timeout=timedelta(0))):
            await asyncio.to_thread(harness.wait_for_calls, "gate", 2)
        harness.set_flag("open")
        harness.start("serve")
        await app.result("r")
        attempts = (await app.get("r")).attempts
    assert [(attempt.number, attempt.end) for attempt in attempts] == [(1, "died"), (2, "interrupted"), (3, "done")]
    assert len({attempt.worker_id for attempt in attempts}) == 3


async def test_an_attempt_ends_when_the_run_waits_and_when_it_fails() -> None:
    def refund(amount: int) -> int:
        return amount

    model = ScriptedModel(tool_reply(call("c1", "refund", amount=3)), ValueError("no"), "refunded")
    agent = Agent(name="a", model=model, tools=[Tool(refund, approval=True)])
    async with App([agent], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "p", run_id="r")
        await app.answer("r", "c1", Approve())
        with pytest.raises(RunFailed, match="no"):
            await app.result("r")
        assert [attempt.end for attempt in (await app.get("r")).attempts] == ["waiting", "failed"]


def test_a_worker_that_died_before_its_first_save_is_known_by_the_claim_that_took_its_run() -> None:
    claim = Claim(run_id="r", worker_id="w-2", token=2, strikes=2, taken_from="w-1")
    log = AttemptLog.resume(claim, NOW, ())
    assert log.earlier == (AttemptRecord(number=1, worker_id="w-1"),)
    assert log.present is not None
    assert (log.present.number, log.present.worker_id) == (2, "w-2")
    # The claim after that finds the second attempt, which has saved.
    saved = log.at_save(NOW)
    assert AttemptLog.resume(msgspec.structs.replace(claim, taken_from="w-2"), NOW, saved).earlier == saved


def test_attempts_that_waited_are_dropped_before_those_that_died() -> None:
    attempts: tuple[AttemptRecord, ...] = ()
    for number in range(1, 3 * MAX_ATTEMPTS):
        log = AttemptLog.begin(f"w-{number}", NOW, attempts)
        attempts = log.at_save(NOW, None if number == 2 else AttemptEnd.WAITING)
    assert [attempt.number for attempt in attempts] == [2, *range(3 * MAX_ATTEMPTS - 9, 3 * MAX_ATTEMPTS)]


@pytest.mark.parametrize(
    ("given", "changes", "ends"),
    [
        ([], {"status": RunStatus.QUEUED}, []),
        ([(1, "w", AttemptEnd.INTERRUPTED)], {"status": RunStatus.QUEUED}, []),
        ([(1, "w", None)], {"status": RunStatus.INTERRUPTED}, [(1, "w", "died")]),
        ([(1, "w", None)], {"owner": "w"}, [(1, "w", "died")]),
        ([(1, "w", None)], {"owner": "w", "owner_alive": True}, [(1, "w", None)]),
        ([(1, "w", None)], {"owner": None}, [(1, "w", "died")]),
        ([], {"owner": "w"}, [(1, "w", "died")]),
        ([], {"owner": "w", "owner_alive": True}, [(1, "w", None)]),
        ([(3, "v", None), (4, "w", AttemptEnd.WAITING)], {"owner": "w", "owner_alive": True},
         [(3, "v", "died"), (4, "w", "waiting"), (5, "w", None)]),
        ([(3, "v", None)], {"owner": "w"}, [(3, "v", "died"), (4, "w", "died")]),
        (None, {"owner": "w"}, []),
    ],
)  # fmt: skip
async def test_the_attempt_of_an_owner_that_has_not_saved_is_listed_too(
    given: list[tuple[int, str, AttemptEnd | None]] | None, changes: dict[str, Any], ends: list[tuple[int, str, str]]
) -> None:
    store = MemoryStore()
    async with App([Agent(name="a", model=ScriptedModel("done"))], store, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        record = await get_record(store, "r")
    attempts = [AttemptRecord(number=number, worker_id=worker, end=end) for number, worker, end in given or ()]
    progress = b"\xff" if given is None else encode(Progress(attempts=tuple(attempts)))
    changes = {"status": RunStatus.RUNNING, "owner_alive": False, "progress": progress, **changes}
    found = read_attempts(msgspec.structs.replace(record, **changes))
    assert [(each.number, each.worker_id, each.end) for each in found] == ends
    if len(found) > len(attempts):
        assert (found[-1].began_at, found[-1].saved_at) == (record.updated_at, record.updated_at)
