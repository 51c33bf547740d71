"""Concurrency limits, keys and priorities, as an App has them."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App
from holdfast.checkpoint.errors import LimitReached
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.config import ConcurrencyLimit, WorkerSettings
from holdfast.core.errors import DefinitionError
from holdfast.core.run.messages import Message, Reply
from holdfast.stores.memory import MemoryStore

#: A notification ends the wait earlier.
POLL = timedelta(seconds=1)


class Gate:
    """A model whose replies wait until the gate is open. Counts the runs that are inside at the same time."""

    def __init__(self) -> None:
        self.inside, self.most = 0, 0
        self.entered = asyncio.Condition()
        self.open = asyncio.Event()

    async def __call__(self, messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
        async with self.entered:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.entered.notify_all()
        await self.open.wait()
        self.inside -= 1
        return Reply(text="done")

    async def wait_inside(self, count: int) -> None:
        async with self.entered:
            await self.entered.wait_for(lambda: self.inside == count)


async def test_queued_and_awaited_runs_share_the_limit_of_their_key() -> None:
    gate = Gate()
    limits = [ConcurrencyLimit(key="tenant", max_runs=2)]
    async with App(
        [Agent(name="a", model=gate)], MemoryStore(), worker=WorkerSettings(concurrency_limits=limits)
    ) as app:
        submitted = [await app.submit("a", "p", concurrency_key="tenant") for _ in range(2)]
        await gate.wait_inside(2)
        awaited = asyncio.create_task(app.run("a", "p", run_id="awaited", concurrency_key="tenant"))
        other = asyncio.create_task(app.run("a", "p", concurrency_key="another"))
        await gate.wait_inside(3)
        assert app.store is not None
        assert (await get_record(app.store, "awaited")).status is RunStatus.QUEUED
        with pytest.raises(LimitReached):
            await app.store.claim("awaited", "w", within_limits=True)
        gate.open.set()
        assert (await awaited).output == (await other).output == "done"
        assert [(await app.result(run_id)).output for run_id in submitted] == ["done", "done"]
        assert [attempt.end for attempt in (await app.get("awaited")).attempts] == ["done"]
    assert gate.most <= 3


async def test_a_person_who_resumes_a_run_over_the_limit_gets_its_result_later() -> None:
    gate, failing = Gate(), ScriptedModel(ValueError("once"))
    store = MemoryStore()
    limits = [ConcurrencyLimit(agent="a", max_runs=1)]
    async with App([Agent(name="a", model=failing)], store, worker=WorkerSettings(concurrency_limits=limits)) as app:
        with fails_with(ValueError, match="once"):
            await app.run("a", "p", run_id="failed")
    async with App([Agent(name="a", model=gate)], store) as app:
        await app.submit("a", "p", run_id="holder")
        await gate.wait_inside(1)
        resumed = asyncio.create_task(app.resume("failed"))
        while (await get_record(store, "failed")).status is RunStatus.FAILED:
            await store.wait_for_change(POLL)
        assert (await get_record(store, "failed")).status is RunStatus.INTERRUPTED
        gate.open.set()
        assert (await resumed).output == "done"
    assert gate.most == 1


async def test_what_an_operator_has_set_wins_over_the_app() -> None:
    store = MemoryStore()
    await store.open()
    await store.set_limit("agent", "a", 7)
    limits = [ConcurrencyLimit(agent="a", max_runs=1), ConcurrencyLimit(agent="b", max_runs=2)]
    async with App(
        [Agent(name="a", model=ScriptedModel("x"))], store, worker=WorkerSettings(concurrency_limits=limits)
    ) as app:
        assert app.store is not None
        found = [(used.limit.name, used.limit.max_runs, used.is_default) for used in await app.store.list_limits()]
    assert found == [("a", 7, False), ("b", 2, True)]


async def test_a_fork_and_a_resumed_run_keep_key_and_priority() -> None:
    async with App([Agent(name="a", model=ScriptedModel("x"))], MemoryStore()) as app:
        await app.run("a", "p", run_id="one", concurrency_key="k", priority=-3)
        await app.fork("one", 1, new_id="two")
        assert app.store is not None
        for run_id in ("one", "two"):
            record = await get_record(app.store, run_id)
            assert (record.concurrency_key, record.priority) == ("k", -3)


@pytest.mark.parametrize(
    "given", [{"priority": 11}, {"priority": -11}, {"priority": True}, {"concurrency_key": "x" * 201}]
)
async def test_a_wrong_priority_or_key_is_refused(given: dict[str, Any]) -> None:
    async with App([Agent(name="a", model=ScriptedModel("x"))], MemoryStore()) as app:
        with pytest.raises(DefinitionError, match=next(iter(given))):
            await app.submit("a", "p", **given)


@pytest.mark.parametrize(
    "given",
    [{}, {"agent": "a", "key": "k"}, {"agent": ""}, {"agent": "a", "max_runs": -1}, {"key": "k", "max_runs": 0.5}],
)
def test_a_wrong_limit_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        ConcurrencyLimit(**{"max_runs": 1, **given})
