"""Budgets over every kind of ledger, across resumes, children and processes."""

import asyncio
import math
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, App, Reply, Usage, current_call, tool
from holdfast.batteries.budget import (
    Budget,
    BudgetError,
    BudgetExhausted,
    Ledger,
    Limit,
    Reservation,
    Spend,
)
from holdfast.core import Message, Ports, ToolSchema
from holdfast.core.run.info import RunInfo
from holdfast.core.run.state import RunState
from holdfast.db.sqlite_tables import MemoryTables
from holdfast.db.urls import tables_from_url
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
WEEK = timedelta(days=7)


@pytest.fixture
async def ledger(battery_url: str) -> AsyncIterator[Ledger]:
    made = Ledger(tables_from_url(battery_url))
    await made.open()
    yield made
    await made.close()


def reservation(limit: int, estimate: int = 0, account: str = "a") -> Reservation:
    return Reservation(account=account, window=WEEK, limits={"tokens": limit}, estimate=Spend(tokens=estimate))


class TestEveryLedger:
    async def test_a_committed_total_is_spent_and_the_same_total_again_adds_nothing(self, ledger: Ledger) -> None:
        await ledger.commit("r", ["a"], Spend(tokens=5, cost_usd=0.5, runs=1, seconds=2.5), NOW)
        await ledger.commit("r", ["a"], Spend(tokens=5, cost_usd=0.5, runs=1, seconds=2.5), NOW)
        await ledger.commit("r", ["a"], Spend(tokens=8, cost_usd=0.75, runs=1, seconds=3.0), NOW)
        assert await ledger.spent("a", NOW - WEEK) == Spend(tokens=8, cost_usd=0.75, runs=1, seconds=3.0)

    async def test_a_smaller_total_refunds_nothing(self, ledger: Ledger) -> None:
        await ledger.commit("r", ["a"], Spend(tokens=8), NOW)
        await ledger.commit("r", ["a"], Spend(tokens=5), NOW)
        await ledger.commit("r", ["a"], Spend(tokens=9), NOW)
        assert (await ledger.spent("a", NOW - WEEK)).tokens == 9

    async def test_spending_older_than_the_window_does_not_count(self, ledger: Ledger) -> None:
        await ledger.commit("old", ["a"], Spend(tokens=10), NOW - timedelta(days=8))
        await ledger.commit("new", ["a"], Spend(tokens=1), NOW)
        assert (await ledger.spent("a", NOW - WEEK)).tokens == 1
        assert await ledger.reserve("r", [reservation(10)], NOW) is None

    async def test_a_window_is_precise_to_a_minute(self, ledger: Ledger) -> None:
        await ledger.commit("r", ["a"], Spend(tokens=10), NOW)
        assert (await ledger.spent("a", NOW)).tokens == 10
        assert (await ledger.spent("a", NOW + timedelta(minutes=1))).tokens == 0

    async def test_accounts_are_kept_apart(self, ledger: Ledger) -> None:
        await ledger.commit("r", ["a", "b"], Spend(tokens=3), NOW)
        await ledger.commit("s", ["b"], Spend(tokens=4), NOW)
        assert (await ledger.spent("a", NOW - WEEK)).tokens == 3
        assert (await ledger.spent("b", NOW - WEEK)).tokens == 7

    async def test_a_limit_that_a_person_has_set_counts_until_it_is_taken_back(self, ledger: Ledger) -> None:
        await ledger.commit("r", ["a", "b"], Spend(tokens=10), NOW)
        await ledger.set_limit("a", "tokens", WEEK, 20)
        assert await ledger.limits(WEEK) == {"a": {"tokens": 20}}
        assert await ledger.limits(WEEK / 7) == {}
        assert await ledger.reserve("s", [reservation(10)], NOW) is None
        other = await ledger.reserve("s", [reservation(10, account="b")], NOW)
        assert other is not None
        assert (other.account, other.limit) == ("b", 10)
        await ledger.set_limit("a", "tokens", WEEK, 5)
        lowered = await ledger.reserve("s", [reservation(100)], NOW)
        assert lowered is not None
        assert lowered.limit == 5
        await ledger.set_limit("a", "tokens", WEEK, None)
        assert await ledger.reserve("s", [reservation(100)], NOW) is None

    async def test_accounts_with_spending_in_the_window_are_listed(self, ledger: Ledger) -> None:
        await ledger.commit("old", ["gone", "a"], Spend(tokens=10), NOW - timedelta(days=8))
        await ledger.commit("r", ["a", "b"], Spend(tokens=3, cost_usd=0.5, runs=1), NOW)
        spend = Spend(tokens=3, cost_usd=0.5, runs=1)
        assert await ledger.accounts(NOW - WEEK) == {"a": spend, "b": spend}

    async def test_reservations_of_other_runs_count(self, ledger: Ledger) -> None:
        assert await ledger.reserve("one", [reservation(10, 10)], NOW) is None
        shortage = await ledger.reserve("two", [reservation(10, 10)], NOW + timedelta(seconds=20))
        assert shortage is not None
        assert (shortage.account, shortage.unit, shortage.spent, shortage.limit) == ("a", "tokens", 10, 10)
        assert shortage.until == NOW + timedelta(seconds=40), "the reservation is 20 seconds old"
        for age, pause in ((timedelta(seconds=1), timedelta(seconds=5)), (timedelta(hours=1), timedelta(minutes=10))):
            shortage = await ledger.reserve("two", [reservation(10, 10)], NOW + age)
            assert shortage is not None
            assert shortage.until == NOW + age + pause

    async def test_there_is_room_when_enough_spending_has_left_the_window(self, ledger: Ledger) -> None:
        for number, tokens in enumerate([5, 1, 1, 9]):
            await ledger.commit(f"r{number}", ["a"], Spend(tokens=tokens, runs=1), NOW + timedelta(minutes=number))
        later = NOW + timedelta(hours=1)

        async def find_room(limits: dict[str, float]) -> datetime | None:
            wanted = Reservation(account="a", window=WEEK, limits=limits, estimate=Spend(tokens=3, runs=1))
            shortage = await ledger.reserve("late", [wanted], later)
            assert shortage is not None
            if shortage.until is not None:
                assert await ledger.reserve("late", [wanted], shortage.until - timedelta(seconds=1)) is not None
                assert await ledger.reserve("late", [wanted], shortage.until) is None
            return shortage.until

        minute = timedelta(minutes=1)
        assert await find_room({"tokens": 16}) == NOW + WEEK + minute, "16 are spent, and any room is enough"
        assert await find_room({"tokens": 12}) == NOW + WEEK + minute
        assert await find_room({"tokens": 11}) == NOW + WEEK + 2 * minute
        assert await find_room({"tokens": 1}) == NOW + WEEK + 4 * minute
        assert await find_room({"runs": 4}) == NOW + WEEK + minute, "a whole run has to fit"
        assert await find_room({"runs": 3}) == NOW + WEEK + 2 * minute
        assert await find_room({"tokens": 0}) is None
        assert await find_room({"runs": 0}) is None

    async def test_a_run_replaces_its_own_reservation(self, ledger: Ledger) -> None:
        assert await ledger.reserve("one", [reservation(10, 10)], NOW) is None
        assert await ledger.reserve("one", [reservation(10, 10)], NOW) is None

    async def test_a_commit_releases_the_reservation(self, ledger: Ledger) -> None:
        await ledger.reserve("one", [reservation(10, 10)], NOW)
        await ledger.commit("one", ["a"], Spend(tokens=2), NOW)
        assert await ledger.reserve("two", [reservation(10, 5)], NOW) is None

    async def test_all_accounts_are_reserved_or_none(self, ledger: Ledger) -> None:
        await ledger.commit("r", ["full"], Spend(tokens=10), NOW)
        both = [reservation(10, 10, "a"), reservation(10, 10, "full")]
        assert await ledger.reserve("one", both, NOW) is not None
        assert await ledger.reserve("two", [reservation(10, 10, "a")], NOW) is None

    async def test_a_whole_run_has_to_fit(self, ledger: Ledger) -> None:
        one = Reservation(account="a", window=WEEK, limits={"runs": 1}, estimate=Spend(runs=1))
        assert await ledger.reserve("one", [one], NOW) is None
        assert await ledger.reserve("two", [one], NOW) is not None

    async def test_a_booked_run_is_not_counted_again(self, ledger: Ledger) -> None:
        one = Reservation(account="a", window=WEEK, limits={"runs": 1}, estimate=Spend(runs=1))
        assert await ledger.reserve("one", [one], NOW) is None
        await ledger.commit("one", ["a"], Spend(runs=1), NOW)
        assert await ledger.reserve("one", [one], NOW) is None
        assert (await ledger.reserve("two", [one], NOW)) is not None

    async def test_the_reservation_of_a_lost_run_expires_with_the_window(self, ledger: Ledger) -> None:
        await ledger.reserve("lost", [reservation(10, 10)], NOW - WEEK)
        assert await ledger.reserve("r", [reservation(10)], NOW) is not None
        assert await ledger.reserve("r", [reservation(10)], NOW + timedelta(seconds=1)) is None

    async def test_a_purged_booking_is_not_booked_again(self, ledger: Ledger) -> None:
        await ledger.commit("r", ["a"], Spend(tokens=10, runs=1), NOW - timedelta(days=30))
        await ledger.purge(NOW - WEEK)
        await ledger.commit("r", ["a"], Spend(tokens=12, runs=1), NOW, already_booked=Spend(tokens=10, runs=1))
        assert await ledger.spent("a", NOW - WEEK) == Spend(tokens=2)

    async def test_purged_spending_and_reservations_are_gone(self, ledger: Ledger) -> None:
        await ledger.commit("old", ["a"], Spend(tokens=10), NOW - timedelta(days=30))
        await ledger.reserve("lost", [reservation(100, 50)], NOW - timedelta(days=30))
        await ledger.commit("new", ["a"], Spend(tokens=1), NOW)
        await ledger.purge(NOW - WEEK)
        assert (await ledger.spent("a", NOW - timedelta(days=365))).tokens == 1
        assert await ledger.reserve("r", [reservation(10)], NOW) is None


