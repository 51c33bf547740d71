"""Pages of a SQLite store: what they read, and in which order."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.checkpoint.errors import InvalidCursor, RunDamaged
from holdfast.checkpoint.record import Mail, RunFilter, RunStatus
from holdfast.checkpoint.store import iter_runs
from holdfast.stores.sqlite import SqliteStore, listing
from holdfast.stores.sqlite.database import load_migrations
from holdfast.testing import ManualClock
from holdfast.testing.store_processes.store_under_test import make_run

NOW = ManualClock().now()


@asynccontextmanager
async def opened(path: Path, clock: ManualClock | None = None) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock=clock or ManualClock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


FILTERS: dict[str, tuple[dict[str, Any], str]] = {
    "all": ({}, "runs_by_status"),
    "status": ({"statuses": frozenset({RunStatus.DONE})}, "runs_by_status"),
    "statuses": ({"statuses": frozenset({RunStatus.DONE, RunStatus.FAILED})}, "runs_by_status"),
    "interrupted": ({"interrupted": True}, "runs_by_status"),
    "time": ({"created_after": NOW, "created_before": NOW + timedelta(days=1)}, "runs_by_status"),
    "agent": ({"agent_name": "agent"}, "runs_by_agent"),
    "agent and status": ({"agent_name": "agent", "statuses": frozenset({RunStatus.FAILED})}, "runs_by_agent"),
    "caller": ({"caller_id": "caller"}, "runs_by_caller"),
    "caller and time": ({"caller_id": "caller", "created_before": NOW}, "runs_by_caller"),
    "tenant": ({"tenant": "acme"}, "runs_by_tenant"),
    "no tenant": ({"tenant": ""}, "runs_by_status"),
    "tenant and status": ({"tenant": "acme", "statuses": frozenset({RunStatus.DONE})}, "runs_by_tenant"),
    "parent": ({"parent_run_id": "parent"}, "runs_by_parent"),
    "parent and status": ({"parent_run_id": "parent", "statuses": frozenset({RunStatus.DONE})}, "runs_by_parent"),
    "label": ({"labels": {"team": "a"}}, "runs_by_label"),
    "label and status": ({"labels": {"team": "a"}, "statuses": frozenset({RunStatus.FAILED})}, "runs_by_label"),
    "labels": ({"labels": {"team": "a", "env": "b"}}, "runs_by_label"),
}


@pytest.mark.parametrize("direction", ["ASC", "DESC"])
@pytest.mark.parametrize("name", FILTERS)
async def test_a_page_reads_one_index_and_sorts_no_more_than_itself(
    tmp_path: Path, name: str, direction: listing.Direction
) -> None:
    options, index = FILTERS[name]
    filter = RunFilter(**options)
    async with opened(tmp_path / "runs.db"):
        connection = apsw.Connection(str(tmp_path / "runs.db"))
        bindings = listing._make_bindings(filter, listing.NEWEST, direction, 50, frozenset())
        source = listing._choose_source(filter, bindings, connection.execute)
        conditions = listing._make_conditions(filter, source)
        query = listing._build_query(source, conditions, listing._select_statuses(filter), direction)
        plan = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", bindings).fetchall()]
        connection.close()
    searches = [step for step in plan if index in step]
    assert searches, plan
    assert all(step.startswith("SEARCH") and "created_at" in step for step in searches), plan
    assert not [step for step in plan if step.startswith("SCAN") and "json_each" not in step and "page" not in step], (
        plan
    )
    assert len([step for step in plan if "TEMP B-TREE" in step]) <= 1, plan


async def test_of_two_indexes_the_smaller_one_is_read(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        for n in range(5):
            rare = {"rare": "yes"} if n == 3 else {}
            await store.create(make_run(f"run-{n}", labels={"common": "yes", **rare}))
        connection = apsw.Connection(str(tmp_path / "runs.db"))
        filter = RunFilter(labels={"common": "yes", "rare": "yes"}, agent_name="agent")
        bindings = listing._make_bindings(filter, listing.NEWEST, "DESC", 50, frozenset())
        source = listing._choose_source(filter, bindings, connection.execute)
        connection.close()
        assert bindings[source.condition.partition(":")[2].partition(" ")[0]] == "rare"
        assert [record.run_id for record in (await store.list_page(filter)).records] == ["run-3"]


def test_no_index_covers_a_column_that_a_save_changes() -> None:
    connection = apsw.Connection(":memory:")
    for script in load_migrations():
        connection.execute(script)
    saved = {"updated_at", "next_seq", "first_seq", "size", "last_segment", "progress", "strikes", "not_before"}
    for (definition,) in connection.execute("SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"):
        assert not [column for column in saved if column in str(definition)], definition
    connection.close()


@pytest.mark.parametrize("cursor", ["", "x", "1", "1:", ":1", "1:1:1", "9" * 19 + ":1", "1:" + "9" * 19, "١:١"])
async def test_what_is_no_cursor_is_refused(tmp_path: Path, cursor: str) -> None:
    async with opened(tmp_path / "runs.db") as store:
        with pytest.raises(InvalidCursor):
            await store.list_page(cursor=cursor)


async def test_runs_of_one_moment_have_an_order(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        for n in range(7):
            await store.create(make_run(f"run-{n}"))
        found, cursor = [], None
        while True:
            page = await store.list_page(limit=2, cursor=cursor)
            found += [record.run_id for record in page.records]
            if (cursor := page.cursor) is None:
                break
        assert found == [f"run-{n}" for n in reversed(range(7))]
        assert [record.run_id async for record in iter_runs(store)] == found[::-1]


async def test_the_labels_and_the_mail_of_a_run_go_with_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        await store.create(make_run("parent", labels={"team": "a"}))
        await store.create(make_run("child", labels={"team": "a", "env": "b"}, parent_run_id="parent"))
        await store.post("child", Mail(mail_id="1", topic="message", body=b"hello"))
        await store.remove("parent")
        connection = apsw.Connection(str(tmp_path / "runs.db"))
        assert connection.execute("SELECT (SELECT count(*) FROM labels), (SELECT count(*) FROM mail)").get == (0, 0)
        connection.close()


_TEXT_COLUMNS = ("reason", "agent_name", "caller_id", "concurrency_key", "tenant", "owner", "labels", "wake_on")


@pytest.mark.parametrize(
    "damage",
    ["labels = '{'", "wake_on = '[1'", *(f"{column} = CAST(X'FF61' AS TEXT)" for column in _TEXT_COLUMNS)],
)
async def test_a_damaged_row_is_shown_in_its_page_and_affects_no_other(tmp_path: Path, damage: str) -> None:
    async with opened(tmp_path / "runs.db") as store:
        for n in range(3):
            await store.create(make_run(f"run-{n}", labels={"team": "ä"}))
        connection = apsw.Connection(str(tmp_path / "runs.db"))
        connection.execute(f"UPDATE runs SET {damage} WHERE run_id = 'run-1'")
        connection.close()
        records = (await store.list_page()).records
        assert [record.run_id for record in records] == ["run-2", "run-1", "run-0"]
        assert [record.labels for record in records] == [{"team": "ä"}, {}, {"team": "ä"}]
        assert records[1].status is RunStatus.PARKED
        assert records[1].reason.startswith("damaged: its record is not what was written")
        assert sum(each.count for each in (await store.read_fleet()).counts) == 3
        with pytest.raises(RunDamaged):
            await store.load("run-1")
