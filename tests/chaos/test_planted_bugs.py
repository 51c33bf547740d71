"""The checks of the chaos tests find planted bugs, each with a disruption that is sure to show it.

The same disruptions cause no fault without the bugs.
"""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import apsw
import pytest
from tests.chaos import workflows
from tests.chaos.agent import Effect
from tests.chaos.checks import find_faults
from tests.chaos.fleet import Fleet, fleet
from tests.chaos.test_fleet import Outcome, collect, submit

from holdfast.checkpoint.errors import RunDamaged

RUNS = 12


async def _collect(workers: Fleet, submitted: list[str]) -> Outcome:
    return await asyncio.wait_for(collect(workers, submitted), 100)


def _find_busy_worker(workers: Fleet, ledger: list[Effect]) -> int | None:
    """Return a worker that executes at least two runs, each with two of its four effects."""
    for number in range(workers.size):
        effects = Counter(effect.run_id for effect in ledger if effect.pid == workers.pid(number))
        if sum(times == 2 for times in effects.values()) >= 2:
            return number
    return None


async def _wait_for_busy_worker(workers: Fleet) -> int:
    found: list[int] = []

    def find(ledger: list[Effect]) -> bool:
        number = _find_busy_worker(workers, ledger)
        found.extend([] if number is None else [number])
        return bool(found)

    await asyncio.to_thread(workers.wait_until, find)
    return found[0]


def _is_locked(workers: Fleet) -> bool:
    """Return whether a process keeps the lock of writers for longer than a write takes."""
    with contextlib.closing(apsw.Connection(workers.url.removeprefix("sqlite:"))) as connection:
        connection.set_busy_timeout(1000)
        try:
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            return True
    return False


async def _stop_until_taken_over(workers: Fleet) -> list[str]:
    """Stop a worker until another has taken over one of its runs, then continue it."""
    submitted = await submit(workers, RUNS)
    number = await _wait_for_busy_worker(workers)
    stopped = workers.pid(number)
    workers.stop(number, seconds=0)
    while _is_locked(workers):  # stopped in the middle of a write, it would keep all others from theirs
        workers.wake()
        workers.stop(number, seconds=0)
    held = {effect.run_id for effect in workers.ledger.read() if effect.pid == stopped}

    def taken_over(ledger: list[Effect]) -> bool:
        return any(effect.pid != stopped and effect.run_id in held for effect in ledger)

    await asyncio.to_thread(workers.wait_until, taken_over)
    workers.wake()
    outcome = await _collect(workers, submitted)
    return list(find_faults(outcome.outputs, workers.ledger.read(), submitted))


async def _kill_busy_worker(workers: Fleet) -> list[str]:
    submitted = await submit(workers, RUNS)
    workers.kill(await _wait_for_busy_worker(workers))
    outcome = await _collect(workers, submitted)
    return list(find_faults(outcome.outputs, workers.ledger.read(), submitted))


@pytest.mark.parametrize("bug", ["unfenced", ""])
async def test_a_store_that_does_not_fence(bug: str, tmp_path: Path) -> None:
    with fleet(f"sqlite:{tmp_path}/runs.db", tmp_path, seconds=0.6, bug=bug) as workers:
        try:
            found = await _stop_until_taken_over(workers)
        except RunDamaged as exc:  # two workers wrote to one journal
            found = [f"happened 2 times, and damaged a journal: {exc}"]
    assert any("happened 2 times" in fault for fault in found) == bool(bug), found


@pytest.mark.parametrize("bug", ["unawaited", ""])
async def test_a_checkpointer_that_does_not_await_the_intent(bug: str, tmp_path: Path) -> None:
    with fleet(f"sqlite:{tmp_path}/runs.db", tmp_path, seconds=0.6, bug=bug) as workers:
        found = await _kill_busy_worker(workers)
    assert any("happened 2 times" in fault for fault in found) == bool(bug), found


def test_the_oracle_finds_a_second_payment_and_a_missing_undo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows, "LEDGER", tmp_path / "ledger")
    for line in ("pay linger.1 a", "pay linger.1 a", "pay linger.1 b", "undo linger.1 a k1", "undo linger.1 a k2"):
        workflows.write(line)
    assert workflows.find_faults({"linger.1": "failed"}) == [
        "('linger.1', 'a') was paid 2 times",
        "('linger.1', 'a') was paid back with 2 keys",
        "linger.1 is failed, not cancelled",
        "linger.1 has paid ['a', 'b'] and paid back ['a']",
    ]