@pytest.mark.parametrize("step", [7, 50])
def test_processes_that_spend_at_once_overshoot_by_at_most_one_step(database_url: str, step: int) -> None:
    limit, processes = 1000, 6
    program = [sys.executable, str(Path(__file__).with_name("budget_process.py")), database_url]
    spenders = [
        subprocess.Popen(
            [*program, f"r{number}", str(limit), str(step)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(processes)
    ]
    for spender in spenders:
        assert spender.stdout is not None
        assert spender.stdout.readline() == "ready\n"
    outputs = [spender.communicate("go\n", timeout=100)[0] for spender in spenders]
    assert [spender.returncode for spender in spenders] == [0] * processes
    total = sum(int(output) for output in outputs)
    assert limit <= total < limit + step

    async def booked() -> int:
        ledger = Ledger(tables_from_url(database_url))
        await ledger.open()
        try:
            return (await ledger.spent("all", datetime.now(UTC) - timedelta(hours=1))).tokens
        finally:
            await ledger.close()

    assert asyncio.run(booked()) == total


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("rst"), st.integers(0, 20), st.integers(0, 20 * 24 * 60)), max_size=30))
def test_the_window_is_the_sum_of_the_increments_in_it(commits: list[tuple[str, int, int]]) -> None:
    async def check() -> None:
        ledger = Ledger(MemoryTables())
        totals: dict[str, int] = {}
        increments: list[tuple[int, int]] = []
        for run_id, more, minute in sorted(commits, key=itemgetter(2)):
            totals[run_id] = totals.get(run_id, 0) + more
            increments.append((minute, more))
            await ledger.commit(run_id, ["a"], Spend(tokens=totals[run_id]), NOW + timedelta(minutes=minute))
        end = 20 * 24 * 60
        since = end - 7 * 24 * 60
        expected = sum(more for minute, more in increments if minute >= since)
        assert (await ledger.spent("a", NOW + timedelta(minutes=since))).tokens == expected

    asyncio.run(check())


