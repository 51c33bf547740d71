"""The audit over every kind of store, and in runs."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import NOT_EXECUTED, Agent, App, CheckpointSettings, Reply, Retry, Usage, current_call, tool
from holdfast.batteries.audit import Audit, AuditError, AuditQuery, AuditRow, AuditTable
from holdfast.core import Executor, Ports
from holdfast.core.agents.calls import UNKNOWN
from holdfast.core.redaction import REDACTED, Redactor
from holdfast.db.sqlite_tables import MemoryTables
from holdfast.db.tables import Cursor, TablesUnavailable
from holdfast.db.urls import tables_from_url
from holdfast.errors import ModelUnavailable, RunParked
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock

START = datetime(2030, 1, 1, tzinfo=UTC)


def row(run_id: str = "r", hours: float = 0, **more: object) -> AuditRow:
    fields = {"kind": "step", "agent_name": "a", **more}
    return AuditRow(run_id=run_id, at=START + timedelta(hours=hours), **fields)  # type: ignore[arg-type]


T = TypeVar("T")


@pytest.fixture
async def store(battery_url: str) -> AsyncIterator[AuditTable]:
    made = AuditTable(tables_from_url(battery_url))
    await made.open()
    yield made
    await made.close()


class TestAuditTable:
    async def test_rows_come_back_as_they_were_and_in_order(self, store: AuditTable) -> None:
        rows = [
            row("r", 0, kind="start", status="begun", caller_id="al"),
            row("r", 1, kind="tool", name="pay", call_id="c", effect="once", arguments={"a": [1, None, "é\0"]}),
            row("r", 1, kind="end", status="failed", failed=True, detail="boom", input_tokens=5, cost_usd=0.5),
        ]
        await store.add(rows[:2])
        await store.add(rows[2:])
        assert list(await store.query(AuditQuery())) == rows

    async def test_queries_return_the_matching_rows(self, store: AuditTable) -> None:
        await store.add(
            [
                row("one", 0, caller_id="al", agent_name="x", kind="start", status="begun"),
                row("two", 1, caller_id="bo", agent_name="x", kind="end", status="failed"),
                row("three", 2, caller_id="al", agent_name="y", kind="end", status="done"),
            ]
        )

        async def found(**wanted: object) -> list[str]:
            return [each.run_id for each in await store.query(AuditQuery(**wanted))]  # type: ignore[arg-type]

        assert await found(caller_id="al") == ["one", "three"]
        assert await found(agent_name="x") == ["one", "two"]
        assert await found(status="failed") == ["two"]
        assert await found(kind="end", caller_id="al") == ["three"]
        assert await found(run_id="one") == ["one"]
        assert await found(since=START + timedelta(hours=1)) == ["two", "three"]
        assert await found(until=START + timedelta(hours=1)) == ["one"]
        assert await found(limit=2) == ["two", "three"]

    async def test_a_tree_is_a_run_and_all_below_it(self, store: AuditTable) -> None:
        await store.add([row("grandchild", parent_run_id="child"), row("child", parent_run_id="root"), row("root")])
        await store.add([row("other"), row("stranger", parent_run_id="other")])
        tree = await store.query(AuditQuery(tree_of="root"))
        assert {each.run_id for each in tree} == {"root", "child", "grandchild"}

    async def test_purged_rows_are_gone(self, store: AuditTable) -> None:
        await store.add([row("old", 0), row("new", 5)])
        assert await store.purge(START + timedelta(hours=1)) == 1
        assert [each.run_id for each in await store.query(AuditQuery())] == ["new"]


@tool(effect="pure")
async def look(password: str, number: int) -> str:
    return f"saw {number}"


def agent() -> Agent:
    usage = Usage(input_tokens=3, cost_usd=0.5)
    model = ScriptedModel(
        tool_reply(call("c1", "look", password="hunter2", number=1), usage=usage), Reply(text="done", usage=usage)
    )
    return Agent(name="a", model=model, tools=[look])


async def test_a_run_is_recorded_with_its_steps_and_calls_and_no_secret() -> None:
    audit = Audit(tables=MemoryTables())
    await SimulatedHost(ports=Ports(observers=(audit,))).executor.run(agent(), "go", run_id="r", caller_id="al")
    rows = await audit.query()
    assert [(each.kind, each.status or each.name) for each in rows] == [
        ("start", "begun"),
        ("tool", "look"),
        ("step", ""),
        ("step", ""),
        ("end", "done"),
    ]
    assert {(each.caller_id, each.agent_name, each.run_id, each.failed, each.detail) for each in rows} == {
        ("al", "a", "r", False, "")
    }
    assert [(each.step, each.input_tokens) for each in rows] == [(0, 0), (0, 0), (1, 3), (2, 6), (0, 6)]
    assert (rows[1].call_id, rows[1].effect) == ("c1", "pure")
    assert rows[1].arguments == {"password": REDACTED, "number": 1}
    assert (rows[-1].input_tokens, rows[-1].cost_usd) == (6, 1.0)
    exported = [json.loads(line) async for line in audit.export()]
    assert [each["kind"] for each in exported] == [each.kind for each in rows]
    assert "hunter2" not in str(exported)
    await audit.close()


async def test_a_call_that_failed_is_marked() -> None:
    @tool(effect="pure")
    async def look(place: str) -> str:
        if place == "nowhere":
            raise LookupError("there is no such place")
        return "seen"

    audit = Audit(tables=MemoryTables())
    model = ScriptedModel(tool_reply(call("1", "look", place="nowhere"), call("2", "look", place="here")), "done")
    watched = Agent(name="a", model=model, tools=[look])
    await SimulatedHost(ports=Ports(observers=(audit,))).executor.run(watched, "go")
    rows = await audit.query(AuditQuery(kind="tool"))
    assert {each.call_id: each.failed for each in rows} == {"1": True, "2": False}
    await audit.close()


async def test_resumes_and_failures_are_recorded() -> None:
    audit, store = Audit(tables=MemoryTables()), MemoryStore()
    hang = asyncio.Event()

    async def dies(messages: object) -> Reply:
        hang.set()
        await asyncio.Event().wait()
        raise AssertionError

    one = SimulatedHost(store, ports=Ports(observers=(audit,)))
    task = asyncio.create_task(one.executor.run(Agent(name="a", model=ScriptedModel(dies)), "go", run_id="r"))
    await hang.wait()
    await one.crash()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    two = SimulatedHost(store, ports=Ports(observers=(audit,)))
    with fails_with(ValueError, match="broken"):
        await two.resume(Agent(name="a", model=ScriptedModel(ValueError("broken"))), "r")
    rows = await audit.query(AuditQuery(kind="start"))
    assert [each.status for each in rows] == ["begun", "resumed"]
    last = (await audit.query(AuditQuery(kind="end")))[-1]
    assert (last.status, last.failed, last.detail) == ("failed", True, "ValueError: broken")
    await audit.close()


async def test_an_error_whose_text_cannot_be_stored_is_recorded(database_url: str) -> None:
    audit = Audit(tables=tables_from_url(database_url))
    with fails_with(ValueError, match="no file"):
        await SimulatedHost(ports=Ports(observers=(audit,))).executor.run(
            Agent(name="a", model=ScriptedModel(ValueError("no file \udcff"))), "go", run_id="r"
        )
    [end] = await audit.query(AuditQuery(kind="end"))
    assert end.detail == "ValueError: no file ?"
    await audit.close()


async def test_values_that_cannot_be_stored_are_replaced_and_block_no_other_row(
    battery_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    audit = Audit(
        tables=tables_from_url(battery_url), redact=lambda value: object() if isinstance(value, dict) else value
    )
    host = SimulatedHost(ports=Ports(observers=(audit,)))
    with fails_with(ValueError, match="cannot read"):
        await host.executor.run(
            Agent(name="a", model=ScriptedModel(ValueError("cannot read r\udce9sum"))), "go", run_id="one"
        )
    await host.executor.run(agent(), "go", run_id="two")
    audit.put(row("three", detail="half a pair \ud83d"))
    await audit.flush()
    rows = await audit.query()
    assert {each.run_id for each in rows} == {"one", "two", "three"}
    assert [each.detail for each in rows if each.detail] == ["ValueError: cannot read r?sum", "half a pair ?"]
    assert [each.arguments for each in rows if each.kind == "tool"] == ["(could not be stored)"]
    assert caplog.text.count("cannot be recorded") == 2
    await audit.close()


class Faulty(MemoryTables):
    """Tables whose writes fail while `down` is set."""

    down, refused = True, 0

    async def transaction(self, work: Callable[[Cursor], Awaitable[T]], *, lock: Iterable[str] = ()) -> T:
        if self.down and lock:
            self.refused += 1
            raise TablesUnavailable("down")
        return await super().transaction(work, lock=lock)


async def test_while_the_store_is_down_rows_wait_up_to_the_capacity_and_runs_do_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, tables = ManualClock(), Faulty()
    audit = Audit(tables=tables, clock=clock, capacity=4)
    await SimulatedHost(ports=Ports(observers=(audit,))).executor.run(agent(), "go")
    await clock.advance(timedelta(milliseconds=199))
    assert tables.refused == 0
    await clock.advance(timedelta(milliseconds=1))
    assert tables.refused == 1
    await clock.advance(timedelta(milliseconds=1199))
    assert tables.refused == 1, "a second, and the interval, until the next try"
    await clock.advance(timedelta(milliseconds=1))
    assert tables.refused == 2
    assert "could not be written" in caplog.text
    tables.down = False
    await clock.advance(timedelta(seconds=5))
    rows = await audit.query()
    assert [each.kind for each in rows] == ["tool", "step", "step", "end"], "the oldest of five did not fit"
    assert caplog.text.count("1 audit rows were dropped") == 1
    await audit.close()


class Counting(MemoryTables):
    """Tables that count the writes."""

    writes = 0

    async def transaction(self, work: Callable[[Cursor], Awaitable[T]], *, lock: Iterable[str] = ()) -> T:
        self.writes += bool(lock)
        return await super().transaction(work, lock=lock)


async def test_rows_are_written_in_batches_each_after_the_interval() -> None:
    clock, tables = ManualClock(), Counting()
    audit = Audit(tables=tables, clock=clock, capacity=2_000)
    for expected in (1, 2):  # the second row finds that the first flush has ended
        audit.put(row("r"))
        audit.put(row("r"))
        await clock.advance(timedelta(milliseconds=200))
        assert tables.writes == expected
    for _ in range(1_001):
        audit.put(row("r"))
    await audit.flush()
    assert tables.writes == 4, "a write has at most 1,000 rows"
    await audit.flush()
    assert tables.writes == 4
    assert len(await audit.query(AuditQuery(limit=2_000))) == 1_005
    assert len(await audit.query()) == 1_000
    await audit.close()


async def test_rows_are_deleted_by_their_age_and_an_audit_opens_again(caplog: pytest.LogCaptureFixture) -> None:
    clock, tables = ManualClock(START), MemoryTables()
    audit = Audit(tables=tables, clock=clock)
    for hours in (-3, -2, -1):
        audit.put(row(f"{hours}", hours))
    await audit.flush()
    assert await audit.purge(timedelta(hours=2)) == 1, "one that is as old as that stays"
    assert [each.run_id for each in await audit.query()] == ["-2", "-1"]
    await audit.close()
    await audit.close()
    await audit.open(MemoryTables())
    audit.put(row("after"))
    assert [each.run_id for each in await audit.query()][-1] == "after"
    assert "closed" not in caplog.text
    await audit.close()


class Slow(MemoryTables):
    """Writes, but returns only when `answer` is set: as a database does that is slow to acknowledge."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.answer = asyncio.Event(), asyncio.Event()

    async def transaction(self, work: Callable[[Cursor], Awaitable[T]], *, lock: Iterable[str] = ()) -> T:
        result = await super().transaction(work, lock=lock)
        if lock:
            self.written.set()
            await self.answer.wait()
        return result


