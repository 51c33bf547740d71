"""A caller that asks for a run by its id gets that run, from any worker, and never another one."""

import asyncio
import gc
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import REMOVE_ENDED

from holdfast import Agent, App, CheckpointSettings, Reply, Result, sleep
from holdfast.checkpoint.errors import RunConflict, RunNotFound
from holdfast.core import Message, ToolSchema
from holdfast.core.errors import RunFailed, Shutdown
from holdfast.runtime.worker import RecoveryStatus
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock


class Page:
    """Something large that a model call holds."""


class Model:
    """Leaves its runs interrupted, then answers them; a question for trouble ends the run."""

    def __init__(self) -> None:
        self.away = True
        self.asked: list[str] = []
        self.pages: list[weakref.ref[Page]] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        page = Page()
        self.pages.append(weakref.ref(page))
        if self.away:
            raise Shutdown("going down")
        question = str(getattr(messages[0], "text", ""))
        self.asked.append(question)
        if question == "trouble":
            try:
                raise KeyError("first")
            except KeyError as exc:
                raise ValueError("no such thing") from exc
        return Reply(text=f"answer to {question}")


async def interrupted(url: str, model: Model, prompt: str) -> App:
    """An App that resumes the run `r`, which an earlier one has left."""
    agents = [Agent(name="agent", model=model), Agent(name="other", model=model)]
    async with App(agents, url, worker=False) as earlier:
        with pytest.raises(Shutdown):
            await earlier.run("agent", prompt, run_id="r")
    model.away = False
    return App(agents, url, worker=False)


async def test_an_id_under_which_recovery_has_ended_a_run_gives_that_run_and_no_other(tmp_path: Path) -> None:
    model = Model()
    async with await interrupted(f"sqlite:{tmp_path}/runs.db", model, "Monday") as app:
        await app.recover()
        assert (await app.run("agent", "Monday", run_id="r")).output == "answer to Monday"
        with pytest.raises(RunConflict):
            await app.run("agent", "Tuesday", run_id="r")
        with pytest.raises(RunConflict):
            await app.run("other", "Monday", run_id="r")
    assert model.asked == ["Monday"]


async def test_of_a_run_that_failed_in_recovery_the_error_is_known_and_nothing_else_is_held(tmp_path: Path) -> None:
    model = Model()
    async with await interrupted(f"sqlite:{tmp_path}/runs.db", model, "trouble") as app:
        await app.recover()
        for _ in range(2):
            with pytest.raises(RunFailed, match="run r failed: ValueError: no such thing"):
                await app.run("agent", "trouble", run_id="r")
        gc.collect()
        assert [page() for page in model.pages] == [None, None]
    assert model.asked == ["trouble"]


async def test_a_run_that_failed_in_recovery_and_was_resumed_by_hand_has_the_later_outcome(tmp_path: Path) -> None:
    says: list[Exception | str] = [Shutdown("going down"), ValueError("a bad day"), "done", "done again"]

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        said = says.pop(0)
        if isinstance(said, Exception):
            raise said
        return Reply(text=said)

    async with App([Agent(name="agent", model=model)], f"sqlite:{tmp_path}/runs.db", worker=False) as app:
        with pytest.raises(Shutdown):
            await app.run("agent", "Monday", run_id="r")
        assert len((await app.recover()).runs_with(RecoveryStatus.FAILED)) == 1
        assert (await app.resume("r")).output == "done"
        assert (await app.run("agent", "Monday", run_id="r")).output == "done"


# -- callers who meet ---------------------------------------------------------------------------------------------


#: Whether the store is slow for this task and the tasks that it starts.
is_slow = ContextVar("is_slow", default=False)


class SlowForOne(ProbeStore):
    """Holds up a method for the slow caller until it is released."""

    def __init__(self, method: str) -> None:
        super().__init__(MemoryStore(), before=self._hold_up)
        self.held, self.go_on = asyncio.Event(), asyncio.Event()
        self._method = method

    async def _hold_up(self, method: str) -> None:
        if method == self._method and is_slow.get():
            self.held.set()
            await self.go_on.wait()

    async def run(self, app: App, prompt: str) -> Result:
        """Run the agent as the slow caller."""
        is_slow.set(True)
        return await app.run("agent", prompt, run_id="r")


#: Whether the run is in the store when the callers come, and the call that is slow for one of them.
MEETINGS = [(False, "get_record"), (True, "get_record"), (True, "claim")]


async def meet(app: App, store: SlowForOne, model: Model, prompt: str, *, stored: bool) -> list[Any]:
    """Return what two callers get, of whom one is held up until the other has the end of the run."""
    if stored:  # each of the callers would resume it
        with pytest.raises(Shutdown):
            await app.run("agent", prompt, run_id="r")
    model.away = False
    slow = asyncio.create_task(store.run(app, prompt))
    await store.held.wait()
    quick = asyncio.create_task(app.run("agent", prompt, run_id="r"))
    await asyncio.wait([quick])
    store.go_on.set()
    return list(await asyncio.gather(slow, quick, return_exceptions=True))


@pytest.mark.parametrize("prompt", ["Monday", "trouble"])
@pytest.mark.parametrize(("stored", "method"), MEETINGS)
async def test_who_came_before_the_end_gets_it_however_slow_the_store_is(
    stored: bool, method: str, prompt: str
) -> None:
    store, model = SlowForOne(method), Model()
    async with App([Agent(name="agent", model=model)], store, worker=False) as app:
        ends = await meet(app, store, model, prompt, stored=stored)
        # So does who comes later.
        ends += await asyncio.gather(app.run("agent", prompt, run_id="r"), return_exceptions=True)
    if prompt == "Monday":
        assert [getattr(end, "output", end) for end in ends] == ["answer to Monday"] * 3
    else:
        assert ["no such thing" in str(end) for end in ends] == [True] * 3
    assert model.asked == [prompt]


