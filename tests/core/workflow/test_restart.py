"""A workflow that returns `Restart` continues under the same run id, without its recorded steps."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.failed_runs import fails_with

from holdfast import App, Bounds, RunWaiting, Value, current_call, tool
from holdfast.checkpoint.errors import RunConflict
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import RunStatus, StoredRun
from holdfast.checkpoint.workers import Claim
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.errors import DefinitionError, StepsExceeded
from holdfast.core.run.run_events import HistoryRewritten, MessageAdded
from holdfast.stores.memory import MemoryStore
from holdfast.stores.wrapper import StoreWrapper
from holdfast.testing.manual_clock import ManualClock
from holdfast.workflows import Restart, ask_person, run_agent, sleep, wait_for, workflow

MADE: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    MADE.clear()


@tool
async def note(text: str) -> str:
    MADE.append(text)
    return f"noted {text}"


@workflow
async def count(number: int, limit: int) -> str | Restart:
    await note("tick")
    if number < limit:
        return Restart(number + 1, limit=limit)
    return f"counted to {number}"


async def test_a_restart_continues_as_the_same_run_with_its_counters() -> None:
    async with App([count], MemoryStore()) as app:
        result = await app.run(count, inputs={"number": 1, "limit": 3}, run_id="r")
        assert result.output == "counted to 3"
        assert result.steps == 3
        details = await app.get("r")
        assert (details.status, details.steps) == (RunStatus.DONE, 3)
        assert details.usage.tool_calls == 3
    assert MADE == ["tick", "tick", "tick"]


async def test_equal_steps_of_two_lives_have_different_idempotency_keys_and_children() -> None:
    keys: list[str] = []

    @tool(effect="idempotent")
    async def give_key() -> None:
        keys.append(current_call().idempotency_key)

    @workflow
    async def child(name: str) -> str:
        return await note(name)

    @workflow
    async def flow(again: bool) -> str | Restart:
        await give_key()
        await run_agent(child, inputs={"name": "x"})
        return Restart(False) if again else "done"

    async with App([flow, child], MemoryStore()) as app:
        await app.run(flow, inputs={"again": True})
    assert len(set(keys)) == 2
    assert MADE == ["x", "x"]


class CountingStore(StoreWrapper):
    """Counts the entries that each load reads."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.read: list[int] = []

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id, after=after)
        if stored.entries:
            self.read.append(len(stored.entries))
        return stored


async def sleep_often(flow: Any, times: int) -> list[int]:
    """Return how many entries each resumed attempt has read."""
    clock = ManualClock()
    store = CountingStore(MemoryStore(clock=clock))
    async with App([flow], store, clock=clock) as app:
        await app.submit(flow, inputs={"left": times}, run_id="r")
        for finished in range(times):
            while (await app.get("r")).status is not RunStatus.WAITING:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await clock.jump(timedelta(hours=1))
            while (await app.get("r")).steps <= finished:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert (await app.result("r")).output == "rested"
    return store.read


async def test_a_loop_that_sleeps_reads_as_much_at_the_1000th_time_as_at_the_first() -> None:
    @workflow
    async def flow(left: int) -> str | Restart:
        await sleep(timedelta(hours=1))
        return Restart(left - 1) if left > 1 else "rested"

    read = await sleep_often(flow, 1000)
    assert len(read) >= 1000
    assert max(read) <= 8


async def test_a_loop_that_sleeps_without_restart_reads_all_steps_each_time() -> None:
    @workflow
    async def flow(left: int) -> str:
        for _ in range(left):
            await sleep(timedelta(hours=1))
        return "rested"

    read = await sleep_often(flow, 20)
    assert max(read) > 3 * 20 - 5


async def test_the_steps_of_an_earlier_life_are_not_undone() -> None:
    async def forget(call: ToolContext, result: str) -> None:
        MADE.append(f"undo {call.arguments['text']}")

    @tool(undo=forget)
    async def take(text: str) -> str:
        MADE.append(text)
        return text

    @workflow
    async def flow(name: str) -> Restart:
        await take(name)
        if name == "b":
            raise LookupError(name)
        return Restart("b")

    async with App([flow], MemoryStore()) as app:
        with fails_with(LookupError):
            await app.run(flow, "a")
    assert MADE == ["a", "b", "undo b"]


async def test_mail_that_was_not_read_is_for_the_next_life() -> None:
    @workflow
    async def flow(got: list[Any]) -> list[Any] | Restart:
        found = await wait_for("item")
        return Restart([*got, found]) if len(got) < 2 else [*got, found]

    async with App([flow], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, inputs={"got": []}, run_id="r")
        for number in range(3):
            await app.signal("r", "item", number)
        assert (await app.result("r")).output == [0, 1, 2]