@pytest.mark.parametrize("end", ["flush", "close"])
async def test_a_batch_whose_flush_is_cancelled_is_written_once(end: str) -> None:
    tables = Slow()
    audit = Audit(tables=tables, flush_interval=timedelta(0))
    for number in range(3):
        audit.put(row(f"r{number}"))
    if end == "flush":
        writing = asyncio.create_task(audit.flush())
        await tables.written.wait()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    else:
        await tables.written.wait()
    closing = asyncio.create_task(audit.close())
    await asyncio.sleep(0)
    tables.answer.set()
    await closing
    assert [each.run_id for each in await AuditTable(tables).query(AuditQuery())] == ["r0", "r1", "r2"]


def test_a_capacity_of_at_least_one_row_is_needed() -> None:
    Audit(capacity=1)
    with pytest.raises(AuditError, match="capacity is 0"):
        Audit(capacity=0)


async def test_an_app_writes_queued_rows_before_it_closes() -> None:
    audit, store = Audit(flush_interval=timedelta(hours=1)), MemoryStore()
    async with App([agent()], store, audit=audit) as app:
        await app.run("a", "go")
    assert [each.kind for each in await AuditTable(store.tables()).query(AuditQuery())][-1] == "end"


async def test_a_row_that_comes_after_the_close_is_logged_once_and_not_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    audit = Audit(tables=MemoryTables())
    await audit.open(MemoryTables())
    audit.put(row("first"))
    await audit.close()
    audit.put(row("late"))
    assert audit._flush_task is None
    [said] = [each.getMessage() for each in caplog.records if "late" in each.getMessage()]
    assert said == f"run late: an audit row came after the audit was closed: {row().kind}"


