"""Four workers execute many runs while workers are killed and stopped and the server is restarted.

The seed is printed; HOLDFAST_CHAOS_SEED sets it. `make chaos` runs the long form.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tests.chaos.agent import Effect, chaos_agent
from tests.chaos.checks import find_faults
from tests.chaos.fleet import Chaos, Fleet, fleet
from tests.chaos.worker import open_store
from tests.postgres_server import LocalServer

from holdfast import App, RunWaiting
from holdfast.checkpoint.store import iter_runs
from holdfast.core.errors import RunParked

#: Notes a line for `make chaos`.
RecordProperty = Callable[[str, object], None]

LONG = bool(os.environ.get("HOLDFAST_CHAOS"))
RUNS = 1_000 if LONG else 120
SEED = int(os.environ.get("HOLDFAST_CHAOS_SEED") or random.SystemRandom().randrange(2**32))


class Outcome:
    """The outcomes of the submitted runs."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.outputs: dict[str, str] = {}
        self.unparked = 0
        self.left: list[str] = []


def open_app(workers: Fleet) -> App:
    """Return an App that submits runs and executes none."""
    return App([chaos_agent(workers.ledger, 0)], open_store(workers.url), worker=False)


async def submit(workers: Fleet, runs: int) -> list[str]:
    async with open_app(workers) as app:
        return await submit_to(app, runs)


async def submit_to(app: App, runs: int) -> list[str]:
    return [await app.submit("chaos", f"order {number}", caller_id=f"c{number % 5}") for number in range(runs)]


async def collect(workers: Fleet, submitted: list[str]) -> Outcome:
    """Wait for all results, then remove them."""
    async with open_app(workers) as app:
        return await collect_from(app, submitted)


async def collect_from(app: App, submitted: list[str]) -> Outcome:
    outcome = Outcome()
    outcome.submitted = submitted
    for run_id in submitted:
        outcome.outputs[run_id] = await get_output(app, run_id, outcome)
    assert app.store is not None
    for run_id in submitted:
        await app.store.remove(run_id)
    outcome.left = [record.run_id async for record in iter_runs(app.store)]
    return outcome


async def get_output(app: App, run_id: str, outcome: Outcome) -> str:
    """Wait for the output of the run, also while it waits for a signal."""
    while True:
        try:
            return str((await app.result(run_id)).output)
        except RunWaiting:
            assert app.store is not None
            await app.store.wait_for_change(timedelta(seconds=0.1))
        except RunParked as parked:
            # Its owner was killed three times in a row before a step was finished. The run itself is not at fault.
            if parked.reason != "poison":
                raise
            outcome.unparked += 1
            await app.unpark(run_id)


async def disrupt_while(chaos: Chaos, waiting: "asyncio.Task[Outcome]", seconds: float) -> None:
    """Disrupt the fleet until all results are there, at most this long."""
    end = time.monotonic() + seconds
    while not waiting.done() and time.monotonic() < end:
        await asyncio.wait([waiting], timeout=await asyncio.to_thread(chaos.disrupt))


async def _run_chaos(
    workers: Fleet, restart_server: Callable[[bool], None] | None, record_property: RecordProperty
) -> Outcome:
    print(f"seed {SEED}: repeat with HOLDFAST_CHAOS_SEED={SEED}")
    chaos = Chaos(workers, SEED, restart_server)
    # Opened before the server is restarted: a server that was never reached is not waited for.
    async with open_app(workers) as app:
        submitted = await submit_to(app, RUNS)
        waiting = asyncio.create_task(collect_from(app, submitted))
        await disrupt_while(chaos, waiting, seconds=300 if LONG else 12)
        workers.wake(all_workers=True)
        outcome = await waiting
    taken_over = _count_taken_over(workers.ledger.read())
    unknown = sum(output.count("unknown") for output in outcome.outputs.values())
    record_property(
        "oracle",
        f"{len(submitted)} runs, {workers.kills} kills, {workers.stops} stops, {chaos.restarts} server restarts; "
        f"{taken_over} runs were taken over in the middle, {unknown} calls were in doubt, {outcome.unparked} unparked",
    )
    assert workers.kills > 0
    # A call is in doubt only if its process was killed during it.
    assert taken_over + unknown > 0, "no disruption has affected a run"
    return outcome


def _count_taken_over(ledger: list[Effect]) -> int:
    """Count the runs with effects in more than one process."""
    pids: dict[str, set[int]] = {}
    for effect in ledger:
        pids.setdefault(effect.run_id, set()).add(effect.pid)
    return sum(len(run_pids) > 1 for run_pids in pids.values())


def _check(workers: Fleet, outcome: Outcome) -> None:
    faults = list(find_faults(outcome.outputs, workers.ledger.read(), outcome.submitted))
    assert not faults, f"seed {SEED}: {faults}\n{workers.read_logs()}"
    assert not outcome.left, f"seed {SEED}: left in the store: {outcome.left}"
    assert workers.terminate() == [0] * workers.size, workers.read_logs()


@pytest.mark.timeout(1200 if LONG else 600)
@pytest.mark.parametrize("url", ["sqlite:{}/runs.db"])
async def test_a_fleet_on_one_host_survives(url: str, tmp_path: Path, record_property: RecordProperty) -> None:
    with fleet(url.format(tmp_path), tmp_path) as workers:
        _check(workers, await _run_chaos(workers, None, record_property))


@pytest.mark.timeout(1200 if LONG else 600)
async def test_a_fleet_on_postgres_survives_restarts_of_the_server_too(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    server = LocalServer()

    def restart(crash: bool) -> None:
        server.stop(crash=crash)
        server.start()

    try:
        with fleet(server.url(), tmp_path) as workers:
            _check(workers, await _run_chaos(workers, restart, record_property))
    finally:
        server.remove()