# -- in a run ---------------------------------------------------------------------------------------------------------


@tool(effect="pure")
async def work(number: int) -> str:
    return f"worked {number}"


def spends(tokens: int, steps: int) -> ScriptedModel:
    usage = Usage(input_tokens=tokens)
    turns = [tool_reply(call(f"c{number}", "work", number=number), usage=usage) for number in range(steps - 1)]
    return ScriptedModel(*turns, Reply(text="done", usage=usage))


async def test_a_limit_that_is_raised_for_one_account_lets_its_run_resume() -> None:
    budget = Budget(Limit(tokens=50), Limit(runs=9, per="all"))
    async with App([Agent(name="a", model=spends(60, 2), tools=[work])], MemoryStore(), budget=budget) as app:
        with pytest.raises(BudgetExhausted, match="60 of 50 tokens"):
            await app.run("a", "go", run_id="r1", caller_id="ann")
        for account, unit, maximum in (
            ("caller:ann", "runs", 5),
            ("agent:a", "tokens", 5),
            ("caller:ann", "tokens", -1),
        ):
            with pytest.raises(BudgetError):
                await budget.set_limit(account, unit, maximum)
        await budget.set_limit("caller:bob", "tokens", 0)
        await budget.set_limit("caller:ann", "tokens", 500.0)
        [first, _] = await budget.accounts()
        assert (first.name, first.limit.tokens, first.changed) == ("caller:ann", 500, frozenset({"tokens"}))
        assert first.share == 60 / 500
        assert msgspec.structs.replace(first, limit=Limit(runs=1)).share == 1
        assert msgspec.structs.replace(first, limit=Limit(runs=0)).share == math.inf
        assert (await app.result("r1", through_waits=True)).output == "done"


