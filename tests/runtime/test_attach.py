"""Who asks for a run by an id gets that run, whoever has driven it, and never another one."""

import asyncio
import gc
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.probe_store import ProbeStore

from holdfast import Agent, App, CheckpointSettings, Message, Reply, ToolSchema
from holdfast.checkpoint.errors import RunConflict, RunExists
from holdfast.core.errors import RunFailed, Shutdown
from holdfast.runtime.worker import RecoveryStatus
from holdfast.stores.memory import MemoryStore


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
    """An App with which the run `r` goes on, that an earlier one has left."""
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


async def test_the_end_of_a_run_that_was_resumed_by_hand_since_is_not_its_end_any_more(tmp_path: Path) -> None:
    says: list[Exception | str] = [Shutdown("going down"), ValueError("a bad day"), "done", "done again"]

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        said = says.pop(0)
        if isinstance(said, Exception):
            raise said
        return Reply(text=said)

    agents = [Agent(name="agent", model=model)]
    async with App(
        agents,
        f"sqlite:{tmp_path}/runs.db",
        worker=False,
        checkpoint=CheckpointSettings(),
    ) as app:
        with pytest.raises(Shutdown):
            await app.run("agent", "Monday", run_id="r")
        assert len((await app.recover()).runs_with(RecoveryStatus.FAILED)) == 1
        assert (await app.resume("r")).output == "done"
        # It is over and gone, and its id is free.
        assert (await app.run("agent", "Monday", run_id="r")).output == "done again"


# -- callers who meet ---------------------------------------------------------------------------------------------


class SlowForOne(ProbeStore):
    """Holds up the n-th load of the task `slow` until it is told to go on."""

    def __init__(self, method: str) -> None:
        super().__init__(MemoryStore(), before=self._hold_up)
        self.held, self.go_on = asyncio.Event(), asyncio.Event()
        self._method = method

    async def _hold_up(self, method: str) -> None:
        task = asyncio.current_task()
        if method == self._method and task is not None and task.get_name() == "slow":
            self.held.set()
            await self.go_on.wait()


@pytest.mark.parametrize("prompt", ["Monday", "trouble"])
@pytest.mark.parametrize(("stored", "method"), [(False, "load"), (True, "load"), (True, "claim")])
async def test_who_came_before_the_end_gets_it_however_slow_the_store_is(
    stored: bool, method: str, prompt: str
) -> None:
    store, model = SlowForOne(method), Model()
    agent = Agent(name="agent", model=model)
    async with App([agent], store, worker=False) as app:
        if stored:  # each of the callers would resume it
            with pytest.raises(Shutdown):
                await app.run("agent", prompt, run_id="r")
        model.away = False
        slow = asyncio.create_task(app.run("agent", prompt, run_id="r"), name="slow")
        quick = asyncio.create_task(app.run("agent", prompt, run_id="r"))
        await asyncio.wait([quick])
        store.go_on.set()
        ends = await asyncio.gather(slow, quick, return_exceptions=True)
        if prompt == "Monday":
            assert [getattr(end, "output", end) for end in ends] == ["answer to Monday"] * 2
        else:
            assert all("no such thing" in str(end) for end in ends)
        assert model.asked == [prompt]
        # Now the run is over for both of them, and its id is free.
        await asyncio.gather(app.run("agent", prompt, run_id="r"), return_exceptions=True)
        assert model.asked == [prompt] * 2


async def test_who_found_nothing_in_the_store_and_comes_just_when_the_run_ends_gets_its_end() -> None:
    for turns in range(30):
        store, model = SlowForOne("load"), Model()
        model.away = False
        async with App([Agent(name="agent", model=model)], store, worker=False) as app:
            slow = asyncio.create_task(app.run("agent", "Monday", run_id="r"), name="slow")
            await store.held.wait()
            quick = asyncio.create_task(app.run("agent", "Monday", run_id="r"))
            for _ in range(turns):
                await asyncio.sleep(0)
            store.go_on.set()
            assert [(await run).output for run in (slow, quick)] == ["answer to Monday"] * 2
        assert model.asked == ["Monday"]


async def test_who_comes_while_the_run_is_live_need_not_ask_the_store() -> None:
    store, reached, go_on = SlowForOne("load"), asyncio.Event(), asyncio.Event()

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        reached.set()
        await go_on.wait()
        return Reply(text="done")

    async with App([Agent(name="agent", model=model)], store, worker=False) as app:
        first = asyncio.create_task(app.run("agent", "Monday", run_id="r"))
        await reached.wait()
        second = asyncio.create_task(app.run("agent", "Monday", run_id="r"), name="slow")
        other = asyncio.create_task(app.run("agent", "Tuesday", run_id="r"))
        with pytest.raises(RunConflict):
            await other
        go_on.set()
        assert [(await run).output for run in (first, second)] == ["done", "done"]
        assert not store.held.is_set()


async def test_a_run_that_was_not_submitted_is_not_taken_for_one(tmp_path: Path) -> None:
    async with await interrupted(f"sqlite:{tmp_path}/runs.db", Model(), "Monday") as app:
        with pytest.raises(RunExists, match="its result will not be kept"):
            await app.submit("agent", "Monday", run_id="r")
        with pytest.raises(RunConflict):
            await app.submit("agent", "Tuesday", run_id="r")
        await app.recover()
        assert await app.submit("agent", "Monday", run_id="r") == "r"


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
    assert calls == (["load", "claim", "get_record"] if by == "run" else ["get_record", "claim", "load"])
