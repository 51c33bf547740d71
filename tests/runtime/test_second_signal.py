"""A second Ctrl-C ends the process, not the run."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from holdfast.checkpoint.record import RunFilter
from holdfast.checkpoint.store import iter_runs
from holdfast.stores.from_url import store_from_url

PROGRAM = """
import asyncio, sys
from holdfast import Agent
from holdfast.checkpoint import StoreCheckpoints
from holdfast.core import Executor, Ports
from holdfast.stores import store_from_url

async def model(messages, tools):
    print("asked", flush=True)
    await asyncio.Event().wait()

async def tell_of_the_shutdown(executor):
    while (live := executor.get_attempt("r1")) is None or not live.stop_state.draining:
        await asyncio.sleep(0.01)
    print("shutting down", flush=True)

async def main():
    executor = Executor(Ports(checkpoints=StoreCheckpoints(store_from_url(sys.argv[1]))))
    executor.shutdown_on_signals()
    telling = asyncio.create_task(tell_of_the_shutdown(executor))
    await executor.run(Agent(name="agent", model=model), "prompt", run_id="r1")

asyncio.run(main())
"""


async def _interrupted(url: str) -> list[str]:
    store = store_from_url(url)
    await store.open()
    try:
        return [record.run_id async for record in iter_runs(store, RunFilter(interrupted=True))]
    finally:
        await store.close()


def test_the_run_of_a_process_that_was_told_twice_to_stop_is_left_for_recovery(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'runs.db'}"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "shutting down\n"
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == -signal.SIGINT
    assert asyncio.run(_interrupted(url)) == ["r1"]
