"""What the chaos test looks at does go red: two bugs, and for each a mishap that is sure to show it.

The same mishaps without the bugs do no harm.
"""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.chaos.agent import Effect
from tests.chaos.checks import find_faults
from tests.chaos.fleet import Fleet, fleet
from tests.chaos.test_fleet import Outcome, collect, submit

from holdfast.checkpoint.errors import RunDamaged

RUNS = 12


async def _outcome_of(workers: Fleet, submitted: list[str]) -> Outcome:
    return await asyncio.wait_for(collect(workers, submitted), 100)


def _busy(workers: Fleet, ledger: list[Effect]) -> int | None:
    """A worker that is in the middle of two runs at least: each has had two effects of four."""
    for number in range(workers.size):
        effects = Counter(effect.run_id for effect in ledger if effect.pid == workers.pid(number))
        if sum(times == 2 for times in effects.values()) >= 2:
            return number
    return None


async def _one_that_is_busy(workers: Fleet) -> int:
    found: list[int] = []

    def look(ledger: list[Effect]) -> bool:
        number = _busy(workers, ledger)
        found.extend([] if number is None else [number])
        return bool(found)

    await asyncio.to_thread(workers.until, look)
    return found[0]


async def _stop_one_for_too_long(workers: Fleet) -> list[str]:
    """A worker is stopped, declared dead, loses its runs in the middle, and wakes up again."""
    submitted = await submit(workers, RUNS)
    number = await _one_that_is_busy(workers)
    workers.stop(number, seconds=0)
    sleeper = workers.pid(number)
    held = {effect.run_id for effect in workers.ledger.read() if effect.pid == sleeper}

    def taken_over(ledger: list[Effect]) -> bool:
        return any(effect.pid != sleeper and effect.run_id in held for effect in ledger)

    await asyncio.to_thread(workers.until, taken_over)
    workers.wake()
    outcome = await _outcome_of(workers, submitted)
    return list(find_faults(outcome.outputs, workers.ledger.read(), submitted))


async def _kill_one_in_the_middle(workers: Fleet) -> list[str]:
    submitted = await submit(workers, RUNS)
    workers.kill(await _one_that_is_busy(workers))
    outcome = await _outcome_of(workers, submitted)
    return list(find_faults(outcome.outputs, workers.ledger.read(), submitted))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", ["unfenced", ""])
async def test_a_store_that_does_not_fence(bug: str, tmp_path: Path) -> None:
    with fleet(f"sqlite:{tmp_path}/runs.db", tmp_path, seconds=0.6, bug=bug) as workers:
        try:
            found = await _stop_one_for_too_long(workers)
        except RunDamaged as exc:  # two workers wrote into one journal, and it shows when the end is read
            found = [f"happened 2 times, and spoiled a journal: {exc}"]
    assert any("happened 2 times" in fault for fault in found) == bool(bug), found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", ["unawaited", ""])
async def test_a_handle_that_does_not_await_the_intent(bug: str, tmp_path: Path) -> None:
    with fleet(f"sqlite:{tmp_path}/runs.db", tmp_path, seconds=0.6, bug=bug) as workers:
        found = await _kill_one_in_the_middle(workers)
    assert any("happened 2 times" in fault for fault in found) == bool(bug), found
