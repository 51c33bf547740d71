"""holdfast top."""

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from tests.cli.shell import Shell
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, RunWaiting, sleep
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.workers import RunCount, WorkerIdentity, this_process
from holdfast.cli.commands.top import make_summary, make_tables, render_frame
from holdfast.cli.opening import open_store
from holdfast.core.agents.tool import Tool
from holdfast.runtime.reading.activity import (
    Activity,
    ReasonCount,
    StuckRun,
    WorkerActivity,
    compare_activity,
    read_activity,
)
from holdfast.stores.from_url import store_from_url
from holdfast.testing.store_processes.store_under_test import add_worker, make_run

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def make_activity(*, stuck: int = 0, at: datetime = NOW, done: int = 5, steps: int = 3) -> Activity:
    return Activity(
        at=at,
        counts=[
            RunCount(agent_name="a", status=RunStatus.DONE, count=done),
            RunCount(agent_name="a", status=RunStatus.QUEUED, count=9, due=7, oldest=NOW - timedelta(minutes=5)),
        ],
        workers=[
            WorkerActivity(
                worker_id="w-1",
                alive=True,
                runs=2,
                agents=["a", "b"],
                last_write=NOW - timedelta(seconds=3),
                host="host",
                pid=7,
                last_heartbeat=NOW - timedelta(seconds=1),
            ),
            WorkerActivity(worker_id="w-2", alive=False, runs=0, agents=[], last_write=None),
        ],
        stuck=[
            StuckRun(
                run_id=f"run-{number}",
                agent="a",
                status=RunStatus.PARKED,
                since=NOW - timedelta(hours=number),
                steps=4,
                strikes=1,
                description="budget \x1b[31mspent",
            )
            for number in range(stuck)
        ],
        is_partial=False,
        steps={"r": steps},
        reasons=[
            ReasonCount(agent="a", status=RunStatus.PARKED, reason="in doubt", count=3, since=NOW - timedelta(hours=2))
        ],
    )


def render(activity: Activity, width: int, height: int) -> list[str]:
    from rich.console import Console

    console = Console(width=width, height=height, force_terminal=False)
    with console.capture() as capture:
        console.print(render_frame(activity, None, height))
    return capture.get().splitlines()


