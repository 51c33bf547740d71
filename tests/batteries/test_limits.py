"""Provider limits: the window, permits shared by processes, and runs that wait for them."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START as GRAPH_START
from langgraph.graph import MessagesState, StateGraph

from holdfast import Agent, App, Reply, Retry, Usage
from holdfast.adapters.langgraph import durable
from holdfast.batteries.rate_limits import (
    RateLimit,
    RateLimitError,
    RateLimits,
    RateLimitsUnavailable,
    Window,
    WindowTable,
)
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import get_record, iter_runs
from holdfast.core.errors import DefinitionError, Shutdown
from holdfast.core.ports import RatePermit
from holdfast.core.run.info import RunInfo
from holdfast.db.sqlite_tables import MemoryTables
from holdfast.db.tables import Cursor
from holdfast.db.urls import tables_from_url
from holdfast.errors import ModelUnavailable
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.testing.adapter_suite import AgentScript, import_driver
from holdfast.testing.adapter_suite.script import ScriptedCall, ScriptedTool

START = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
INFO = RunInfo(run_id="r", agent_name="a")


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


# -- the window -------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    requests=st.none() | st.integers(1, 4),
    tokens=st.none() | st.integers(1, 20),
    # Many pauses end shortly before or after a call no longer counts.
    calls=st.lists(
        st.tuples(st.sampled_from([0, 0.3, 0.9, 20.4, 59.2, 59.7, 60.2, 61]) | st.floats(0, 90), st.integers(0, 20)),
        max_size=30,
    ),
)
def test_no_minute_has_more_than_the_limit_and_no_call_waits_longer_than_61_seconds_require(
    requests: int | None, tokens: int | None, calls: list[tuple[float, int]]
) -> None:
    limit, window, now = RateLimit(requests_per_minute=requests, tokens_per_minute=tokens), Window(), START
    begun: list[tuple[datetime, int]] = []

    def fits(since: datetime, more: int) -> bool:
        counted = [used for at, used in begun if at > since]
        return limit.allows(len(counted) + 1, sum(counted) + more)

    for pause, wanted in calls:
        now += seconds(pause)
        used = min(wanted, tokens) if tokens is not None else wanted
        window.forget_before(now)
        earliest = window.find_time(limit, used, now)
        if earliest > now:
            assert not fits(now - seconds(61), used)
            assert earliest <= now + seconds(61)
            before = max(now, earliest - timedelta(microseconds=1))
            assert window.find_time(limit, used, before) == earliest
            now = earliest
            assert window.find_time(limit, used, now) == now
        assert fits(now - MINUTE, used)
        window.add(now, used)
        begun.append((now, used))


def test_tokens_are_corrected_while_they_count_and_a_pause_ends_by_itself() -> None:
    limit, window = RateLimit(tokens_per_minute=100), Window()
    window.add(START, 90)
    assert window.find_time(limit, 50, START) == START + seconds(61)
    window.correct(START, -60)
    assert window.find_time(limit, 50, START) == START
    window.correct(START, 1000)
    assert window.find_time(limit, 1, START) == START + seconds(61)
    window.pause(START, seconds(61.5))
    assert window.find_time(limit, 1, START) == START + seconds(61.5)
    window.pause(START, seconds(90))
    window.pause(START, seconds(10))
    assert window.find_time(limit, 1, START) == START + seconds(90)
    window.forget_before(START + seconds(61))
    window.correct(START, 1000)
    assert window.buckets == {}
    window.add(START, 5)
    window.correct(START, -9)
    assert window.buckets[int(START.timestamp())].tokens == 0, "never less than none"


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RateLimitError, match="requests_per_minute is 0"):
        RateLimits(requests_per_minute=0)
    with pytest.raises(RateLimitError, match=r"tokens_per_minute is 1\.5"):
        RateLimits(models={"gpt": RateLimit(tokens_per_minute=1.5)})  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="the limit of gpt is 5: give a RateLimit"):
        RateLimits(models={"gpt": 5})  # type: ignore[dict-item]


# -- permits ----------------------------------------------------------------------------------------------------


class Setting:
    """A clock, and limits on windows that other limits share."""

    def __init__(self, url: str) -> None:
        self.url, self.clock, self.memory = url, ManualClock(START), MemoryTables()
        self.made: list[RateLimits] = []

    def make(self, **options: Any) -> RateLimits:
        tables = self.memory if self.url == "memory:" else tables_from_url(self.url)
        self.made.append(RateLimits(tables=tables, clock=self.clock, **options))
        return self.made[-1]


@pytest.fixture
async def setting(battery_url: str) -> AsyncIterator[Setting]:
    made = Setting(battery_url)
    yield made
    for limits in made.made:
        await limits.close()


class TestEveryKindOfWindows:
    async def test_limits_are_shared_and_models_and_keys_are_kept_apart(self, setting: Setting) -> None:
        one, other = setting.make(requests_per_minute=2), setting.make(requests_per_minute=2)
        assert isinstance(await one.acquire(INFO, "gpt", 0), RatePermit)
        assert await other.acquire(INFO, "gpt", 0) == RatePermit(key="gpt", at=START, tokens=0)
        assert await one.acquire(INFO, "gpt", 0) == START + seconds(61)
        assert isinstance(await one.acquire(INFO, "claude", 0), RatePermit)
        by_vendor = setting.make(requests_per_minute=2, key=lambda info, model: model[:3] or None)
        assert await by_vendor.acquire(INFO, "gpt-mini", 0) == START + seconds(61)
        assert await by_vendor.acquire(INFO, "", 0) is None
        strict = setting.make(requests_per_minute=2, models={"claude": RateLimit(requests_per_minute=1)})
        assert await strict.acquire(INFO, "claude", 0) == START + seconds(61)

    async def test_used_tokens_replace_reserved_ones_and_a_lost_reservation_expires(self, setting: Setting) -> None:
        one, other = setting.make(tokens_per_minute=5_000), setting.make(tokens_per_minute=5_000)
        permit = await one.acquire(INFO, "gpt", 0)
        assert isinstance(permit, RatePermit)
        assert permit.tokens == 1_000
        assert await other.acquire(INFO, "gpt", 4_500) == START + seconds(61)
        one.settle(permit, 10)
        await one.close()
        assert isinstance(await other.acquire(INFO, "gpt", 4_500), RatePermit)  # never settled
        assert await one.acquire(INFO, "gpt", 1_000) == START + seconds(61)
        await setting.clock.advance(seconds(61))
        assert isinstance(await one.acquire(INFO, "gpt", 9_999_999), RatePermit)  # more than a minute may contain

    async def test_a_retry_after_is_respected_by_all(self, setting: Setting) -> None:
        one, other = setting.make(), setting.make(requests_per_minute=100)
        permit = await one.acquire(INFO, "gpt", 0)
        assert isinstance(permit, RatePermit)
        one.pause(permit, seconds(30))
        await one.close()
        assert await other.acquire(INFO, "gpt", 0) == START + seconds(30)
        assert isinstance(await other.acquire(INFO, "claude", 0), RatePermit)
        await setting.clock.advance(seconds(30))
        assert isinstance(await other.acquire(INFO, "gpt", 0), RatePermit)

    async def test_calls_that_wait_get_times_one_after_the_other(self, setting: Setting) -> None:
        limits = setting.make(requests_per_minute=2)
        answers = await asyncio.gather(*(limits.acquire(INFO, "gpt", 0) for _ in range(5)))
        assert [isinstance(answer, RatePermit) for answer in answers] == [True, True, False, False, False]
        assert answers[2:] == [START + seconds(61), START + seconds(61), START + seconds(122)]
        assert await limits.acquire(INFO, "gpt", 0) == START + seconds(122)
        assert await limits.acquire(INFO, "gpt", 0) == START + seconds(183)


async def test_a_call_that_is_permitted_counts_for_the_times_of_those_that_wait() -> None:
    clock = ManualClock(START)
    limits = RateLimits(tokens_per_minute=100, tables=MemoryTables(), clock=clock)
    await limits.acquire(INFO, "gpt", 50)
    await clock.advance(seconds(30))
    large, small, later = await asyncio.gather(*(limits.acquire(INFO, "gpt", tokens) for tokens in (60, 50, 30)))
    assert large == START + seconds(61)
    assert isinstance(small, RatePermit)
    assert later == START + seconds(91), "the small one counts until then"
    await limits.close()


async def test_a_reply_that_used_what_was_reserved_or_has_no_limit_writes_nothing() -> None:
    tables = Counting()
    limits = RateLimits(models={"gpt": RateLimit(tokens_per_minute=100)}, tables=tables, clock=ManualClock(START))
    for model, used, writes in (("gpt", 10, 0), ("gpt", 11, 1), ("other", 11, 0)):
        permit = await limits.acquire(INFO, model, 10)
        assert isinstance(permit, RatePermit)
        before = tables.writes
        limits.settle(permit, used)
        await asyncio.sleep(0)
        assert tables.writes - before == writes
    await limits.close()


class Counting(MemoryTables):
    """Tables that count the writes."""

    writes = 0

    async def transaction(self, work: Any, *, lock: Any = ()) -> Any:
        self.writes += 1
        return await super().transaction(work, lock=lock)


async def test_limits_whose_database_is_damaged_interrupt_the_run(tmp_path: Any) -> None:
    (tmp_path / "runs.db").write_bytes(b"no database" * 100)
    limits = RateLimits(requests_per_minute=1, tables=tables_from_url(f"sqlite:{tmp_path}/runs.db"))
    with pytest.raises(RateLimitsUnavailable, match="run r is interrupted"):
        await limits.acquire(INFO, "gpt", 0)
    await limits.close()


async def test_a_damaged_window_interrupts_the_run_and_says_what_to_delete() -> None:
    tables = MemoryTables()
    limits, windows = RateLimits(requests_per_minute=1, tables=tables), WindowTable(tables)
    await limits.acquire(INFO, "gpt", 0)

    async def damage(cursor: Cursor) -> None:
        await cursor.execute("UPDATE rate_window SET state = '{'", ())

    await windows.transaction(damage)
    with pytest.raises(RateLimitsUnavailable, match="the window of gpt cannot be read, delete its row"):
        await limits.acquire(INFO, "gpt", 0)


async def test_a_write_that_is_cancelled_interrupts_the_run_that_waits_for_it() -> None:
    reached = asyncio.Event()

    class SilentTables(MemoryTables):
        async def transaction(self, work: Any, *, lock: Any = ()) -> Any:
            reached.set()
            await asyncio.Event().wait()

    limits = RateLimits(requests_per_minute=1, tables=SilentTables())
    before = asyncio.all_tasks()
    asking = asyncio.create_task(limits.acquire(INFO, "gpt", 0))
    await reached.wait()
    [writing] = asyncio.all_tasks() - before - {asking}
    writing.cancel()
    with pytest.raises(RateLimitsUnavailable, match="the write has stopped"):
        await asking
    assert writing.cancelled()


# -- processes --------------------------------------------------------------------------------------------------


@contextmanager
def start_process(url: str, requests: int, tokens: int) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "tests.batteries.limits_process", url, str(requests), str(tokens)]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def ask_all(processes: "Sequence[subprocess.Popen[str]]", at: int, count: int, tokens: int) -> int:
    """How many permits all processes got together, each of which asked for `count` at the same time."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{at} {count} {tokens}\n")
        process.stdin.flush()
    return sum(int(process.stdout.readline()) for process in processes if process.stdout is not None)


