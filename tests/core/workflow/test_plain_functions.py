"""Workflows that are plain functions: they run in a thread, and use `block_on` for what is async."""

import asyncio
import contextlib
import contextvars
import datetime
import random
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.simulated_host import SimulatedHost

from holdfast import App, tool
from holdfast.core.errors import DefinitionError, RunCancelled, RunError
from holdfast.core.run.info import RunInfo
from holdfast.stores.memory import MemoryStore
from holdfast.workflows import (
    Restart,
    StepFailed,
    WorkflowWarning,
    block_on,
    call,
    first,
    now,
    sleep,
    wait_for,
    workflow,
)

MADE: list[str] = []

draw = random.random
utc_now = datetime.datetime.utcnow


@pytest.fixture(autouse=True)
def _forget() -> None:
    MADE.clear()


@tool
async def book(seat: str) -> str:
    MADE.append(seat)
    if seat == "bad":
        raise LookupError(seat)
    return f"{seat}!"


@tool
def book_in_thread(seat: str) -> str:
    MADE.append(seat)
    return f"{seat}?"


async def race() -> str:
    winner, _ = await first(fast=book("in a race"), slow=sleep(timedelta(days=1)))
    return winner


@workflow
def travel(seats: list[str]) -> list[str]:
    booked = [block_on(book(seat)) for seat in [*seats, seats[0]]] + [book_in_thread("thread")]
    try:
        block_on(book("bad"))
    except StepFailed as exc:
        booked.append(exc.type_name)
    at = block_on(now())
    winner, _ = block_on(first(fast=book("first"), slow=sleep(timedelta(days=1))))
    return [*booked, winner, block_on(race()), str(at.year > 2000)]


async def test_the_steps_of_a_plain_workflow_are_made_and_return_their_values(store_url: str) -> None:
    async with App([travel], store_url) as app:
        result = await app.run(travel, inputs={"seats": ["4a", "4b"]})
    assert result.output == ["4a!", "4b!", "4a!", "thread?", "LookupError", "fast", "fast", "True"]
    assert MADE == ["4a", "4b", "4a", "thread", "bad", "first", "in a race"]


async def test_a_plain_workflow_continues_after_a_crash_and_repeats_no_step() -> None:
    store = MemoryStore()
    host = SimulatedHost(store)
    crashes = True

    @tool(effect="idempotent")
    async def crash() -> None:
        if crashes:
            await host.crash()

    @workflow
    def flow() -> str:
        seat = book_in_thread("4a")
        block_on(crash())
        return str(seat)

    with contextlib.suppress(RunError):
        await host.executor.start(flow, RunInfo.create(flow, "", run_id="r"))
    crashes = False
    async with App([flow], store) as app:
        assert (await app.result("r")).output == "4a?"
    assert MADE == ["4a"]


async def test_a_plain_workflow_that_waits_holds_no_thread(store_url: str) -> None:
    entered: list[str] = []

    @workflow
    def flow() -> str:
        entered.append("in")
        try:
            seat = block_on(book("4a"))
            answer = block_on(wait_for("go"))
        except Exception:  # nothing that it catches
            entered.append("caught")
            raise
        finally:
            entered.append("out")
        return f"{seat} {answer}"

    async with App([flow], store_url) as app:
        await app.submit(flow, run_id="r")
        assert app.store is not None
        while (await app.get("r")).status.value != "waiting":
            await app.store.wait_for_change(timedelta(milliseconds=20))
        assert entered == ["in", "out"]
        await app.signal("r", "go", "now")
        assert (await app.result("r")).output == "4a! now"
    assert entered == ["in", "out"] * 2
    assert MADE == ["4a"]


async def test_a_cancel_arrives_at_the_next_step() -> None:
    entered, released = threading.Event(), threading.Event()

    @workflow
    def flow() -> None:
        entered.set()
        released.wait(30)
        book_in_thread("4a")

    async with App([flow], "memory:") as app:
        running = asyncio.ensure_future(app.run(flow, run_id="r"))
        await asyncio.to_thread(entered.wait, 30)
        await app.cancel("r")
        released.set()
        with pytest.raises(RunCancelled):
            await running
    assert MADE == []


