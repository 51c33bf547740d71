"""The feed of one run: when it reads, what its watchers share, and what is left when they go."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta

import pytest
from tests.probe_store import ProbeStore
from tests.runtime.streams.watching import collect, get_types

from holdfast.checkpoint.errors import StoreClosed, StoreUnavailable
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.core.observer import AttemptControl
from holdfast.core.ports import Checkpointer
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NO_USAGE, Reply, User
from holdfast.core.run.run_events import Event, StatusChanged
from holdfast.core.run.state import RunState
from holdfast.runtime.changes import ChangeSignal
from holdfast.runtime.streams.hub import EventHub
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

MS = timedelta(milliseconds=1)


class Watched:
    """A hub, and a run that this process or another one executes."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ProbeStore(MemoryStore(clock=self.clock), before=self._note)
        self.own = StoreCheckpoints(self.store, clock=self.clock)
        self.other = StoreCheckpoints(self.store, clock=self.clock)
        self.changes = ChangeSignal(self.store, self.clock)
        self.hub = EventHub(self.own, self.changes, clock=self.clock)
        self.hub.open()
        self.state = RunState()
        #: When the journal was read, in milliseconds.
        self.reads: list[int] = []
        self.error: Exception | None = None
        #: While it is not set, no record is read alone: a feed does that first.
        self.may_begin = asyncio.Event()
        self.may_begin.set()

    async def _note(self, method: str) -> None:
        if method == "get_record":
            await self.may_begin.wait()
        if method == "load":
            self.reads.append(round(self.clock.monotonic() * 1_000))
            if self.error is not None:
                raise self.error

    async def begin(self, *, local: bool) -> Checkpointer:
        await self.own.open()
        checkpointer = await (self.own if local else self.other).begin(RunInfo(run_id="r", agent_name="a"))
        self.state.history.append(User("go"))
        await checkpointer.save(self.state, force=True)
        return checkpointer

    async def step(self, checkpointer: Checkpointer) -> None:
        self.state.history.append(Reply(text=f"reply {self.state.steps}"))
        self.state.finish_step()
        await checkpointer.save(self.state, force=True)


async def take(events: AsyncGenerator[Event, None], into: list[str]) -> None:
    async for event in events:
        into += [event.type]


@pytest.mark.parametrize(
    ("local", "pauses"),
    [
        (False, [120, 190, 330, 610, 1_050, 1_050, 1_050]),
        (True, [1_020, 1_020, 1_020, 1_020]),
    ],
)
async def test_a_run_of_another_process_is_read_often_and_less_often_while_nothing_happens(
    local: bool, pauses: list[int]
) -> None:
    watched = Watched()
    checkpointer = await watched.begin(local=local)
    watched.changes.add = lambda event: None  # type: ignore[method-assign]  # no change is noticed
    seen: list[str] = []
    async with aclosing(watched.hub.stream("r", None)) as events:
        taking = asyncio.create_task(take(events, seen))
        await watched.clock.advance(sum(pauses) * MS)
        times = sorted(set(watched.reads))
        assert times[0] == 0
        assert [after - before for before, after in itertools.pairwise(times)] == pauses
        before = len(watched.reads)
        await watched.step(checkpointer)
        watched.hub.wake("r")
        await watched.clock.advance((20 if local else 50) * MS)
        assert len(watched.reads) == before + 1
        assert seen[-3:] == ["reply", "step_finished", "step_started"]
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
    await watched.hub.close()
    assert watched.clock.waiting == 0


async def test_watchers_that_begin_together_share_a_read_and_later_ones_read_again() -> None:
    watched = Watched()
    checkpointer = await watched.begin(local=True)
    lists: list[list[str]] = [[], [], []]
    tasks = [asyncio.create_task(take(watched.hub.stream("r", None), lists[n])) for n in range(2)]
    await watched.clock.advance(MS)
    assert len(watched.reads) == 2, "one of the feed, and one for both watchers"
    assert lists[0] == lists[1] == ["message", "status", "step_started"]
    await watched.step(checkpointer)
    watched.hub.wake("r")
    await watched.clock.advance(100 * MS)
    tasks.append(asyncio.create_task(take(watched.hub.stream("r", None), lists[2])))
    await watched.clock.advance(MS)
    assert lists[2] == ["message", "reply", "step_finished", "status", "step_started"]
    assert lists[0] == ["message", "status", "step_started", "reply", "step_finished", "step_started"]
    [feed] = watched.hub._feeds.values()
    assert all(each.cursor is not None for each in feed.subscriptions), "a watcher that is too slow continues there"
    assert (feed.users, len(feed.subscriptions)) == (3, 3)
    for left, task in enumerate(tasks, start=1):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        assert feed.users == len(feed.subscriptions) == 3 - left
    await watched.clock.advance(MS)
    assert watched.hub._feeds == {}
    assert feed.task is not None
    assert feed.task.done()
    await watched.changes.close()
    assert watched.clock.waiting == 0