def test_processes_together_never_exceed_the_limits_and_a_killed_one_leaks_nothing(database_url: str) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(start_process(database_url, 20, 1000)) for _ in range(3)]
        assert ask_all(processes, at=0, count=15, tokens=10) == 20
        assert ask_all(processes, at=30, count=5, tokens=1) == 0
        assert ask_all(processes, at=61, count=5, tokens=100) == 10
        assert ask_all(processes, at=122, count=3, tokens=100) == 9
        # It reserves the last tokens, and dies before its reply.
        assert ask_all(processes[:1], at=123, count=1, tokens=100) == 1
        processes[0].send_signal(signal.SIGKILL)
        assert processes[0].wait() == -signal.SIGKILL
        assert ask_all(processes[1:], at=182, count=1, tokens=100) == 0
        assert ask_all(processes[1:], at=183, count=4, tokens=100) == 8
        assert ask_all(processes[1:], at=184, count=4, tokens=100) == 2


# -- runs -------------------------------------------------------------------------------------------------------


async def advance_until_done(clock: ManualClock, task: "asyncio.Task[Any]") -> Any:
    while not task.done():
        await clock.advance(seconds(1))
        await asyncio.sleep(0)
    return await task


async def answer_in_two_steps(city: str) -> str:
    return f"{city} is fine"