async def test_arguments_that_do_not_fit_fail_the_run_and_undo_its_steps() -> None:
    async def forget(call: ToolContext, result: str) -> None:
        MADE.append("undo")

    @tool(undo=forget)
    async def take() -> None:
        MADE.append("take")

    @workflow
    async def flow(number: int) -> Restart:
        await take()
        return Restart("one") if number else Restart(1, 2)

    async with App([flow], MemoryStore()) as app:
        with fails_with(DefinitionError, match="Expected `int`, got `str`"):
            await app.run(flow, inputs={"number": 1})
        with fails_with(DefinitionError, match="too many positional arguments"):
            await app.run(flow, inputs={"number": 0})
    assert MADE == ["take", "undo", "take", "undo"]


async def test_the_bound_on_steps_holds_for_each_life() -> None:
    @workflow(bounds=Bounds(max_steps=2))
    async def flow(lives: int, steps: int) -> str | Restart:
        for number in range(steps):
            await note(f"{lives} {number}")
        return Restart(lives - 1, steps) if lives else "done"

    async with App([flow], MemoryStore()) as app:
        assert (await app.run(flow, inputs={"lives": 3, "steps": 2})).steps == 8
        with fails_with(StepsExceeded):
            await app.run(flow, inputs={"lives": 3, "steps": 3})


@asynccontextmanager
async def restarted(store: MemoryStore) -> AsyncIterator[App]:
    """A run in its second life, which waits after its second step."""

    @workflow
    async def flow(name: str) -> Any:
        await note(name)
        if name == "a":
            return Restart("b")
        await note("then")
        return await wait_for("go")

    async with App([flow], store) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, "a", run_id="r")
        yield app


async def test_a_run_is_known_by_its_first_input() -> None:
    async with restarted(MemoryStore()) as app:
        [flow] = app.agents.values()
        with pytest.raises(RunConflict):
            await app.run(flow, "b", run_id="r")
        waiting = asyncio.create_task(app.run(flow, "a", run_id="r"))
        await app.signal("r", "go", "done")
        assert (await app.result("r")).output == "done"
        await asyncio.wait([waiting])
    assert MADE == ["a", "b", "then"]


async def test_a_watcher_sees_the_restart_and_the_steps_of_both_lives() -> None:
    seen: list[Any] = []
    store = MemoryStore()

    @workflow
    async def flow(name: str) -> str | Restart:
        await wait_for(name)
        return Restart("b") if name == "a" else "done"

    async with App([flow], store) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, "a", run_id="r")
        events = app.events("r")
        seen.append(await anext(events))
        for name in ("a", "b"):
            await app.signal("r", name)
        seen += [event async for event in events]
    kinds = [type(event).__name__ for event in seen]
    restart = next(at for at, event in enumerate(seen) if isinstance(event, HistoryRewritten))
    assert seen[restart].events == ()
    assert [each.content for each in seen if isinstance(each, MessageAdded)] == ["a", '{"name":"b"}']
    assert kinds[restart:].count("ToolReturned") == 1
    assert kinds[-1] == "StatusChanged" or "OutputRecorded" in kinds[restart:]


async def test_a_fork_of_the_second_life_keeps_its_arguments() -> None:
    async with restarted(MemoryStore()) as app:
        steps = (await app.get("r")).steps
        forked = await app.fork("r", at_step=steps - 1)
        assert MADE == ["a", "b", "then"]
        with pytest.raises(RunWaiting):
            await app.result(forked)
    assert MADE == ["a", "b", "then", "then"]


class FailingRestart(StoreWrapper):
    """Refuses the first write that replaces a journal, before or after it is made."""

    def __init__(self, store: MemoryStore, *, written: bool) -> None:
        super().__init__(store)
        self._written, self._fails = written, True

    async def append(self, claim: Claim, write: Append) -> None:
        if write.rewrite and self._fails:
            self._fails = False
            if self._written:
                await self._store.append(claim, write)
            raise OSError("the store did not answer")
        await self._store.append(claim, write)


@pytest.mark.parametrize("written", [False, True])
async def test_a_restart_whose_write_fails_repeats_no_step(written: bool) -> None:
    store = FailingRestart(MemoryStore(), written=written)
    async with App([count], store) as app:
        await app.submit(count, inputs={"number": 1, "limit": 2}, run_id="r")
        assert (await app.result("r")).output == "counted to 2"
    assert MADE == ["tick", "tick"]


async def test_a_workflow_without_a_store_restarts_too() -> None:
    async with App([count]) as app:
        assert (await app.run(count, inputs={"number": 1, "limit": 3})).output == "counted to 3"


async def test_a_question_of_one_life_is_not_that_of_the_next() -> None:
    @workflow
    async def flow(answers: list[str]) -> list[str] | Restart:
        got = await ask_person("Next?")
        return Restart([*answers, got]) if len(answers) < 1 else [*answers, got]

    asked: list[str] = []
    async with App([flow], MemoryStore()) as app:
        await app.submit(flow, inputs={"answers": []}, run_id="r")
        for text in ("one", "two"):
            with pytest.raises(RunWaiting):
                await app.result("r")
            [question] = await app.pending()
            asked.append(question.call_id)
            await app.answer("r", question.call_id, Value(text))
        assert (await app.result("r")).output == ["one", "two"]
    assert len(set(asked)) == 2
