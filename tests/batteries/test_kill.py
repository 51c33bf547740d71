"""Batteries whose process is killed: their data is complete, survives, and is counted once."""

import asyncio
import itertools
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tests.batteries.battery_process import ADDED, STEPS, TOKENS

from holdfast.batteries.audit import AuditQuery, AuditRow, AuditTable
from holdfast.batteries.budget import Budget, Limit, Spend
from holdfast.batteries.schedule import Job, JobTable, Schedule
from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import iter_runs
from holdfast.db.urls import tables_from_url
from holdfast.stores import store_from_url
from holdfast.testing import ManualClock

NEVER = "0"


@contextmanager
def start_process(*arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """Start a process of `battery_process.py`, and kill it at the end if it still runs."""
    command = [sys.executable, "-m", "tests.batteries.battery_process", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_lines(process: "subprocess.Popen[str]", lines: int = 1) -> str:
    """Return the last of the next `lines` lines that the process prints, or "done" as soon as it prints that."""
    assert process.stdout is not None
    line = ""
    for _ in range(lines):
        line = process.stdout.readline().strip()
        assert line, "the process ended by itself"
        if line == "done":
            break
    return line


async def load_records(url: str) -> dict[str, RunRecord]:
    store = store_from_url(url)
    await store.open()
    try:
        return {record.run_id: record async for record in iter_runs(store)}
    finally:
        await store.close()


async def load_spend(url: str) -> Spend:
    budget = Budget(Limit(tokens=1, per="all"), tables=tables_from_url(url))
    try:
        return await budget.spent("all")
    finally:
        await budget.close()


async def load_audit_rows(url: str) -> list[AuditRow]:
    store = AuditTable(tables_from_url(url))
    await store.open()
    try:
        return list(await store.query(AuditQuery(run_id="r")))
    finally:
        await store.close()


# -- budget -------------------------------------------------------------------------------------------------------


def test_spending_booked_before_a_kill_stays_booked_and_is_booked_once(database_url: str) -> None:
    chance, booked_before = random.Random(), 0
    while True:
        with start_process("run", database_url, NEVER) as process:
            began = read_lines(process)  # "done" at once, if the answer was saved before the kill
            step = began if began == "done" else read_lines(process, chance.randint(1, 5))
            if step == "done":
                assert process.wait(60) == 0
                break
            process.kill()
            process.wait()
        saved = decode(asyncio.run(load_records(database_url))["r"].progress, Progress)
        booked = asyncio.run(load_spend(database_url))
        # The last step may be saved and not booked yet: then the next attempt books it.
        assert TOKENS * (int(step) - 1) <= booked.tokens <= saved.own_usage.input_tokens, f"from {began} to {step}"
        assert (booked.tokens >= booked_before, booked.runs) == (True, 1)
        booked_before = booked.tokens
    assert asyncio.run(load_spend(database_url)).tokens == TOKENS * STEPS
    assert asyncio.run(load_spend(database_url)).runs == 1


# -- audit --------------------------------------------------------------------------------------------------------


def wait_for_rows(url: str, count: int) -> None:
    end = time.monotonic() + 60
    while len(rows := asyncio.run(load_audit_rows(url))) < count:
        assert time.monotonic() < end, f"there is only {rows}"
        time.sleep(0.02)


def expected_rows(rows: list[AuditRow], first: int, *, resumed: bool) -> list[tuple[str, Any]]:
    """Return the first `len(rows)` rows of an attempt that starts at step `first`, as `summarize` shows them."""
    begun = "resumed" if resumed else "begun"
    steps = ([("tool", f"c{step}"), ("step", step)] for step in itertools.count(first))
    expected = itertools.chain([("start", begun)], *itertools.islice(steps, STEPS))
    return list(itertools.islice(expected, len(rows)))


def summarize(row: AuditRow) -> tuple[str, Any]:
    return row.kind, {"start": row.status, "tool": row.call_id, "step": row.step, "end": row.status}[row.kind]


def test_the_rows_of_a_killed_process_are_there_up_to_its_last_step(database_url: str) -> None:
    with start_process("run", database_url, "4") as process:
        assert read_lines(process, 4) == "4"  # three steps are saved, and the process hangs in the fourth
        wait_for_rows(database_url, 7)
        process.kill()
        process.wait()
    rows = asyncio.run(load_audit_rows(database_url))
    assert [summarize(row) for row in rows] == expected_rows(rows, 1, resumed=False)
    assert len(rows) == 7
    with start_process("run", database_url, NEVER) as process:
        assert read_lines(process, STEPS - 3 + 1) == "done"
        assert process.wait(60) == 0
    *more, answer, end = [summarize(row) for row in asyncio.run(load_audit_rows(database_url))[7:]]
    assert more == expected_rows([rows[0]] * len(more), 4, resumed=True)
    assert (answer, end) == (("step", STEPS), ("end", "done"))


def test_a_kill_at_any_moment_leaves_complete_rows_without_a_gap(database_url: str) -> None:
    """Only the last rows may be missing, because no run waits for them to be written."""
    chance, first, seen = random.Random(), 1, 0
    for number in range(3):
        steps = chance.randint(0, 3)
        with start_process("run", database_url, str(first + steps)) as process:
            read_lines(process, 1 + steps)
            time.sleep(chance.random() * 0.4)  # a batch is written every 0.2 s: before, amid or after one
            process.kill()
            process.wait()
        rows = asyncio.run(load_audit_rows(database_url))[seen:]  # each of them can be read
        assert [summarize(row) for row in rows] == expected_rows(rows, first, resumed=number > 0)
        first, seen = first + steps, seen + len(rows)


# -- schedule -----------------------------------------------------------------------------------------------------


async def add_job(url: str) -> Job:
    schedule = Schedule(tables=tables_from_url(url), clock=ManualClock(ADDED))
    try:
        return await schedule.add("hourly", "a", "go", "0 * * * *")
    finally:
        await schedule.close()


async def load_jobs(url: str) -> list[Job]:
    store = JobTable(tables_from_url(url))
    await store.open()
    try:
        return list(await store.jobs())
    finally:
        await store.close()


def test_a_job_whose_process_is_killed_during_a_fire_is_not_marked_and_fires_again(database_url: str) -> None:
    job = asyncio.run(add_job(database_url))
    run_id = job.run_id(job.next_at)
    for _ in range(2):
        with start_process("fire", database_url, "hang") as process:
            assert read_lines(process) == f"submitted {run_id}"
            process.kill()
            process.wait()
        assert asyncio.run(load_jobs(database_url)) == [job], "not marked"
    with start_process("fire", database_url, "") as process:
        assert (read_lines(process), read_lines(process)) == (f"submitted {run_id}", "ran 1")
        assert process.wait(60) == 0
    [marked] = asyncio.run(load_jobs(database_url))
    assert marked.next_at == job.next_at + timedelta(hours=1)
    assert list(asyncio.run(load_records(database_url))) == [run_id], "one run, however often it was submitted"
    with start_process("fire", database_url, "") as process:
        assert read_lines(process) == "ran 0"
