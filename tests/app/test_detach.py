"""A run outlives its caller."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import Agent, App, Reply
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.core import Message, ToolSchema
from holdfast.core.errors import RunCancelled, RunInterrupted
from holdfast.stores.memory import MemoryStore


class Gate:
    """A model that waits until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self.asked = 0

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        self.asked += 1
        self.reached.set()
        await self.open.wait()
        return Reply(text="done")


async def test_a_run_continues_when_its_caller_is_cancelled() -> None:
    gate = Gate()
    async with App([Agent(name="a", model=gate)], MemoryStore()) as app:
        caller = asyncio.create_task(app.run("a", "go", run_id="r"))
        await gate.reached.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        gate.open.set()
        assert (await app.run("a", "go", run_id="r")).output == "done"
        assert (await app.result("r")).output == "done"
    assert gate.asked == 1


async def test_a_run_continues_after_a_timeout_around_it_and_in_a_failed_task_group() -> None:
    gate = Gate()
    async with App([Agent(name="a", model=gate)], MemoryStore()) as app:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(app.run("a", "go", run_id="r"), 0.001)

        async def fail() -> None:
            await gate.reached.wait()
            raise ValueError("another task of the group")

        async def run_in_group() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(app.run("a", "go", run_id="r"))
                group.create_task(fail())

        with pytest.raises(ExceptionGroup):
            await run_in_group()
        gate.open.set()
        assert (await app.result("r")).output == "done"
    assert gate.asked == 1


async def test_a_caller_may_ask_that_its_cancel_cancels_the_run() -> None:
    gate, store = Gate(), MemoryStore()
    async with App([Agent(name="a", model=gate)], store) as app:
        caller = asyncio.create_task(app.run("a", "go", run_id="r", on_cancel="cancel"))
        await gate.reached.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert (await get_record(store, "r")).status is RunStatus.CANCELLED
        with pytest.raises(RunCancelled):
            await app.result("r")


async def test_an_app_that_closes_interrupts_detached_runs_and_the_next_one_resumes_them() -> None:
    gate, store = Gate(), MemoryStore()
    agent = Agent(name="a", model=gate)
    async with App([agent], store) as app:
        caller = asyncio.create_task(app.run("a", "go", run_id="r"))
        await gate.reached.wait()
        caller.cancel()
        gate.reached.clear()
        closing = asyncio.create_task(app.shutdown(timeout=timedelta(0)))
        await closing
    assert store._runs["r"].status is RunStatus.INTERRUPTED
    gate.open.set()
    async with App([agent], store) as app:
        assert (await app.result("r")).output == "done"
    assert gate.asked == 2


@pytest.mark.parametrize("on_cancel", ["detach", "cancel"])
def test_the_end_of_the_event_loop_interrupts_runs(tmp_path: Path, on_cancel: str) -> None:
    """A host that neither closes the App nor waits for its runs."""
    url = f"sqlite:{tmp_path / 'runs.db'}"
    gates: list[Gate] = []

    async def first() -> None:
        gates.append(Gate())
        app = App([Agent(name="a", model=gates[0])], url)
        await app.__aenter__()
        caller = asyncio.create_task(app.run("a", "go", run_id="r", on_cancel=on_cancel))  # type: ignore[arg-type]
        await gates[0].reached.wait()
        assert not caller.done()

    async def second() -> str:
        gate = Gate()
        gate.open.set()
        async with App([Agent(name="a", model=gate)], url, worker=False) as app:
            assert app.store is not None
            assert (await get_record(app.store, "r")).status is not RunStatus.CANCELLED
            return str((await app.run("a", "go", run_id="r")).output)

    asyncio.run(first())
    assert asyncio.run(second()) == "done"


EXIT_PROGRAM = """
import asyncio, sys
from holdfast import Agent, App, Reply

async def model(messages, tools):
    if sys.argv[2] == "exit":
        leave.set()
        await asyncio.Event().wait()
    return Reply(text="done")

async def main():
    global leave
    leave = asyncio.Event()
    async with App([Agent(name="a", model=model)], sys.argv[1]) as app:
        run = asyncio.create_task(app.run("a", "go", run_id="r"))
        if sys.argv[2] == "exit":
            await leave.wait()
            sys.exit(3)
        print((await run).output)

from datetime import timedelta
from holdfast import WorkerSettings
asyncio.run(main())
"""


def test_sys_exit_leaves_the_run_for_the_next_worker(tmp_path: Path) -> None:
    program = EXIT_PROGRAM.replace("sys.argv[1])", "sys.argv[1], worker=WorkerSettings(shutdown_timeout=timedelta(0)))")
    url = f"sqlite:{tmp_path / 'runs.db'}"
    for mode, code, output in (("exit", 3, ""), ("go", 0, "done\n")):
        process = subprocess.run([sys.executable, "-c", program, url, mode], capture_output=True, text=True, timeout=60)
        assert (process.returncode, process.stdout) == (code, output), process.stderr


async def test_submit_and_result_work_in_one_process(durable_store_url: str) -> None:
    gate = Gate()
    gate.open.set()
    async with App([Agent(name="a", model=gate)], durable_store_url) as app:
        run_id = await app.submit("a", "go")
        assert (await app.result(run_id)).output == "done"


async def test_an_app_that_is_no_worker_takes_no_runs(durable_store_url: str) -> None:
    gate = Gate()
    gate.open.set()
    agent = Agent(name="a", model=gate)
    async with App([agent], durable_store_url, worker=False) as app:
        await app.submit("a", "go", run_id="queued")
        assert (await app.run("a", "another")).output == "done"
        assert app.store is not None
        assert (await get_record(app.store, "queued")).status is RunStatus.QUEUED


def test_run_sync_executes_only_its_own_run(tmp_path: Path) -> None:
    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        return Reply(text="done")

    app = App([Agent(name="a", model=model)], f"sqlite:{tmp_path / 'runs.db'}")

    async def submit() -> None:
        async with app.replace(worker=False) as other:
            await other.submit("a", "go", run_id="queued")

    async def status() -> RunStatus:
        async with app.replace(worker=False) as other:
            assert other.store is not None
            return (await get_record(other.store, "queued")).status

    asyncio.run(submit())
    assert app.run_sync("a", "mine").output == "done"
    assert asyncio.run(status()) is RunStatus.QUEUED


async def test_a_caller_who_waits_for_another_process_ends_with_its_app(durable_store_url: str) -> None:
    gate = Gate()
    agent = Agent(name="a", model=gate)
    async with App([agent], durable_store_url) as one, App([agent], durable_store_url, worker=False) as two:
        await one.submit("a", "go", run_id="r")
        await gate.reached.wait()
        waiting = asyncio.create_task(two.run("a", "go", run_id="r"))
        await asyncio.sleep(0)
        await two.shutdown()
        with pytest.raises(RunInterrupted, match="shut"):
            await waiting
        gate.open.set()
        assert (await one.result("r")).output == "done"
