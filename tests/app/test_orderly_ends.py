"""An orderly end is as safe as a crash: close, exit, end of the event loop, a second opening, a fork."""

import asyncio
import subprocess
import sys
import textwrap
from asyncio.subprocess import DEVNULL, PIPE
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import get_record, iter_runs
from holdfast.stores.from_url import store_from_url

#: What every script begins with: its store is the argument.
_PRELUDE = """
import asyncio, os, sys, threading, time
from holdfast import Agent, App, Bounds, Reply, ToolCall, ToolResult, WorkerSettings, current_call, tool

URL = sys.argv[1]

@tool(effect="pure")
async def tick(number: int) -> str:
    await asyncio.sleep(0.001)
    return "ticked"

async def model(messages, tools):
    await asyncio.sleep(0.001)
    replies = sum(type(message) is Reply for message in messages)
    if replies < STEPS:
        return Reply(tool_calls=[ToolCall(id=f"c{replies}", name="tick", arguments={"number": replies})])
    return Reply(text="done")

STEPS = 3
AGENTS = [Agent(name="a", model=model, tools=[tick], bounds=Bounds(max_steps=10**7))]
"""


def _run_script(body: str, url: str) -> str:
    """Run a process to its end, which is in time. Return its output."""
    script = _PRELUDE + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


async def _read_records(url: str) -> dict[str, RunRecord]:
    store = store_from_url(url)
    await store.open()
    try:
        return {record.run_id: record async for record in iter_runs(store)}
    finally:
        await store.close()


async def test_a_clean_exit_right_after_a_submit_costs_no_strike(durable_store_url: str) -> None:
    script = """
    async def main():
        async with App(AGENTS, URL) as app:
            await app.submit("a", "go")
    asyncio.run(main())
    """
    for _ in range(4):
        await asyncio.to_thread(_run_script, "STEPS = 10**6" + textwrap.dedent(script), durable_store_url)
    records = await _read_records(durable_store_url)
    assert len(records) == 4
    assert {record.status for record in records.values()} <= {RunStatus.QUEUED, RunStatus.INTERRUPTED}
    assert {record.strikes for record in records.values()} == {0}


async def test_twenty_quick_openings_leave_no_run_under_an_owner(durable_store_url: str) -> None:
    script = """
    async def main():
        for number in range(20):
            async with App(AGENTS, URL) as app:
                await app.submit("a", "go", run_id=f"r{number}")
                await asyncio.sleep(number % 10 / 1000)
    STEPS = 10**6
    asyncio.run(main())
    """
    await asyncio.to_thread(_run_script, script, durable_store_url)
    records = await _read_records(durable_store_url)
    assert len(records) == 20
    assert [run_id for run_id, record in records.items() if record.status is RunStatus.RUNNING] == []
    assert {record.strikes for record in records.values()} == {0}


async def test_an_app_opens_again_in_another_event_loop(durable_store_url: str) -> None:
    script = """
    app = App(AGENTS, URL)
    async def request(number):
        async with app:
            await app.submit("a", "go", run_id=f"r{number}")
            await asyncio.sleep(0.01)
    for number in range(6):
        asyncio.run(request(number))
    print(app.run_sync("a", "go", run_id="s1").output, app.run_sync("a", "go", run_id="s2").output)
    asyncio.run(asyncio.sleep(0))
    print(app.run_sync("a", "go", run_id="r0").output)
    """
    out = await asyncio.to_thread(_run_script, script, durable_store_url)
    assert out.split() == ["done"] * 3
    records = await _read_records(durable_store_url)
    assert {record.strikes for record in records.values()} == {0}
    assert [run_id for run_id, record in records.items() if record.status is RunStatus.RUNNING] == []


async def test_an_open_app_is_not_opened_twice(durable_store_url: str) -> None:
    script = """
    from holdfast.core.errors import DefinitionError
    app = App(AGENTS, URL)
    async def other_loop():
        try:
            async with app:
                pass
        except DefinitionError as exc:
            print(exc)
    async def main():
        async with app:
            await other_loop()
            await asyncio.to_thread(asyncio.run, other_loop())
            print((await app.run("a", "go")).output)
    asyncio.run(main())
    """
    out = await asyncio.to_thread(_run_script, script, durable_store_url)
    same, other, output = out.strip().splitlines()
    assert same == "the App is open already: share it, or use App.replace() for a second one"
    assert other == "the App is open in another event loop: use App.replace() for a second one"
    assert output == "done"


