"""Tools with the effect `transaction`: their writes and their record commit together."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.core.workflow.test_kills import STRIDE
from tests.core.workflow.transaction_trials import read_table
from tests.store_kinds import STORES

from holdfast import Agent, App, Reply, Retry, RunWaiting, ToolCall, tool, wait_for
from holdfast.adapters.tool_policies import check_policies, find_policy
from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.concurrency import shielded
from holdfast.core.agents.tool import ToolPolicy
from holdfast.core.errors import DefinitionError, RunFailed, RunParked
from holdfast.stores.from_url import store_from_url
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.wrapper import StoreWrapper
from holdfast.testing.store_processes.store_under_test import add_worker
from holdfast.workflows import StepFailed, call, workflow

CREATE = "create table if not exists booked (name text)"


def count(connection: Any) -> int:
    found: int = connection.execute("select count(*) from booked").fetchone()[0]
    return found


@tool(effect="transaction")
def book(seat: str, connection: Any = None) -> int:
    connection.execute(CREATE)
    connection.execute(f"insert into booked values ('{seat}')")
    return count(connection)


@workflow
async def book_once(seat: str) -> int:
    return int(await book(seat))


@pytest.mark.parametrize("kind", ["workflow", "agent"])
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_run_killed_at_every_point_writes_each_row_once(tmp_path: Path, store: str, kind: str) -> None:
    with STORES[store].open_empty(tmp_path) as url:
        template = "sqlite:{folder}/runs.db" if store == "sqlite" else url
        command = [sys.executable, "-m", "tests.core.workflow.transaction_trials", kind, template, str(tmp_path)]
        command.append(str(STRIDE))
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    baseline = report["baseline"]
    assert baseline["rows"] == (["2a", "2b", "first"] if kind == "workflow" else ["4a", "4b", "4c"])
    # Parallel branches may share a write, so a run may have fewer points than the first one had.
    trials = [trial for trial in report["trials"] if trial["killed"]]
    assert trials
    for trial in trials:
        assert (trial["output"], trial["rows"]) == (baseline["output"], baseline["rows"])


@pytest.mark.parametrize("url", ["memory:", None])
async def test_a_store_without_transactions_is_refused_before_anything_is_called(url: str | None) -> None:
    asked: list[Any] = []

    async def model(messages: Any, tools: Any) -> Reply:
        asked.append(messages)
        return Reply(text="no")

    async with App([book_once, Agent(name="clerk", model=model, tools=[book])], url) as app:
        with pytest.raises(RunFailed, match="the store of the run has no transactions"):
            await app.run(book_once, "4a")
        with pytest.raises(RunFailed, match="the store of the run has no transactions"):
            await app.run("clerk", "4a")
    assert asked == []


async def test_an_async_function_is_refused_in_sqlite_and_works_on_postgres(durable_store_url: str) -> None:
    @tool(effect="transaction")
    async def book_async(seat: str, connection: Any = None) -> int:
        await connection.execute(CREATE)
        await connection.execute(f"insert into booked values ('{seat}')")
        [found] = await (await connection.execute("select count(*) from booked")).fetchone()
        return int(found)

    @workflow
    async def flow() -> list[int]:
        return [await book_async("4a"), await book_async("4b")]

    async with App([flow], durable_store_url) as app:
        if durable_store_url.startswith("sqlite"):
            with pytest.raises(RunFailed, match="holds the only write lock"):
                await app.run(flow)
        else:
            assert (await app.run(flow)).output == [1, 2]


async def test_an_error_rolls_back_the_writes_and_a_retry_begins_without_them(durable_store_url: str) -> None:
    tries = 0

    @tool(effect="transaction", retry=Retry(max_tries=3, initial_delay=timedelta(milliseconds=1)))
    def flaky(seat: str, connection: Any = None) -> int:
        nonlocal tries
        tries += 1
        connection.execute(CREATE)
        connection.execute(f"insert into booked values ('{seat}')")
        if seat == "never" or tries == 1:
            raise TimeoutError("busy")
        return count(connection)

    @workflow
    async def flow() -> tuple[int, str]:
        booked = await flaky("4a")
        try:
            await flaky("never")
        except StepFailed as exc:
            return booked, exc.type_name
        return booked, ""

    async with App([flow], durable_store_url) as app:
        assert (await app.run(flow)).output == (1, "TimeoutError")
        assert tries == 5
    assert read_table(durable_store_url, "select name from booked") == [("4a",)]


async def test_a_result_that_cannot_be_stored_rolls_back(durable_store_url: str) -> None:
    @tool(effect="transaction")
    def lose(connection: Any = None) -> Any:
        book("4a", connection=connection)
        return object()

    @workflow
    async def flow() -> int:
        try:
            await lose()
        except StepFailed:
            return int(await book("4b"))
        return 0

    async with App([flow], durable_store_url) as app:
        assert (await app.run(flow)).output == 1


@pytest.mark.parametrize("statement", ["commit", "rollback", "begin"])
async def test_the_function_cannot_end_its_transaction(durable_store_url: str, statement: str) -> None:
    @tool(effect="transaction")
    def end(connection: Any = None) -> None:
        book("4a", connection=connection)
        if durable_store_url.startswith("sqlite"):
            connection.execute(statement)
        else:
            getattr(connection, {"begin": "commit"}.get(statement, statement))()

    @workflow
    async def flow() -> str:
        try:
            await end()
        except StepFailed as exc:
            return exc.type_name
        return ""

    async with App([flow, book_once], durable_store_url) as app:
        assert (await app.run(flow)).output in ("AuthError", "ProgrammingError")
        assert (await app.run(book_once, "4b")).output == 1


async def test_a_connection_that_is_kept_is_closed_after_its_transaction(durable_store_url: str) -> None:
    kept: list[Any] = []

    @tool(effect="transaction")
    def keep(connection: Any = None) -> None:
        book("4a", connection=connection)
        kept.append(connection)

    @workflow
    async def flow() -> None:
        await keep()

    async with App([flow], durable_store_url) as app:
        await app.run(flow)
        with pytest.raises(Exception, match=r"ended|closed"):
            await asyncio.to_thread(kept[0].execute, "delete from booked")
    assert len(read_table(durable_store_url, "select name from booked")) == 1


async def test_a_worker_that_lost_its_claim_commits_nothing(url: str) -> None:
    entered, released = threading.Event(), threading.Event()
    calls = 0

    @tool(effect="transaction")
    def slow(connection: Any = None) -> int:
        nonlocal calls
        calls += 1
        book("4a", connection=connection)
        if calls == 1:
            entered.set()
            released.wait(30)
        return count(connection)

    @workflow
    async def flow() -> int:
        return int(await slow())

    async with App([flow], url, worker=False) as app:
        running = asyncio.ensure_future(app.run(flow, run_id="r"))
        await asyncio.to_thread(entered.wait, 30)
        thief = store_from_url(url)
        await thief.open()
        worker = await add_worker(thief)
        await thief.claim("r", worker, steal=True)
        released.set()
        await thief.deregister_worker(worker)
        await thief.close()
        async with App([flow], url):
            assert (await running).output == 1  # of the second call: the caller follows the run
    assert calls == 2
    assert len(read_table(url, "select name from booked")) == 1


async def test_a_timeout_or_a_cancel_leaves_nothing(durable_store_url: str) -> None:
    entered, released = threading.Event(), threading.Event()

    @tool(effect="transaction", timeout=timedelta(milliseconds=200))
    def late(connection: Any = None) -> None:
        book("late", connection=connection)
        released.wait(2)  # on SQLite the timeout takes effect when the function returns

    @tool(effect="transaction")
    def stuck(connection: Any = None) -> None:
        book("stuck", connection=connection)
        entered.set()
        released.wait(30)

    @workflow
    async def flow() -> str:
        try:
            await late()
        except StepFailed as exc:
            released.set()
            return exc.type_name
        return ""

    @workflow
    async def wait() -> None:
        await stuck()

    async with App([flow, wait, book_once], durable_store_url) as app:
        assert (await app.run(flow)).output == "ToolTimeout"
        released.clear()
        running = asyncio.ensure_future(app.run(wait, run_id="r"))
        await asyncio.to_thread(entered.wait, 30)
        cancelled = asyncio.ensure_future(app.cancel("r"))
        await asyncio.sleep(0)
        released.set()
        await asyncio.wait([running, cancelled])
        assert (await app.run(book_once, "4a")).output <= 2
    names = {name for (name,) in read_table(durable_store_url, "select name from booked")}
    assert "late" not in names


class FailingCommit(StoreWrapper):
    """A store whose first transaction fails at its commit, when the test says so."""

    def __init__(self, store: RunStore) -> None:
        super().__init__(store)
        self.is_committing, self.may_fail = asyncio.Event(), asyncio.Event()

    async def transact(self, claim: Claim, function: Callable[[Any], Any], make_write: Callable[[Any], Append]) -> Any:
        make_write(function(None))
        self.is_committing.set()
        await shielded(self.may_fail.wait(), suppress_cancel=True)
        raise StoreUnavailable("the commit has failed")


async def test_a_call_that_is_cancelled_during_a_commit_that_fails_has_no_result(tmp_path: Path) -> None:
    store = FailingCommit(SqliteStore(tmp_path / "runs.db"))

    @tool(effect="transaction")
    def count_seats(connection: Any = None) -> int:
        return 7

    @workflow
    async def flow() -> str:
        counting = asyncio.ensure_future(count_seats())
        await store.is_committing.wait()
        counting.cancel()
        for _ in range(20):  # turns of the event loop, until the call has seen its cancel
            await asyncio.sleep(0)
        store.may_fail.set()
        try:
            return f"counted {await counting}"
        except asyncio.CancelledError:
            return "cancelled"

    async with App([flow], store) as app:
        assert (await app.run(flow)).output == "cancelled"


async def test_a_lost_connection_interrupts_the_run_and_the_call_is_repeated() -> None:
    with STORES["postgres"].open_empty(Path()) as url:
        tries = 0

        @tool(effect="transaction")
        def cut(connection: Any = None) -> int:
            nonlocal tries
            tries += 1
            book("4a", connection=connection)
            if tries == 1:
                with psycopg.connect(url, autocommit=True) as other:
                    other.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])
            return count(connection)

        @workflow
        async def flow() -> int:
            return int(await cut())

        async with App([flow], url) as app:
            await app.submit(flow, run_id="r")
            assert (await app.result("r")).output == 1
        assert tries == 2
        assert len(read_table(url, "select name from booked")) == 1


async def test_changed_arguments_of_a_transaction_park_the_run(durable_store_url: str) -> None:
    seat = "4a"

    @workflow
    async def flow() -> int:
        booked = int(await book(seat))
        await wait_for("go")
        return booked

    async with App([flow], durable_store_url) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, run_id="r")
        seat = "4b"
        await app.signal("r", "go")
        with pytest.raises(RunParked, match="changed arguments"):
            await app.result("r")
    assert read_table(durable_store_url, "select name from booked") == [("4a",)]


def test_definitions_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DefinitionError, match="a parameter `connection`"):

        @tool(effect="transaction")
        def no_connection(seat: str) -> None: ...

    assert "connection" not in book.schema.parameters["properties"]
    policy = ToolPolicy("transaction")
    with pytest.raises(DefinitionError, match="only tools of holdfast's own agents"):
        check_policies({"book": policy})
    with pytest.raises(DefinitionError, match="only tools of holdfast's own agents"):
        find_policy({}, "book", None, {"effect": "transaction"})


async def test_call_has_no_transactions(durable_store_url: str) -> None:
    @workflow
    async def flow() -> None:
        await call("book", print, effect="transaction")

    async with App([flow], durable_store_url) as app:
        with pytest.raises(RunFailed, match="make a tool of it"):
            await app.run(flow)


async def test_agents_and_model_calls_see_no_connection(durable_store_url: str) -> None:
    async def model(messages: Any, tools: Any) -> Reply:
        if len(messages) == 1:
            return Reply(tool_calls=(ToolCall(id="1", name="book", arguments={"seat": "4a", "connection": "x"}),))
        return Reply(text=str(messages[-1].content))

    async with App([Agent(name="clerk", model=model, tools=[book])], durable_store_url) as app:
        assert "unknown field" in str((await app.run("clerk", "go")).output)
