"""A concurrency limit holds while workers are killed: never more runs than it allows, and all of them finish."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.chaos.limited import AGENT, MAX_RUNS, STEPS, make_agent

from holdfast import App
from holdfast.checkpoint.record import RunStatus
from holdfast.config import ConcurrencyLimit, WorkerSettings

#: Set by `make chaos`.
LONG = bool(os.environ.get("HOLDFAST_CHAOS"))
RUNS, KILLS = (400, 60) if LONG else (24, 4)
SEED = int(os.environ.get("HOLDFAST_CHAOS_SEED") or random.SystemRandom().randrange(2**32))


def start(url: str, folder: Path) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen([sys.executable, "-m", "tests.chaos.limited", url, str(folder)], env=environment)


def read_ledger(folder: Path) -> list[str]:
    ledger = folder / "ledger"
    return ledger.read_text().splitlines() if ledger.exists() else []


def wait_for_lines(folder: Path, count: int) -> None:
    while len(read_ledger(folder)) < count:
        time.sleep(0.005)


@pytest.mark.timeout(3600 if LONG else 600)
async def test_a_limit_is_never_exceeded_while_workers_are_killed(
    durable_store_url: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    print(f"seed {SEED}: repeat with HOLDFAST_CHAOS_SEED={SEED}")
    rng = random.Random(SEED)
    limits = [ConcurrencyLimit(agent=AGENT, max_runs=MAX_RUNS)]
    async with App(
        [make_agent(tmp_path)], durable_store_url, worker=WorkerSettings(take_runs=False, concurrency_limits=limits)
    ) as app:
        run_ids = [await app.submit(AGENT, "go", caller_id=rng.choice("xyz")) for _ in range(RUNS)]
        workers = [start(durable_store_url, tmp_path) for _ in range(3)]
        try:
            for number in range(1, KILLS + 1):
                wait_for_lines(tmp_path, number * RUNS * STEPS // (KILLS + 1))
                victim = rng.randrange(len(workers))
                workers[victim].kill()
                assert workers[victim].wait() == -9
                workers[victim] = start(durable_store_url, tmp_path)
            results = [await app.result(run_id) for run_id in run_ids]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        statuses = {(await app.get(run_id)).status for run_id in run_ids}
    assert (statuses, {result.output for result in results}) == ({RunStatus.DONE}, {"done"})
    ledger = read_ledger(tmp_path)
    exceeded = ledger.count("exceeded")
    record_property("oracle", f"{RUNS} runs, {KILLS} kills, a limit of {MAX_RUNS} runs exceeded {exceeded} times")
    assert exceeded == 0
    assert ledger.count("held") >= RUNS * STEPS