def test_a_frame_fits_the_terminal_and_says_what_it_leaves_out() -> None:
    for width, height in ((140, 50), (80, 20), (40, 20)):
        lines = render(make_activity(stuck=100), width, height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert any("of 100)" in line for line in lines)
        assert "q leaves" in lines[-1]
        assert "\x1b" not in "".join(lines)


def test_a_short_table_leaves_its_room_to_the_others() -> None:
    lines = render(make_activity(stuck=9), 120, 27)
    assert sum("run-" in line for line in lines) == 9


def test_the_tables_show_queues_workers_and_stuck_runs() -> None:
    queues, workers, reasons, stuck = make_tables(make_activity(stuck=1))
    assert (list(queues.columns), queues.rows) == (
        ["AGENT", "DUE", "OLDEST", "QUEUED", "DONE"],
        [["a", "7", "5 min", "9", "5"]],
    )
    assert workers.rows == [
        ["w-1", "busy", "2", "1.0 s", "3.0 s", "host · 7", "a, b"],
        ["w-2", "dead", "0", "", "", "", ""],
    ]
    assert reasons.rows == [["in doubt", "parked", "a", "3", "2 h"]]
    assert stuck.rows == [["run-0", "parked", "a", "0 ms", "4", "1", "budget \ufffd[31mspent"]]


def test_rates_are_per_minute() -> None:
    later = make_activity(at=NOW + timedelta(seconds=30), done=9, steps=13)
    rates = compare_activity(make_activity(), later)
    assert rates is not None
    assert (rates.created, rates.ended, rates.steps) == (8, 8, 20)
    assert "per minute: 8 created, 8 ended, 20 steps" in make_summary(later, rates)
    assert compare_activity(later, later) is None


async def _pay() -> str:
    return "paid"


async def _fill(url: str) -> None:
    """Put runs into a store whose progress cannot be read: they are shown all the same."""
    async with open_store(url, create=True) as store:
        worker = await add_worker(store)
        claim = await store.create(make_run("parked"), worker_id=worker)
        assert claim is not None
        await store.release(claim, Release(status=RunStatus.PARKED, reason="budget: spent"))
        await store.create(make_run("orphan"), worker_id=worker)
        await store.create(make_run("queued"))
        await store.deregister_worker(worker)


def test_one_frame_is_printed_without_a_terminal_and_as_json(shell: Shell) -> None:
    asyncio.run(_fill(f"sqlite:{shell.folder / 'runs.db'}"))
    text = shell.ok("top")
    assert text.splitlines()[0] == "holdfast top · 0 workers, 0 busy · 0 running · 2 due · 2 stuck"
    assert "budget: spent" in text
    activity = json.loads(shell.ok("top", "--json"))
    assert {run["run_id"]: run["status"] for run in activity["stuck"]} == {
        "parked": "parked",
        "orphan": "interrupted",
    }
    assert [(group["reason"], group["status"], group["count"]) for group in activity["reasons"]] == [
        ("budget", "parked", 1),
        ("its worker died", "interrupted", 1),
    ]


async def test_runs_that_wait_are_counted_by_reason() -> None:
    now = datetime.now(UTC)
    asks = tool_reply(call("c", "pay"))
    agent = Agent(name="a", model=ScriptedModel(asks, "done"), tools=[Tool(_pay, name="pay", approval=True)])
    sleeper = Agent(name="b", model=ScriptedModel(tool_reply(call("c", "sleep", seconds=900))), tools=[sleep])
    async with App([agent, sleeper], "memory:") as app:
        for number in range(3):
            with pytest.raises(RunWaiting):
                await app.run(agent, f"go {number}", run_id=f"r{number}")
        await app.submit(sleeper, "go", run_id="s")
        async for change in app.watch(agent="b"):
            if change.status == "waiting":
                break
        activity = await read_activity(app.open_store, now)
    assert [(group.agent, group.reason, group.count) for group in activity.reasons] == [
        ("a", "approval of pay", 3),
        ("b", "a time", 1),
    ]


async def test_idle_and_dead_workers_are_listed_with_their_heartbeats(durable_store_url: str) -> None:
    store = store_from_url(durable_store_url)
    await store.open()
    try:
        idle, busy = await add_worker(store), await add_worker(store)
        gone = WorkerIdentity(worker_id="gone", process=msgspec.structs.replace(this_process(), started="long ago"))
        await store.register_worker(gone)
        for number in range(2):
            await store.create(make_run(f"run-{number}", agent_name="writer"), worker_id=busy)
        activity = await read_activity(store, datetime.now(UTC))
    finally:
        await store.close()
    assert [(worker.worker_id, worker.alive, worker.runs) for worker in activity.workers] == [
        (busy, True, 2),
        (idle, True, 0),
        ("gone", False, 0),
    ]
    assert activity.workers[0].agents == ["writer"]
    assert all(worker.last_heartbeat and worker.pid == os.getpid() for worker in activity.workers)
    assert make_summary(activity, None).startswith("holdfast top · 2 workers, 1 busy · 2 running")


def test_q_leaves_the_terminal_as_it_was(shell: Shell) -> None:
    asyncio.run(_fill(f"sqlite:{shell.folder / 'runs.db'}"))
    terminal = shell.terminal("top")
    terminal.wait_for("q leaves")
    assert "\x1b[?1049h" in terminal.raw, "a screen of its own"
    terminal.type("q")
    assert terminal.finish() == 0
    assert terminal.raw.rindex("\x1b[?1049l") > terminal.raw.rindex("q leaves")


def test_ctrl_c_leaves_too(shell: Shell) -> None:
    asyncio.run(_fill(f"sqlite:{shell.folder / 'runs.db'}"))
    terminal = shell.terminal("top")
    terminal.wait_for("q leaves")
    terminal.type("\x03")
    assert terminal.finish() == 0
    assert "Traceback" not in terminal.text
