"""Threads, which a simulator replaces in the context of each simulated process."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, tool
from holdfast.batteries.audit import Audit
from holdfast.concurrency import THREADS, JobThread, Thread, Threads
from holdfast.stores.sqlite import SqliteStore


class RecordedThreads(Threads):
    """Remembers the threads that it started."""

    def __init__(self) -> None:
        self.started: set[Thread] = set()

    def start(self, work: Callable[[], object], *, name: str) -> Thread:
        thread = super().start(work, name=name)
        self.started.add(thread)
        return thread


async def test_every_thread_of_an_app_is_started_by_the_threads_of_its_context(tmp_path: Path) -> None:
    threads, before, others = RecordedThreads(), set(threading.enumerate()), set[str]()

    @tool(effect="pure")
    def list_others() -> str:
        others.update(thread.name for thread in {*threading.enumerate()} - before - threads.started)
        return "done"

    async def run() -> None:
        THREADS.set(threads)
        agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "list_others")), "bye"), tools=[list_others])
        async with App([agent], SqliteStore(tmp_path / "runs.db"), audit=Audit()) as app:
            await app.run("a", "go")

    await asyncio.create_task(run(), context=contextvars.copy_context())
    assert {thread.name for thread in threads.started} == {
        "holdfast tool",
        "holdfast-sqlite-heartbeat",
        "holdfast-sqlite-reader",
        "holdfast-sqlite-writer",
        "holdfast-tables",
    }
    assert {name for name in others if not name.startswith("asyncio_")} <= {"holdfast tool"}, "the tool's own thread"
    assert THREADS.get() is not threads


async def test_a_job_thread_runs_jobs_in_order_and_its_last_one_although_the_caller_is_cancelled() -> None:
    thread, order, may_end, ended = JobThread("test"), list[str](), threading.Event(), threading.Event()

    def work() -> None:
        assert may_end.wait(30)
        order.append("first")

    def end() -> None:
        order.append("last")
        ended.set()

    first, skipped = thread.submit(work), thread.submit(work)
    skipped.cancel()
    closing = asyncio.create_task(thread.close(end))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    may_end.set()
    await first
    assert await asyncio.to_thread(ended.wait, 30)
    assert order == ["first", "last"]
    assert thread.is_closed


async def test_a_job_thread_raises_the_error_of_a_job_in_its_caller() -> None:
    thread = JobThread("test")
    with pytest.raises(ZeroDivisionError):
        await thread.submit(lambda: 1 / 0)
    assert await thread.submit(lambda: 1) == 1
    await thread.close(lambda: None)