_ENDS = {
    "returns": "return",
    "raises": "raise KeyError('of the host')",
    "cancels all tasks": """
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.2)
    """,
}


@pytest.mark.parametrize("end", _ENDS)
@pytest.mark.parametrize("moment_ms", [1, 20, 60])
async def test_the_event_loop_ends_while_an_app_is_open(durable_store_url: str, end: str, moment_ms: int) -> None:
    script = f"""
    async def main():
        app = App(AGENTS, URL, worker=WorkerSettings(concurrency=30))
        await app.__aenter__()
        for number in range(30):
            await app.submit("a", "go", run_id=f"r{{number}}")
        await asyncio.sleep({moment_ms / 1000})
        {textwrap.dedent(_ENDS[end]).strip().replace(chr(10), chr(10) + " " * 8)}
    STEPS = 200
    try:
        asyncio.run(main())
    except KeyError:
        pass
    async def again():
        async with App(AGENTS, URL, worker=False) as app:
            for run in (await app.list(limit=100)).runs:
                print(run.run_id, run.status.value)
    asyncio.run(again())
    """
    out = await asyncio.to_thread(_run_script, script, durable_store_url)
    statuses = dict(line.split() for line in out.splitlines())
    assert len(statuses) == 30
    assert set(statuses.values()) <= {"queued", "interrupted", "done"}
    assert {record.strikes for record in (await _read_records(durable_store_url)).values()} == {0}


async def test_a_loop_that_ends_waits_for_a_tool_in_a_thread(durable_store_url: str) -> None:
    """Else another worker would ask `reconcile` while the tool is still at it, and make the call again."""
    script = """
    STARTED, RELEASED = threading.Event(), threading.Event()
    @tool
    def book() -> str:
        STARTED.set()
        RELEASED.wait(60)
        return "booked"
    async def clerk(messages, tools):
        results = [message.content for message in messages if isinstance(message, ToolResult)]
        return Reply(text=results[0]) if results else Reply(tool_calls=[ToolCall(id="c", name="book", arguments={})])
    AGENTS = [Agent(name="clerk", model=clerk, tools=[book])]
    async def work():
        async with App(AGENTS, URL) as app:
            await app.run("clerk", "go", run_id="r")
    async def release():
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(100):
                await asyncio.sleep(0)
            RELEASED.set()
    async def main():
        tasks = [asyncio.create_task(work()), asyncio.create_task(release())]
        await asyncio.to_thread(STARTED.wait, 60)
    asyncio.run(main())
    print(App(AGENTS, URL).run_sync("clerk", "go", run_id="r").output)
    """
    assert (await asyncio.to_thread(_run_script, script, durable_store_url)).strip() == "booked"


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
async def test_a_loop_that_ends_interrupts_the_calls_of_children(durable_store_url: str, depth: int) -> None:
    """The cancel of a call must not become its result before the stop has come down from the run at the top."""
    script = f"""
    STARTED, LIVES = [], []
    @tool(effect="pure")
    async def look(place: str) -> str:
        if len(LIVES) == 1:
            STARTED.append(place)
            await asyncio.Event().wait()
        return "seen"
    def make(name, tools, ids):
        async def ask(messages, tools):
            results = [message.content for message in messages if isinstance(message, ToolResult)]
            calls = [ToolCall(id=id, name=tools[0].name, arguments={{"place": id}}) for id in ids]
            return Reply(text=" ".join(results)) if results else Reply(tool_calls=calls)
        return Agent(name=name, model=ask, tools=tools)
    def delegate(agent):
        @tool(effect="idempotent")
        async def ask_child(place: str) -> str:
            return (await current_call().run(agent, place)).output
        return ask_child
    AGENTS = [make("a0", [look], "cd")]
    for number in range({depth}):
        AGENTS.append(make(f"a{{number + 1}}", [delegate(AGENTS[-1])], "c"))
    async def main():
        app = App(AGENTS, URL)
        await app.__aenter__()
        await app.submit("a{depth}", "go", run_id="r")
        while len(STARTED) < 2:
            await asyncio.sleep(0.01)
    LIVES.append(1)
    asyncio.run(main())
    LIVES.append(2)
    print(App(AGENTS, URL).run_sync("a{depth}", "go", run_id="r").output)
    """
    assert (await asyncio.to_thread(_run_script, script, durable_store_url)).strip() == "seen seen"