@pytest.mark.parametrize("driver", ["native", "pydantic_ai", "openai_agents"])
async def test_a_run_over_the_limit_waits_without_a_slot_and_finishes(driver: str) -> None:
    clock, asked = ManualClock(START), list[datetime]()
    store = MemoryStore(clock=clock)

    async def on_request(step: int) -> None:
        asked.append(clock.now())

    script = AgentScript(
        steps=[[ScriptedCall("c1", "look", "Lisbon")], "done"],
        tools=[ScriptedTool(name="look", function=answer_in_two_steps)],
        on_request=on_request,
    )
    agent = import_driver(f"tests.adapters.drivers.{driver}:DRIVER").make_agent(script)
    limits = RateLimits(requests_per_minute=1, tokens_per_minute=1_000, clock=clock)
    async with App([agent], store, worker=False, rate_limits=limits, clock=clock) as app:
        running = asyncio.create_task(app.run(agent, "go", run_id="r1"))
        while (await store_status(store)) is not RunStatus.WAITING:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        record = await get_record(store, "r1")
        assert record.reason.startswith("the limits of ")
        assert record.wake_at == START + seconds(61)
        result = await advance_until_done(clock, running)
    assert result.output == "done"
    assert len(asked) == 2
    assert asked[1] - asked[0] >= seconds(61)


