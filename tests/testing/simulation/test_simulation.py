"""The simulator: same seed, same trace; no schedule breaks a promise; planted faults are found."""

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from tests.testing.simulation.planted_faults import FAULTS

from holdfast import Agent, App, Reply, ToolCall, tool
from holdfast.checkpoint.store import RunStore
from holdfast.core import Message, ToolSchema
from holdfast.testing.simulation import SimulationFailed, simulate
from holdfast.testing.simulation.plan import StoreKind
from holdfast.testing.simulation.scenarios.draw_plan import make_plan
from holdfast.testing.simulation.simulate import format_failure, run_seed, shrink
from holdfast.testing.simulation.world.world import World

STORES: tuple[StoreKind, ...] = ("memory", "sqlite")
#: Schedules of one test: SQLite takes several times as long.
COUNTS = {"memory": 60, "sqlite": 15}
#: Other schedules in each run of the tests. A failure prints its seed.
FRESH = random.SystemRandom().randrange(10**6, 10**9)


def check_seeds(first: int, store: StoreKind) -> None:
    for seed in range(first, first + COUNTS[store]):
        outcome = run_seed(seed, store)
        if outcome.problems:
            command = f"python -m holdfast.testing.simulation --seed {seed} --store {store}"
            pytest.fail(format_failure(shrink(outcome), command))


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("chunk", range(2))
def test_no_schedule_of_the_fixed_seeds_breaks_a_promise(chunk: int, store: StoreKind) -> None:
    check_seeds(chunk * COUNTS[store], store)


#: Faults that plans without hazards have found: an answer that came while a branch of a workflow recorded its expiry
#: let the run resume endlessly; a person could not resolve a call in doubt whose branch had lost a race in the same
#: attempt; a step that a workflow cancelled while its result was saved was recorded a second time, as cancelled; an I/O
#: error of a started run's cancel failed the workflow, and one while a child run was created too; a wait of a branch
#: that had lost a race just before a crash let the run resume endlessly; the audit did not know that a cancelled
#: workflow had restarted.
FOUND: dict[int, StoreKind] = {
    865989914: "memory",
    5001833: "memory",
    126: "sqlite",
    19003059: "sqlite",
    7003193: "sqlite",
    19000789: "sqlite",
    7003526: "sqlite",
    19002145: "memory",
    31000481: "sqlite",
    698130990: "memory",
    708131096: "memory",
    698133908: "memory",
    285101131: "memory",
}

#: Those that hazards have found: a run whose cancel met a resumed child stayed with its live worker, which did nothing;
#: the audit expected that the children of a parked run are removed; a disk error while the progress of `map_items` was
#: saved cancelled the other items, and failed the run; the audit did not know children of runs that wait for a budget;
#: a call in doubt of a branch that had lost a race was shown as one to decide about, and `unpark` refused it; the audit
#: took the model call of a process that had been frozen for the latest one; a run whose cancel met its wait
#: for a budget was cancelled when that wait ended; a step whose write failed after its workflow had ended waited
#: endlessly, and with it the end of its App; the audit did not know that a process that was frozen asks about a call
#: that another one has made meanwhile.
FOUND_WITH_HAZARDS: dict[int, StoreKind] = {
    125: "memory",
    417973221: "memory",
    621490483: "sqlite",
    570737893: "sqlite",
    550934204: "memory",
    97699284: "memory",
    107700065: "memory",
    643178519: "memory",
}


@pytest.mark.parametrize("seed", FOUND)
def test_no_schedule_that_found_a_fault_breaks_a_promise(seed: int) -> None:
    assert World(make_plan(seed, FOUND[seed], hazards=False)).run().problems == []


@pytest.mark.parametrize("seed", FOUND_WITH_HAZARDS)
def test_no_schedule_with_hazards_that_found_a_fault_breaks_a_promise(seed: int) -> None:
    assert run_seed(seed, FOUND_WITH_HAZARDS[seed]).problems == []


@pytest.mark.parametrize("store", STORES)
def test_no_fresh_schedule_breaks_a_promise(store: StoreKind) -> None:
    check_seeds(FRESH, store)


@pytest.mark.parametrize("store", STORES)
def test_the_same_seed_gives_the_same_trace_whatever_was_simulated_before(store: StoreKind) -> None:
    traces = [run_seed(seed, store).trace for seed in (5, 6, 7, 7, 6, 5)]
    assert traces[:3] == traces[:2:-1]
    assert len({tuple(trace) for trace in traces}) == 3