async def test_a_loop_that_is_closed_under_an_app_strands_nothing(durable_store_url: str) -> None:
    script = """
    async def begin(app):
        await app.__aenter__()
        for number in range(10):
            await app.submit("a", "go", run_id=f"r{number}")
        await asyncio.sleep(0.05)
    STEPS = 50
    app = App(AGENTS, URL)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin(app))
    loop.close()
    async def finish(app):
        async with app:
            for number in range(10):
                print((await app.result(f"r{number}")).output)
    asyncio.run(finish(APP))
    """
    for again in ("app", "App(AGENTS, URL)"):
        out = await asyncio.to_thread(_run_script_quietly, script.replace("APP", again), durable_store_url)
        assert out.split() == ["done"] * 10


def _run_script_quietly(body: str, url: str) -> str:
    """As `_run_script`. Python itself reports the tasks of a loop that was closed under them."""
    script = _PRELUDE + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("where", ["body", "tool", "sync tool"])
async def test_a_forked_child_ends_by_sys_exit(durable_store_url: str, where: str) -> None:
    script = f"""
    def fork():
        pid = os.fork()
        if pid == 0:
            sys.exit(5)
        deadline = time.monotonic() + 50
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return print("child", os.waitstatus_to_exitcode(status))
            time.sleep(0.01)
        os.kill(pid, 9)
        print("child hangs")

    if {where!r} == "tool":
        @tool
        async def tick(number: int) -> str:
            fork()
            return "forked"
    if {where!r} == "sync tool":
        @tool
        def tick(number: int) -> str:
            fork()
            return "forked"
    AGENTS = [Agent(name="a", model=model, tools=[tick], bounds=Bounds(max_steps=10**7))]
    STEPS = 1

    async def main():
        async with App(AGENTS, URL) as app:
            await app.run("a", "first", run_id="first")
            if {where!r} == "body":
                fork()
            print((await app.run("a", "second", run_id="second")).output)

    asyncio.run(main())
    """
    out = await asyncio.to_thread(_run_script_quietly, script, durable_store_url)
    assert "child hangs" not in out
    assert "child 5" in out
    assert out.split()[-1] == "done"
    assert {record.status for record in (await _read_records(durable_store_url)).values()} == {RunStatus.DONE}


async def test_runs_are_left_by_an_app_whose_store_could_not_be_written_while_it_closed(tmp_path: Path) -> None:
    script = """
    import apsw
    path = URL.removeprefix("sqlite:///")
    async def main():
        app = App(AGENTS, URL)
        await app.__aenter__()
        await app.submit("a", "go", run_id="r")
        while not (await app.list(status="running")).runs:
            await asyncio.sleep(0.01)
        lock = apsw.Connection(path)
        lock.set_busy_timeout(10_000)  # the App is writing
        lock.execute("BEGIN IMMEDIATE")
        await app.shutdown()
        lock.execute("ROLLBACK")
        lock.close()
    STEPS = 10**6
    asyncio.run(main())
    print("closed", flush=True)
    sys.stdin.read()
    """
    url = f"sqlite:///{tmp_path}/runs.db"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PRELUDE + textwrap.dedent(script), url, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
    )
    assert process.stdout is not None
    store = store_from_url(url)
    try:
        assert await process.stdout.readline() == b"closed\n"
        await store.open()
        async with asyncio.timeout(60):
            while (record := await get_record(store, "r")).owner_alive:
                await store.wait_for_change(timedelta(seconds=0.1))
        assert record.status in (RunStatus.RUNNING, RunStatus.INTERRUPTED)
        assert process.returncode is None
    finally:
        await store.close()
        process.kill()
        await process.wait()