async def store_status(store: MemoryStore) -> RunStatus | None:
    records = [record async for record in iter_runs(store)]
    return records[0].status if records else None


@pytest.mark.parametrize("sync", [False, True])
async def test_a_model_within_a_node_of_a_graph_waits_in_its_node(sync: bool) -> None:
    clock, asked = ManualClock(START), list[datetime]()
    limits = RateLimits(requests_per_minute=1, clock=clock)
    chat = GenericFakeChatModel(messages=iter([AIMessage("one"), AIMessage("two")]))

    async def ask(state: MessagesState) -> dict[str, Any]:
        reply = await chat.ainvoke("hello")
        asked.append(clock.now())
        return {"messages": [reply]}

    def ask_sync(state: MessagesState) -> dict[str, Any]:
        reply = chat.invoke("hello")
        asked.append(clock.now())
        return {"messages": [reply]}

    builder = StateGraph(MessagesState)
    builder.add_node("first", ask_sync if sync else ask)
    builder.add_node("second", ask_sync if sync else ask)
    builder.add_edge(GRAPH_START, "first")
    builder.add_edge("first", "second")
    agent = durable(builder.compile(), name="graph")
    async with App([agent], MemoryStore(clock=clock), worker=False, rate_limits=limits, clock=clock) as app:
        running = asyncio.create_task(app.run(agent, "go"))
        while not asked:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        result = await advance_until_done(clock, running)
    assert str(result.output["messages"][-1].text) == "two"
    assert len(asked) == 2
    assert asked[1] - asked[0] >= seconds(61)


async def test_a_retry_after_in_one_app_lets_the_runs_of_another_wait(database_url: str) -> None:
    requests: list[str] = []

    async def model(messages: Any, tools: Any) -> Reply:
        requests.append("asked")
        raise ModelUnavailable("busy", timedelta(hours=1))

    agent = Agent(name="a", model=model, retry=Retry(max_tries=1))

    def make_app() -> App:
        return App([agent], database_url, worker=False, rate_limits=RateLimits())

    for run_id, status in (("first", RunStatus.INTERRUPTED), ("second", RunStatus.WAITING)):
        async with make_app() as app:
            await app.submit(agent, "go", run_id=run_id)
            await app.recover()
            assert (await app.get(run_id)).status == status
    assert requests == ["asked"]