async def test_limits_of_cost_and_time_are_no_whole_numbers() -> None:
    budget = Budget(Limit(cost_usd=5, seconds=60, runs=3), tables=MemoryTables())
    await budget._ledger.commit("r", ["caller:ann"], Spend(runs=1), budget._clock.now())
    for unit, maximum in (("cost_usd", 0.25), ("seconds", 1.5), ("runs", 2.0)):
        await budget.set_limit("caller:ann", unit, maximum)
    [account] = await budget.accounts()
    limit = account.limit
    assert (limit.cost_usd, limit.seconds, limit.runs) == (0.25, 1.5, 2)
    assert isinstance(limit.runs, int)


async def test_the_limits_of_the_code_are_compared_once() -> None:
    class Counting(MemoryTables):
        writes = 0

        async def transaction(self, work: Any, *, lock: Any = ()) -> Any:
            self.writes += bool(lock)
            return await super().transaction(work, lock=lock)

    async def wake() -> None: ...

    tables = Counting()
    budget = Budget(Limit(tokens=50), tables=tables)
    budget.bind(wake)
    for _ in range(2):
        await budget.wake_if_raised()
    assert tables.writes == 1
    budget.bind(wake)
    await budget.wake_if_raised()
    assert tables.writes == 2, "another App has opened it"


async def test_runs_that_wait_are_resumed_when_a_limit_is_set_and_not_again() -> None:
    woken: list[str] = []

    async def wake() -> None:
        woken.append("woken")

    budget = Budget(Limit(tokens=50), tables=MemoryTables())
    await budget.set_limit("caller:ann", "tokens", 60)
    assert woken == [], "no App has opened it"
    budget.bind(wake)
    await budget.set_limit("caller:ann", "tokens", 70)
    assert woken == ["woken"]
    await budget.wake_if_raised()
    assert woken == ["woken"]


async def test_a_limit_of_the_code_that_is_raised_or_gone_resumes_the_runs_that_wait() -> None:
    tables, woken = MemoryTables(), list[str]()

    async def wake() -> None:
        woken.append("woken")

    async def open_with(*limits: Limit) -> int:
        woken.clear()
        budget = Budget(*limits, tables=tables)
        budget.bind(wake)
        await budget.wake_if_raised()
        return len(woken)

    everyone = Limit(runs=9, per="all")
    assert await open_with(Limit(tokens=50), everyone) == 0, "the first"
    assert await open_with(Limit(tokens=50), everyone) == 0
    assert await open_with(Limit(tokens=40), everyone) == 0, "lowered"
    assert await open_with(Limit(tokens=41), everyone) == 1
    assert await open_with(Limit(tokens=41)) == 1, "one is gone"
    assert await open_with(Limit(tokens=41), everyone) == 0, "a new one"


async def test_spending_before_a_crash_counts_once() -> None:
    store, tables = MemoryStore(), MemoryTables()
    hang = asyncio.Event()

    async def dies(messages: object) -> Reply:
        hang.set()
        await asyncio.Event().wait()
        raise AssertionError

    usage = Usage(input_tokens=10, cost_usd=0.25)
    first = ScriptedModel(tool_reply(call("c0", "work", number=0), usage=usage), dies)
    second = ScriptedModel(tool_reply(call("c0", "work", number=0), usage=usage), Reply(text="done", usage=usage))
    budget = Budget(Limit(tokens=1000, runs=1, per="agent"), tables=tables)
    one = SimulatedHost(store, ports=Ports(budget=budget))
    task = asyncio.create_task(one.executor.run(Agent(name="a", model=first, tools=[work]), "go", run_id="r"))
    await hang.wait()
    await one.crash()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await SimulatedHost(store, ports=Ports(budget=budget)).resume(Agent(name="a", model=second, tools=[work]), "r")
    spent = await budget.spent("agent:a")
    assert (spent.tokens, spent.cost_usd, spent.runs) == (20, 0.5, 1)