async def test_closing_the_app_ends_a_plain_workflow_at_its_next_step() -> None:
    store, entered, released = MemoryStore(), threading.Event(), threading.Event()

    @workflow
    def flow() -> str:
        entered.set()
        released.wait(30)
        return str(book_in_thread("4a"))

    async with App([flow], store) as app:
        await app.submit(flow, run_id="r")
        await asyncio.to_thread(entered.wait, 30)
        asyncio.get_running_loop().call_later(0.1, released.set)
    assert MADE in ([], ["4a"])
    async with App([flow], store) as app:
        assert (await app.result("r")).output == "4a?"
    assert MADE == ["4a"]


async def test_a_restart_of_a_plain_workflow() -> None:
    @workflow
    def flow(count: int) -> int | Restart:
        book_in_thread(f"seat {count}")
        return count if count == 3 else Restart(count + 1)

    async with App([flow], "memory:") as app:
        assert (await app.run(flow, inputs={"count": 1})).output == 3
    assert MADE == ["seat 1", "seat 2", "seat 3"]


async def test_misuse_of_a_plain_workflow_has_clear_errors() -> None:
    found: list[str] = []

    def note(function: Callable[[], Any]) -> None:
        try:
            function()
        except (RunError, DefinitionError) as exc:
            found.append(str(exc))

    async def in_another_loop() -> None:
        book_in_thread("4a")

    def run_loop() -> None:
        asyncio.run(in_another_loop())

    def call_saga() -> None:
        from holdfast.workflows import saga

        saga()

    @workflow
    def flow() -> None:
        note(run_loop)
        note(call_saga)

    @workflow
    async def outer() -> None:
        note(flow)
        coroutine = book("4b")
        note(lambda: block_on(coroutine))

    async with App([flow, outer], "memory:") as app:
        await app.run(flow)
        await app.run(outer)
    assert [text.partition(":")[2] or text for text in found] == [
        " use block_on()",
        "saga() works in a plain workflow only in an async function that block_on() runs",
        " call it with run_agent()",
        " use await",
    ]
    assert MADE == []


async def test_a_thread_that_is_left_behind_makes_no_step() -> None:
    kept: list[contextvars.Context] = []

    @workflow
    def flow() -> None:
        kept.append(contextvars.copy_context())

    async with App([flow], "memory:") as app:
        await app.run(flow)
        with pytest.raises(BaseException, match="unwound"):
            await asyncio.to_thread(kept[0].run, book_in_thread, "4a")
    assert MADE == []


def test_outside_of_a_run_it_is_a_plain_function() -> None:
    @workflow
    def flow() -> str:
        return str(book_in_thread("4a")) + block_on(book("4b"))

    assert flow() == "4a?4b!"


# -- what differs in each attempt -------------------------------------------------------------------------------------


def collect_warnings(define: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        define()
    assert all(each.category is WorkflowWarning and each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


def test_the_time_and_random_values_in_a_body_are_warned_about() -> None:
    async def flow() -> list[Any]:
        at = [datetime.datetime.now(), utc_now()]
        ids = [uuid.uuid4() for _ in range(3)]
        return [at, ids, time.time(), random.choice([1]), draw()]

    found = collect_warnings(lambda: workflow(flow))
    assert sorted(text.split(" calls ")[1].split("(")[0] for text in found) == [
        "datetime.now",
        "datetime.utcnow",
        "random.choice",
        "random.random",
        "time.time",
        "uuid.uuid4",
    ]


def test_steps_and_functions_that_are_passed_on_are_not_warned_about() -> None:
    async def flow() -> list[Any]:
        return [await now(), await call("time", time.time), await call("inner", lambda: time.time()), time.sleep]

    def plain(seconds: float) -> float:
        return max(seconds, float(len(time.__name__)))

    assert collect_warnings(lambda: workflow(flow)) == []
    assert collect_warnings(lambda: workflow(plain)) == []