async def test_a_known_run_that_ends_and_is_removed_meanwhile_is_not_started_anew() -> None:
    store, model = SlowForOne("claim"), Model()
    settings = CheckpointSettings(retention=REMOVE_ENDED)
    async with App([Agent(name="agent", model=model)], store, worker=False, checkpoint=settings) as app:
        ends = await meet(app, store, model, "Monday", stored=True)
    assert [type(end) for end in ends] == [RunNotFound, Result]
    assert model.asked == ["Monday"]


@pytest.mark.parametrize("kept", [True, False])
async def test_who_found_nothing_in_the_store_and_comes_just_when_the_run_ends_gets_its_end(kept: bool) -> None:
    settings = CheckpointSettings() if kept else CheckpointSettings(retention=REMOVE_ENDED)
    for turns in range(30):
        store, model = SlowForOne("get_record"), Model()
        model.away = False
        async with App([Agent(name="agent", model=model)], store, worker=False, checkpoint=settings) as app:
            slow = asyncio.create_task(store.run(app, "Monday"))
            await store.held.wait()
            quick = asyncio.create_task(app.run("agent", "Monday", run_id="r"))
            for _ in range(turns):
                await asyncio.sleep(0)
            store.go_on.set()
            assert [(await run).output for run in (slow, quick)] == ["answer to Monday"] * 2
        assert model.asked == ["Monday"] or not kept


async def test_who_comes_while_the_run_is_live_need_not_ask_the_store() -> None:
    store, reached, go_on = ProbeStore(MemoryStore()), asyncio.Event(), asyncio.Event()

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        reached.set()
        await go_on.wait()
        return Reply(text="done")

    async with App([Agent(name="agent", model=model)], store, worker=False) as app:
        first = asyncio.create_task(app.run("agent", "Monday", run_id="r"))
        await reached.wait()
        store.calls.clear()
        second = asyncio.create_task(app.run("agent", "Monday", run_id="r"))
        other = asyncio.create_task(app.run("agent", "Tuesday", run_id="r"))
        with pytest.raises(RunConflict):
            await other
        go_on.set()
        assert [(await run).output for run in (first, second)] == ["done", "done"]
        assert {"load", "get_record", "claim"}.isdisjoint(store.calls)


async def test_an_interrupted_run_may_be_submitted_again(tmp_path: Path) -> None:
    model = Model()
    async with await interrupted(f"sqlite:{tmp_path}/runs.db", model, "Monday") as app:
        assert await app.submit("agent", "Monday", run_id="r") == "r"
        with pytest.raises(RunConflict):
            await app.submit("agent", "Tuesday", run_id="r")
        assert list((await app.recover()).statuses) == ["r"]
        assert await app.submit("agent", "Monday", run_id="r") == "r"
        assert (await app.result("r")).output == "answer to Monday"
    assert model.asked == ["Monday"]


@pytest.mark.parametrize("by", ["run", "resume"])
async def test_a_run_that_is_resumed_by_its_id_is_loaded_once(by: str) -> None:
    model, inner = Model(), MemoryStore()
    agent = Agent(name="agent", model=model)
    async with App([agent], ProbeStore(inner), worker=False) as app:
        with pytest.raises(Shutdown):
            await app.run("agent", "Monday", run_id="r")
    model.away = False
    store = ProbeStore(inner)
    async with App([agent], store, worker=False) as app:
        result = await (app.run("agent", "Monday", run_id="r") if by == "run" else app.resume("r"))
        assert result.output == "answer to Monday"
        calls = [call for call in store.calls if call in ("load", "get_record", "claim")]
    assert calls == ["get_record", "claim", "load"]


async def test_a_caller_whose_clock_is_ahead_of_the_stores_waits_for_the_run_without_claiming_it_again_and_again() -> (
    None
):
    start = datetime(2030, 1, 1, tzinfo=UTC)
    store, clock = ProbeStore(MemoryStore(clock=ManualClock(start))), ManualClock(start + timedelta(minutes=1))
    model = ScriptedModel(tool_reply(call("c1", "sleep", seconds=1)), "awake")
    async with App([Agent(name="agent", model=model, tools=[sleep])], store, worker=False, clock=clock) as app:
        caller = asyncio.create_task(app.run("agent", "sleep", run_id="r", through_waits=True))
        for _ in range(100):
            await asyncio.sleep(0)
        assert "release" in store.calls
        await clock.advance(timedelta(seconds=2))
        claims = store.calls.count("claim")
        for _ in range(100):
            await asyncio.sleep(0)
        further = store.calls.count("claim") - claims
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        assert claims > 0
        assert further == 0


async def test_a_caller_that_waits_for_a_run_of_another_app_is_released_when_its_own_begins_to_shut_down(
    tmp_path: Path,
) -> None:
    reached, may_end, url = asyncio.Semaphore(0), asyncio.Event(), f"sqlite:{tmp_path / 'runs.db'}"

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        reached.release()
        await may_end.wait()
        return Reply(text="done")

    agent = Agent(name="agent", model=model)
    async with App([agent], url) as other, App([agent], url, worker=False) as app:
        await other.submit("agent", "go", run_id="of-the-other")
        own = asyncio.create_task(app.run("agent", "go", run_id="own"))
        for _ in range(2):
            await reached.acquire()
        waiting = asyncio.create_task(app.run("agent", "go", run_id="of-the-other"))
        await asyncio.sleep(0)
        stopping = asyncio.create_task(app.shutdown(timedelta(minutes=1)))
        with pytest.raises(Shutdown):
            await waiting
        assert not stopping.done(), "it waits for its own run"
        may_end.set()
        await stopping
        await asyncio.wait([own])
