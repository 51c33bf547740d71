"""No due run waits for another run to end: the worker takes it when its backoff ends."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from tests.store_kinds import STORES

from holdfast import Agent, App, Reply, User, WorkerSettings
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.core import Message, ToolSchema
from holdfast.stores.from_url import store_from_url
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

IDLE = WorkerSettings(take_runs=False)


class GatedAgent:
    """An agent whose run `long` waits for a gate; its other runs end at once."""

    def __init__(self) -> None:
        self.started, self.gate, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.agent = Agent(name="agent", model=self._answer)

    async def _answer(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        prompt = next(message.text for message in messages if isinstance(message, User))
        if prompt == "long":
            self.started.set()
            await self.gate.wait()
        else:
            self.ended.set()
        return Reply(text=prompt)


@pytest.fixture
async def interrupted(clock: ManualClock) -> AsyncIterator[MemoryStore]:
    """A store with the run `long`, due now, and the run `short`, due in two seconds."""
    store, agents = MemoryStore(clock=clock), GatedAgent()
    async with App([agents.agent], store, worker=IDLE, clock=clock) as app:
        for name in ("long", "short"):
            await app.submit("agent", name, run_id=name)
        claim = await store.claim("short", app._stored.checkpoints.worker_id)
        await store.release(claim, Release(status=RunStatus.INTERRUPTED, delay=timedelta(seconds=2)))
        assert app.store is store
        yield store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.parametrize("serve", [False, True], ids=["take_runs", "serve"])
async def test_a_run_is_resumed_when_due_while_another_takes_an_hour(
    interrupted: MemoryStore, clock: ManualClock, serve: bool
) -> None:
    agents = GatedAgent()
    async with App([agents.agent], interrupted, clock=clock) as app:
        serving = asyncio.create_task(app.serve()) if serve else None
        await agents.started.wait()
        await clock.advance(timedelta(seconds=1))
        assert not agents.ended.is_set()
        await clock.advance(timedelta(seconds=2))
        async with asyncio.timeout(60):
            await agents.ended.wait()
        assert (await app.result("short")).output == "short"
        agents.gate.set()
        assert (await app.result("long")).output == "long"
    if serving is not None:
        await serving


RUNS = 100
#: Long enough for the first runs to be resumed before it ends, unless the machine is very slow.
BACKOFF = timedelta(seconds=4)

#: Starts the runs, each of which waits in its first model call, and prints `begun` when all have started.
PROGRAM = """
import asyncio, sys
from holdfast import Agent, App, WorkerSettings

begun = 0

async def model(messages, tools):
    global begun
    begun += 1
    if begun == int(sys.argv[2]):
        print("begun", flush=True)
    await asyncio.Event().wait()

async def main():
    agent = Agent(name="agent", model=model)
    async with App([agent], sys.argv[1], worker=False) as app:
        await asyncio.gather(*(app.run("agent", "long", run_id=f"r{n}") for n in range(int(sys.argv[2]))))

asyncio.run(main())
"""


def test_all_runs_of_a_process_killed_on_postgres_are_resumed_as_soon_as_each_is_due(tmp_path: Path) -> None:
    with STORES["postgres"].open_empty(tmp_path) as url:
        command = [sys.executable, "-c", PROGRAM, url, str(RUNS)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "begun\n"
            os.kill(child.pid, signal.SIGKILL)
        asyncio.run(_delay_every_second_run(url))
        asyncio.run(_resume_all(url))


async def _delay_every_second_run(url: str) -> None:
    """Leave every second run interrupted within its backoff. The others are due at once."""
    store = store_from_url(url)
    await store.open()
    try:
        for number in range(0, RUNS, 2):
            claim = await store.claim(f"r{number}", "other", steal=True)
            await store.release(claim, Release(status=RunStatus.INTERRUPTED, delay=BACKOFF))
    finally:
        await store.close()


async def _resume_all(url: str) -> None:
    """Return once all runs are executing at the same time: not one of them ends."""
    resumed, all_resumed = set[str](), asyncio.Event()

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        resumed.add(str(id(messages)))
        if len(resumed) == RUNS:
            all_resumed.set()
        await asyncio.Event().wait()
        raise AssertionError("the gate never opens")

    worker = WorkerSettings(concurrency=2000, shutdown_timeout=timedelta(0))
    async with App([Agent(name="agent", model=model)], url, worker=worker):
        await all_resumed.wait()