async def test_redacted_values_are_never_stored(durable_store_url: str) -> None:
    secret = "sk-12345"

    async def fails(messages: object) -> Reply:
        raise ValueError(f"the key {secret} is wrong")

    model = ScriptedModel(tool_reply(call("c1", "look", password=secret, number=1), text=f"using {secret}"), fails)
    agent = Agent(name="a", model=model, tools=[look], instructions=f"The key is {secret}.")
    redact = Redactor(patterns=[r"sk-\d+"])
    async with App([agent], durable_store_url, checkpoint=CheckpointSettings(redact=redact)) as app:
        with fails_with(ValueError, match="wrong"):
            await app.run("a", f"use {secret}", run_id="r")
        assert app.store is not None
        stored = await app.store.load("r")
    everything = repr(stored)
    assert secret not in everything
    assert REDACTED in everything
    assert "using" in everything


async def test_children_are_found_under_their_parent() -> None:
    audit = Audit(tables=MemoryTables())
    child = Agent(name="child", model=ScriptedModel("helped"))

    @tool(effect="idempotent")
    async def delegate() -> str:
        return str((await current_call().run(child, "help")).output)

    parent = Agent(name="parent", model=ScriptedModel(tool_reply(call("c1", "delegate")), "done"), tools=[delegate])
    await SimulatedHost(ports=Ports(observers=(audit,))).executor.run(parent, "go", run_id="root")
    await SimulatedHost(ports=Ports(observers=(audit,))).executor.run(
        Agent(name="other", model=ScriptedModel("hi")), "go"
    )
    tree = await audit.query(AuditQuery(tree_of="root"))
    assert {each.agent_name for each in tree} == {"parent", "child"}
    await audit.close()


