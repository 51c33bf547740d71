"""Three workers share a store. One of them is killed, and the others finish its runs.

Uses SQLite, so it needs no server. With a PostgreSQL URL the workers may run on any number of machines.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from holdfast import Agent, App, Reply, ToolCall, WorkerSettings, current_call, tool
from holdfast.core import Message, ToolSchema

RUNS = 12
PROGRAM = str(Path(__file__).resolve())


@tool
def deliver() -> str:
    """Deliver a parcel. Must not happen twice."""
    with Path("deliveries.txt").open("a") as ledger:
        ledger.write(f"{current_call().run_id}\n")
    return "delivered"


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Stands for a provider that takes 50 ms."""
    await asyncio.sleep(0.05)
    steps = sum(isinstance(message, Reply) for message in messages)
    if steps == 0:
        return Reply(tool_calls=[ToolCall(id="call-1", name="deliver")])
    return Reply(text="done")


AGENT = Agent(name="courier", model=model, tools=[deliver])


async def work() -> None:
    async with App([AGENT], "sqlite:fleet.db", worker=WorkerSettings(concurrency=2)) as app:
        print("ready", flush=True)
        await app.serve()


async def submit_and_wait(victim: "subprocess.Popen[str]") -> list[str]:
    async with App([AGENT], "sqlite:fleet.db", worker=False) as app:  # it leaves the runs to the workers
        runs = [await app.submit("courier", f"parcel {number}", run_id=f"run-{number}") for number in range(RUNS)]
        await app.result(runs[0])
        os.kill(victim.pid, signal.SIGKILL)
        return [(await app.result(run_id)).output for run_id in runs]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        command = [sys.executable, PROGRAM, "worker"]
        workers = [subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        outputs = asyncio.run(submit_and_wait(workers[0]))
        print(f"{outputs.count('done')} of {RUNS} runs are done")
        deliveries = Path("deliveries.txt").read_text().split()
        print(f"{len(deliveries) - len(set(deliveries))} were delivered twice")
        for worker in workers[1:]:
            worker.terminate()
        codes = [worker.wait() for worker in workers]
        print(f"the first worker was killed: {codes[0] == -signal.SIGKILL}; the others drained: {codes[1:] == [0, 0]}")
        os.chdir("/")


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        asyncio.run(work())
    else:
        main()

# Output:
# 12 of 12 runs are done
# 0 were delivered twice
# the first worker was killed: True; the others drained: True
