"""A message reaches the run in its next process, if this one shut down before a step could read it."""

import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, sys
from datetime import timedelta
from holdfast import Agent, App, Reply, WorkerSettings
from holdfast.core.run.messages import User

async def model(messages, tools):
    if sys.argv[2] == "first":
        await app.send("r1", "mind the gap")
        print("sent", flush=True)
        await asyncio.Event().wait()
    return Reply(text=" / ".join(message.text for message in messages if isinstance(message, User)))

async def main():
    global app
    agent = Agent(name="agent", model=model)
    worker = WorkerSettings(take_runs=False, shutdown_timeout=timedelta(0))
    async with App([agent], sys.argv[1], worker=worker) as app:
        print((await app.run("agent", "go", run_id="r1")).output)

asyncio.run(main())
"""


def process(url: str, which: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, url, which]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_what_no_step_took_before_sigterm_is_said_in_the_next_process(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'runs.db'}"
    with process(url, "first") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "sent\n"
        first.send_signal(signal.SIGTERM)
        assert "Shutdown" in first.communicate(timeout=60)[1]
    with process(url, "second") as second:
        assert second.communicate(timeout=60) == ("go / mind the gap\n", "")