async def test_retries_are_in_the_audit() -> None:
    @tool(effect="pure", retry=Retry(max_tries=2, jitter=0))
    async def look() -> str:
        raise TimeoutError("late")

    failing = True

    async def model(messages: Sequence[object], tools: Sequence[object]) -> Reply:
        nonlocal failing
        if failing:
            failing = False
            raise ModelUnavailable("away", timedelta(seconds=7))
        return await script(messages, tools)  # type: ignore[arg-type]

    script = ScriptedModel(tool_reply(call("1", "look")), "done")
    clock, audit = ManualClock(), Audit(tables=MemoryTables(), flush_interval=timedelta(days=1))
    run = asyncio.create_task(
        Executor(Ports(observers=(audit,)), clock=clock).run(Agent(name="a", model=model, tools=[look]), "go")
    )
    await clock.advance(timedelta(seconds=8))
    await run
    assert [row.detail for row in await audit.query(AuditQuery(kind="event")) if row.name == "retry"] == [
        "try 1 of the model failed, next in 7 s: ModelUnavailable: away",
        "try 1 of look failed, next in 1 s: TimeoutError: late",
    ]
    await audit.close()


@pytest.mark.parametrize(
    ("given", "comment"),
    [("receipt 7", ""), (NOT_EXECUTED, ": it did not happen, and is made now"), (UNKNOWN, ": its outcome is unknown")],
)
async def test_a_person_who_resolves_a_call_in_doubt_is_in_the_audit(given: object, comment: str) -> None:
    store, started, audit = MemoryStore(), asyncio.Event(), Audit()

    @tool(in_doubt="park")
    async def pay() -> str:
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()
        return "paid"

    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("c", "pay")), "done"), tools=[pay])
    host = SimulatedHost(store)
    task = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await started.wait()
    await host.crash()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with App([agent], store, audit=audit, worker=False) as app:
        with pytest.raises(RunParked):
            await app.run(agent, "go", run_id="r")
        await app.unpark("r", {"c": given}, by="ann", via="phone")
        assert (await app.run(agent, "go", run_id="r")).output == "done"
        rows = [*await audit.query()]
    assert {row.detail for row in rows if row.name == "in doubt"} == {"pay c"}
    decisions = [row.detail for row in rows if row.name == "decision"]
    assert decisions == [f"pay (c) answered by ann via phone{comment}"]