async def test_windows_that_count_nothing_are_forgotten(setting: Setting) -> None:
    limits = setting.make(requests_per_minute=9, key=lambda info, model: info.caller_id)
    for caller in ("a", "b", "c"):
        await limits.acquire(RunInfo(run_id="r", agent_name="a", caller_id=caller), "gpt", 0)
    await setting.clock.advance(timedelta(minutes=3))
    await limits.acquire(RunInfo(run_id="r", agent_name="a", caller_id="d"), "gpt", 0)
    tables = setting.memory if setting.url == "memory:" else tables_from_url(setting.url)
    windows = WindowTable(tables)
    assert await windows.select("SELECT key FROM rate_window") == [("d",)]
    await windows.close()


async def test_windows_that_ended_a_minute_ago_are_deleted_once_a_minute() -> None:
    tables = MemoryTables()
    table = WindowTable(tables)
    await table.open(tables)

    async def count_windows(after: float) -> int:
        """Use another window, and return how many are stored."""
        now = START + seconds(after)
        await table.update(["busy"], lambda windows: windows["busy"].add(now, 0), now)
        return len(await table.select("SELECT key FROM rate_window"))

    await table.update(["old"], lambda windows: windows["old"].add(START, 0), START)
    assert [await count_windows(after) for after in (60, 120, 179.9)] == [2, 2, 2]
    assert await count_windows(180) == 1, "it ended at 61 seconds"
    await table.close()


async def test_a_window_that_is_always_in_use_forgets_the_calls_that_no_longer_count(setting: Setting) -> None:
    limits = setting.make(requests_per_minute=9, key=lambda info, model: info.caller_id)
    for _ in range(20):
        await limits.acquire(RunInfo(run_id="r", agent_name="a", caller_id="a"), "gpt", 0)
        await setting.clock.advance(seconds(30))
    tables = setting.memory if setting.url == "memory:" else tables_from_url(setting.url)
    windows = WindowTable(tables)
    [(state,)] = await windows.select("SELECT state FROM rate_window")
    await windows.close()
    assert len(json.loads(state)["buckets"]) == 3, "those of the last minute"


async def test_the_tokens_of_a_reply_are_settled_and_predict_the_next_call() -> None:
    clock, tables = ManualClock(START), MemoryTables()

    async def model(messages: Any, tools: Any) -> Reply:
        return Reply(text="done", usage=Usage(input_tokens=30, output_tokens=12))

    agent = Agent(name="a", model=model)
    limits = RateLimits(tokens_per_minute=1_040, tables=tables, clock=clock)
    async with App([agent], None, rate_limits=limits, clock=clock) as app:
        await app.run(agent, "go")
    window = await WindowTable(tables).update(["model"], itemgetter("model"), clock.now())
    assert [(bucket.requests, bucket.tokens) for bucket in window.buckets.values()] == [(1, 42)]


async def test_a_shutdown_ends_a_short_wait_and_leaves_the_run_for_a_worker() -> None:
    clock = ManualClock(START)
    store = MemoryStore(clock=clock)

    async def model(messages: Any, tools: Any) -> Reply:
        return Reply(text="done")

    agent = Agent(name="a", model=model)
    limits = RateLimits(requests_per_minute=1, clock=clock)
    async with App([agent], store, worker=False, rate_limits=limits, clock=clock) as app:
        await app.run(agent, "go")
        await clock.advance(seconds(58))  # the second call waits for 3 seconds, in this process
        idle = clock.waiting
        running = asyncio.create_task(app.run(agent, "go", run_id="r2"))
        while clock.waiting == idle:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        assert (await get_record(store, "r2")).status is RunStatus.RUNNING
    with pytest.raises(Shutdown):
        await running