def test_the_same_seed_gives_the_same_trace_in_a_process_with_another_order_of_hashes() -> None:
    """In schedules where a process has mail or cancel requests for several of its runs at once."""
    program = "from holdfast.testing.simulation.simulate import run_seed"
    program += "; print(*(line for seed in (7, 38) for line in run_seed(seed, 'memory').trace), sep='\\n')"
    command, traces = [sys.executable, "-c", program], []
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        traces.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert traces[0].count("\n") > 100
    assert traces[0] == traces[1]


def test_the_processes_of_a_world_leave_no_event_loop_behind() -> None:
    """In a process of its own, where no other loop was ever made. In this schedule, workers are killed."""
    program = "import asyncio, gc; from holdfast.testing.simulation.simulate import run_seed; run_seed(3, 'memory')"
    program += "; asyncio.set_event_loop(None); gc.collect()"
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == ""


def test_the_schedules_hold_kills_waits_and_all_statuses() -> None:
    outcomes = [run_seed(seed, "memory") for seed in range(40)]
    assert sum(outcome.kills for outcome in outcomes) > 5
    assert {status for outcome in outcomes for status in outcome.statuses.values()} >= {"done", "cancelled"}
    assert any("thaws" in line for outcome in outcomes for line in outcome.trace)


def test_transactions_are_repeated_rolled_back_and_committed() -> None:
    """Whether the rows are right is part of the audit. Without these schedules it would compare nothing."""
    traces = [line for seed in range(15) for line in run_seed(seed, "sqlite").trace if ": transaction call" in line]
    begun = [line.partition(": ")[2] for line in traces if line.endswith("begins")]
    assert len(begun) > sum(line.endswith("has ended") for line in traces) > 10


_IS_LONG = bool(os.environ.get("HOLDFAST_LONG_TESTS"))


def test_at_least_thirty_faults_can_be_planted() -> None:
    for fault in FAULTS.values():
        with fault.planted():
            pass
    assert len(FAULTS) >= 30


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.seeds <= 100 or _IS_LONG])
def test_a_planted_fault_is_found(name: str) -> None:
    fault = FAULTS[name]
    with fault.planted():
        assert any(run_seed(seed, fault.store).problems for seed in range(fault.seeds))


# -- agents of a user -------------------------------------------------------------------------------------------------


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(effect="pure")
def look_up(name: str) -> str:
    """Look up a name, in a thread."""
    return f"{name} is known"


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    replies = sum(isinstance(message, Reply) for message in messages)
    if replies == 0:
        return Reply(tool_calls=[ToolCall(id="a", name="look_up", arguments={"name": "Ada"})])
    if replies == 1:
        return Reply(tool_calls=[ToolCall(id="b", name="pay", arguments={"amount": 5})])
    return Reply(text="paid")


def make_app(store: RunStore) -> App:
    return App([Agent(name="payer", model=model, tools=[pay, look_up])], store)


@pytest.mark.parametrize("store", STORES)
def test_a_users_agent_survives_its_schedules(store: StoreKind) -> None:
    figures = simulate(make_app, [("payer", "pay"), ("payer", "pay twice")], seeds=range(COUNTS[store]), store=store)
    assert figures.schedules == COUNTS[store]
    assert figures.runs == 2 * COUNTS[store]


def test_a_users_transactions_are_simulated_on_sqlite() -> None:
    rows: list[int] = []

    @tool(effect="transaction", name="pay")
    def book(amount: int, connection: Any) -> int:
        """Book an amount."""
        connection.execute("CREATE TABLE IF NOT EXISTS amounts (amount INTEGER)")
        connection.execute("INSERT INTO amounts VALUES (?)", (amount,))
        rows.append(connection.execute("SELECT count(*) FROM amounts").fetchone()[0])
        return rows[-1]

    def make_booking_app(store: RunStore) -> App:
        return App([Agent(name="payer", model=model, tools=[book, look_up])], store)

    runs = [("payer", "pay"), ("payer", "pay twice")]
    simulate(make_booking_app, runs, seeds=range(10), store="sqlite")
    assert set(rows) == {1, 2}
    assert len(rows) >= 20
    with pytest.raises(SimulationFailed, match="the store of the run has no transactions"):
        simulate(make_booking_app, runs, seeds=[0], store="memory")


def test_a_users_agent_that_fails_is_reported_with_its_seed_and_a_small_plan() -> None:
    async def broken(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        raise ValueError("no such model")

    def make_broken(store: RunStore) -> App:
        return App([Agent(name="payer", model=broken)], store)

    with pytest.raises(SimulationFailed, match="seed 3, memory") as failure:
        simulate(make_broken, [("payer", "pay"), ("payer", "pay")], seeds=[3], store="memory")
    assert "no such model" in str(failure.value)
    assert str(failure.value).count("PlannedRun(") == 1