async def test_a_run_that_resumes_after_its_window_books_only_new_spending() -> None:
    clock = ManualClock()
    store, agent = MemoryStore(clock=clock), Agent(name="a", model=spends(40, 5), tools=[work])
    budget = Budget(Limit(tokens=100, runs=1), tables=MemoryTables(), clock=clock)
    one = SimulatedHost(store, clock=clock, ports=Ports(budget=budget))
    with pytest.raises(BudgetExhausted, match="120 of 100"):
        await one.executor.run(agent, "go", run_id="r", caller_id="alice")
    await clock.advance(timedelta(days=8))
    await budget.purge()
    assert (await SimulatedHost(store, clock=clock, ports=Ports(budget=budget)).resume(agent, "r")).output == "done"
    spent = await budget.spent("caller:alice")
    assert (spent.tokens, spent.runs) == (80, 0)


async def test_a_purge_deletes_the_rows_and_an_hour_later_the_next_commit_does(battery_url: str) -> None:
    clock, tables = ManualClock(), tables_from_url(battery_url)
    limit, ledger = Limit(tokens=100, runs=9, window=timedelta(hours=2)), Ledger(tables)
    budget = Budget(limit, tables=tables, clock=clock)
    info = RunInfo(run_id="r", agent_name="a", caller_id="alice")

    async def count_rows() -> list[int]:
        names = ("budget_spent", "budget_total", "budget_reserved")
        return [(await ledger.select(f"SELECT COUNT(*) FROM {name}"))[0][0] for name in names]

    await budget.check(info, state := RunState())
    await budget.commit(info, state)
    await budget.check(msgspec.structs.replace(info, run_id="lost"), RunState())
    assert await count_rows() == [1, 1, 1]
    await clock.advance(timedelta(hours=3))
    await budget.purge()
    assert await count_rows() == [0, 0, 0]

    await budget.commit(info, RunState())
    await clock.advance(timedelta(hours=3))
    await budget.commit(msgspec.structs.replace(info, run_id="later"), RunState())
    assert await count_rows() == [1, 1, 0], "those of the last hours are left"

    await ledger.commit("old", ["all"], Spend(tokens=1), clock.now() - timedelta(hours=3))
    await clock.advance(timedelta(minutes=59))
    await budget.commit(info, RunState())
    assert await count_rows() == [3, 3, 0]
    await clock.advance(timedelta(minutes=1))
    await budget.commit(info, RunState())
    assert await count_rows() == [3, 2, 0], "an hour has passed: the old one is gone"
    await budget.close()


async def test_a_run_that_was_refused_does_not_count() -> None:
    clock = ManualClock()
    budget = Budget(Limit(runs=1, window=timedelta(days=1)), tables=MemoryTables(), clock=clock)
    host = SimulatedHost(clock=clock, ports=Ports(budget=budget))
    agent = Agent(name="a", model=ScriptedModel("done", "done"))
    await host.executor.run(agent, "go")
    for number in range(3):
        with pytest.raises(BudgetExhausted, match="1 of 1 runs"):
            await host.executor.run(agent, "go", run_id=f"refused-{number}")
    await clock.advance(timedelta(hours=23))
    with pytest.raises(BudgetExhausted, match="1 of 1 runs"):
        await host.executor.run(agent, "go", run_id="refused-later")
    await clock.advance(timedelta(hours=1, minutes=2))
    assert (await host.resume(agent, "refused-0")).output == "done"


async def test_a_limit_is_exceeded_by_at_most_one_step_of_each_run() -> None:
    budget = Budget(Limit(tokens=100, per="all"), tables=MemoryTables())
    agents = [Agent(name=f"a{number}", model=spends(30, 20), tools=[work]) for number in range(3)]
    host = SimulatedHost(ports=Ports(budget=budget))
    ends = await asyncio.gather(*(host.executor.run(agent, "go") for agent in agents), return_exceptions=True)
    assert all(isinstance(end, BudgetExhausted) for end in ends)
    assert 100 <= (await budget.spent("all")).tokens <= 100 + 3 * 30