async def test_a_watcher_misses_nothing_that_is_recorded_before_its_feed_knows_where_to_begin() -> None:
    watched = Watched()
    checkpointer = await watched.begin(local=True)
    watched.may_begin.clear()
    seen: list[str] = []
    task = asyncio.create_task(take(watched.hub.stream("r", None), seen))
    await watched.clock.advance(MS)
    await watched.step(checkpointer)
    watched.may_begin.set()
    await watched.clock.advance(timedelta(seconds=2))
    assert seen == ["message", "reply", "step_finished", "status", "step_started"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await watched.changes.close()


async def test_a_draft_that_follows_an_unread_step_makes_the_feed_read_it() -> None:
    watched = Watched()
    checkpointer = await watched.begin(local=True)
    seen: list[str] = []
    task = asyncio.create_task(take(watched.hub.stream("r", None), seen))
    await watched.clock.advance(100 * MS)
    before = len(seen)
    await watched.step(checkpointer)  # no observer reports the save
    draft = watched.hub.open_draft("r", checkpointer)
    assert draft is not None
    draft.add(text="warm")
    await watched.clock.advance(25 * MS)
    assert seen[before:] == ["reply", "step_finished", "step_started", "text_delta"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await watched.hub.close()
    await watched.changes.close()


async def test_a_store_that_fails_is_waited_for_and_one_that_is_closed_ends_the_streams() -> None:
    watched = Watched()
    checkpointer = await watched.begin(local=True)
    seen: list[str] = []
    task = asyncio.create_task(take(watched.hub.stream("r", None), seen))
    await watched.clock.advance(MS)
    watched.error = StoreUnavailable("away")
    await watched.step(checkpointer)
    await watched.clock.advance(timedelta(seconds=5))
    assert not task.done()
    assert "reply" not in seen
    watched.error = None
    await watched.clock.advance(timedelta(seconds=2))
    assert "reply" in seen
    watched.error = StoreClosed("closed")
    await watched.clock.advance(timedelta(seconds=2))
    with pytest.raises(StoreClosed, match="closed"):
        await task
    await watched.changes.close()


async def test_a_hub_that_is_closed_ends_its_streams_and_accepts_none() -> None:
    watched = Watched()
    await watched.begin(local=True)
    task = asyncio.create_task(take(watched.hub.stream("r", None), []))
    await watched.clock.advance(MS)
    await watched.hub.close()
    with pytest.raises(StoreClosed, match="watch again from another process"):
        await task
    with pytest.raises(StoreClosed, match="nothing can be watched"):
        await anext(watched.hub.stream("r", None))
    with pytest.raises(StoreClosed, match="nothing can be watched"):
        await anext(EventHub(watched.own, watched.changes).stream("r", None))
    watched.hub.open()
    async with aclosing(watched.hub.stream("r", None)) as events:
        assert (await anext(events)).type == "message"
    await watched.clock.advance(MS)
    await watched.changes.close()
    assert watched.clock.waiting == 0


async def test_a_stream_ends_with_the_run_and_with_its_removal() -> None:
    watched = Watched()
    checkpointer = await watched.begin(local=True)
    tasks = [asyncio.create_task(collect(watched.hub.stream("r", None))) for _ in range(2)]
    await watched.clock.advance(MS)
    await checkpointer.complete("done", NO_USAGE)
    await watched.clock.advance(timedelta(seconds=2))
    for task in tasks:
        events = await task
        assert get_types(events) == ["message", "output"]
        assert [event.status for event in events if isinstance(event, StatusChanged)] == ["running", "done"]
    assert get_types(await collect(watched.hub.stream("r", None))) == ["message", "output"], "it has ended before"
    await watched.changes.close()


async def test_a_run_without_a_checkpointer_is_not_shown() -> None:
    class Attempt:
        info, checkpointer = RunInfo(run_id="r", agent_name="a"), None

    attempt: AttemptControl = Attempt()  # type: ignore[assignment]
    assert Watched().hub.live.begin(attempt) is None
