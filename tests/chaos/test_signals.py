"""Four workers wait with many runs that are signalled while workers are killed and stopped.

The oracles are outside the store: the list of what was sent, and a ledger of what was applied. `make chaos` runs the
long form.
"""

import asyncio
import random
from datetime import timedelta
from pathlib import Path

import pytest
from tests.chaos.fleet import Chaos, Fleet, fleet
from tests.chaos.signalled import SIGNALS, find_faults, signalled_agent
from tests.chaos.test_fleet import LONG, SEED, Outcome, RecordProperty, disrupt_while, get_output
from tests.chaos.worker import open_store

from holdfast import App
from holdfast.checkpoint.record import TERMINAL_STATUSES, RunStatus
from holdfast.checkpoint.store import END, iter_runs

RUNS = 1_000 if LONG else 80


async def submit_and_wait(app: App) -> list[str]:
    """Submit the runs and return when all of them wait."""
    run_ids = [await app.submit("signalled", f"order {number}") for number in range(RUNS)]
    assert app.store is not None
    statuses: set[RunStatus] = set()
    while statuses != {RunStatus.WAITING}:
        assert not statuses & TERMINAL_STATUSES
        await app.store.wait_for_change(timedelta(seconds=0.1))
        statuses = {record.status async for record in iter_runs(app.store)}
    return run_ids


async def signal(app: App, run_id: str, payloads: list[str], dice: random.Random) -> None:
    """Send the signals, some of them twice. The second may come before the run waits for it."""
    await asyncio.sleep(dice.random() * (60 if LONG else 1))
    for payload in [*payloads, dice.choice(payloads)]:
        await app.signal(run_id, "order", payload, id=payload)
        await asyncio.sleep(dice.random() * 0.2)


async def collect(app: App, sent: dict[str, list[str]]) -> Outcome:
    """Send all signals, and wait for all results."""
    dice, outcome = random.Random(SEED), Outcome()
    await asyncio.gather(*(signal(app, run_id, payloads, dice) for run_id, payloads in sent.items()))
    for run_id in sent:
        outcome.outputs[run_id] = await get_output(app, run_id, outcome)
    return outcome


async def run_chaos(workers: Fleet, record_property: RecordProperty) -> None:
    async with App([signalled_agent(workers.ledger, 0)], open_store(workers.url), worker=False) as app:
        run_ids = await submit_and_wait(app)
        sent = {run_id: [f"{run_id}:{number}" for number in range(SIGNALS)] for run_id in run_ids}
        collecting = asyncio.create_task(collect(app, sent))
        await disrupt_while(Chaos(workers, SEED), collecting, seconds=120 if LONG else 4)
        workers.wake(all_workers=True)
        outcome = await collecting
        assert app.store is not None
        unread = [run_id for run_id in run_ids if (await app.store.load(run_id, after=END)).mail]
    unknown = sum(output.count("unknown") for output in outcome.outputs.values())
    line = f"{RUNS} runs, {workers.kills} kills, {workers.stops} stops, {unknown} effects were in doubt"
    record_property("oracle", line)
    faults = list(find_faults(sent, outcome.outputs, workers.ledger.read()))
    assert not faults, f"seed {SEED}: {faults}\n{workers.read_logs()}"
    assert unread == []
    assert workers.kills > 0


@pytest.mark.timeout(1200 if LONG else 600)
async def test_each_signal_is_applied_once_by_a_fleet_whose_workers_are_killed(
    durable_store_url: str, tmp_path: Path, record_property: RecordProperty
) -> None:
    print(f"seed {SEED}: repeat with HOLDFAST_CHAOS_SEED={SEED}")
    with fleet(durable_store_url, tmp_path, seconds=0.05) as workers:
        await run_chaos(workers, record_property)