async def test_children_book_their_own_spending_and_nothing_is_counted_twice() -> None:
    clock, helping = ManualClock(), spends(7, 1)

    async def help_slowly(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        await clock.advance(timedelta(seconds=2))
        return await helping(messages, tools)

    child = Agent(name="child", model=help_slowly)

    @tool(effect="idempotent")
    async def delegate() -> str:
        return str((await current_call().run(child, "help")).output)

    usage = Usage(input_tokens=10)
    parent = Agent(
        name="parent",
        model=ScriptedModel(tool_reply(call("c1", "delegate"), usage=usage), Reply(text="done", usage=usage)),
        tools=[delegate],
    )
    budget = Budget(Limit(tokens=1000, per="all"), tables=MemoryTables(), clock=clock)
    result = await SimulatedHost(clock=clock, ports=Ports(budget=budget)).executor.run(parent, "go")
    assert result.usage.input_tokens == 27
    assert await budget.spent("all") == Spend(tokens=27, runs=1, seconds=2), "the time of a child is in its parent's"


@pytest.mark.parametrize("store", ["memory:", None])
async def test_the_time_of_every_run_counts_also_of_one_that_fails(store: str | None) -> None:
    clock = ManualClock()

    async def takes_a_second(messages: object) -> Reply:
        await clock.advance(timedelta(seconds=1))
        raise ValueError("broken")

    async def takes_two(messages: object) -> Reply:
        await clock.advance(timedelta(seconds=2))
        return Reply(text="done")

    budget = Budget(Limit(seconds=100, per="agent"), clock=clock)
    agents = [
        Agent(name="failing", model=ScriptedModel(takes_a_second)),
        Agent(name="ending", model=ScriptedModel(takes_two)),
    ]
    async with App(agents, store, budget=budget, clock=clock) as app:
        with fails_with(ValueError, match="broken"):
            await app.run("failing", "go")
        await app.run("ending", "go")
        assert [(await budget.spent(f"agent:{agent.name}")).seconds for agent in agents] == [1, 2]


async def test_a_run_counts_once_with_all_its_steps_and_children() -> None:
    child = Agent(name="child", model=ScriptedModel("helped"))

    @tool(effect="idempotent")
    async def delegate() -> str:
        return str((await current_call().run(child, "help")).output)

    model = ScriptedModel(tool_reply(call("1", "delegate")), tool_reply(call("2", "delegate")), "done")
    budget = Budget(Limit(runs=1, per="all"))
    async with App([Agent(name="a", model=model, tools=[delegate])], MemoryStore(), budget=budget) as app:
        assert (await app.run("a", "go")).output == "done"
        assert (await budget.spent("all")).runs == 1


async def test_a_window_that_has_moved_lets_a_run_begin_again() -> None:
    clock = ManualClock()
    budget = Budget(Limit(runs=1, window=timedelta(days=1)), tables=MemoryTables(), clock=clock)
    one = SimulatedHost(clock=clock, ports=Ports(budget=budget))
    agent = Agent(name="a", model=ScriptedModel("done"))
    await one.executor.run(agent, "go")
    with pytest.raises(BudgetExhausted):
        await one.executor.run(agent, "go")
    await clock.advance(timedelta(days=1, minutes=2))
    await one.executor.run(agent, "go")


@pytest.mark.parametrize("options", [{}, {"tokens": 1, "per": "planet"}, {"tokens": 1, "window": timedelta(0)}])
def test_an_invalid_limit_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(BudgetError):
        Limit(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limit", "caller", "account"),
    [
        (Limit(tokens=1), "ann", "caller:ann"),
        (Limit(tokens=1), "", "runs without a caller"),
        (Limit(tokens=1, per="all"), "ann", "all"),
        (Limit(tokens=1, per="agent"), "ann", "agent:a"),
    ],
)
async def test_a_run_that_waits_names_the_account_that_is_empty(limit: Limit, caller: str, account: str) -> None:
    budget, info = Budget(limit, tables=MemoryTables()), RunInfo(run_id="r", agent_name="a", caller_id=caller)
    await budget._ledger.commit("other", [limit.account(info)], Spend(tokens=1), budget._clock.now())
    with pytest.raises(
        BudgetExhausted, match=rf"its budget until .* UTC or a raised limit \({account}: 1 of 1 tokens\)"
    ):
        await budget.check(info, RunState())


def test_a_budget_without_limits_is_refused() -> None:
    with pytest.raises(BudgetError, match="a limit is 5: give a Limit"):
        Budget(5)  # type: ignore[arg-type]
    with pytest.raises(BudgetError):
        Budget()
