"""Owner, worker and reader: each role can do its work on PostgreSQL, and nothing else."""

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege
from tests.postgres_server import fresh_database, shared_server
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.stores.next_release import NEXT_VERSION, VERSION, make_next_release
from tests.stores.postgres_support import fail_after_timeout, open_store, wait_until_listening
from tests.stores.test_postgres_schema import as_user, asked

from holdfast import Agent, App, tool
from holdfast.batteries.budget.ledger import Ledger, Spend
from holdfast.checkpoint.errors import SchemaTooOld, StorePermissionError
from holdfast.checkpoint.record import Mail
from holdfast.checkpoint.store import END
from holdfast.cli.opening import BATTERIES, migrate_all, read_versions
from holdfast.db.postgres_tables import PostgresTables, make_grants
from holdfast.db.tables import TablesError
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    list_run_ids,
    load_bodies,
    make_append,
    make_run,
)

NEWER_APP = Path(__file__).with_name("newer_app.py")


class Roles(NamedTuple):
    """URLs of one database, by role."""

    owner: str
    worker: str
    reader: str


@pytest.fixture(scope="module")
def empty() -> Iterator[Roles]:
    """The roles, without any table."""
    names = [f"holdfast_{role}_{uuid.uuid4().hex}" for role in Roles._fields]
    with fresh_database() as url:
        for name in names:
            asked(url, f"create role {name} login")
        asked(url, f'grant create on database "{urlsplit(url).path[1:]}" to {names[0]}')
        yield Roles(*(as_user(url, name) for name in names))
        for name in names:
            asked(url, f"drop owned by {name} cascade")
    for name in names:
        asked(shared_server().url(), f"drop role {name}")


@pytest.fixture(scope="module")
def roles(empty: Roles) -> Roles:
    """The roles of a database that its owner has migrated."""
    asyncio.run(migrate_all(empty.owner))
    _grant(empty, "holdfast")
    return empty


def _grant(roles: Roles, schema: str) -> None:
    worker, reader = (urlsplit(url).username or "" for url in (roles.worker, roles.reader))
    for statement in make_grants(schema, worker=worker, reader=reader):
        asked(roles.owner, statement)


def _list_tables(roles: Roles) -> list[str]:
    return [
        str(name) for (name,) in asked(roles.owner, "select tablename from pg_tables where schemaname = 'holdfast'")
    ]


async def test_a_worker_without_tables_learns_what_to_do(empty: Roles) -> None:
    schema = f"missing_{uuid.uuid4().hex[:8]}"
    with pytest.raises(SchemaTooOld, match="run `holdfast migrate` as the owner") as refused:
        async with App([], PostgresStore(empty.worker, schema=schema)):
            pass
    assert (refused.value.found, refused.value.known) == (0, (await read_versions(empty.owner))[0].known)
    tables = PostgresTables(empty.worker, schema=schema)
    with pytest.raises(TablesError, match="run `holdfast migrate` as the owner"):
        await tables.open(BATTERIES[0])
    await tables.close()


async def test_a_worker_with_older_tables_learns_what_to_do(roles: Roles, tmp_path: Path) -> None:
    schema = f"older_{uuid.uuid4().hex[:8]}"
    async with open_store(roles.owner, schema=schema):
        pass
    _grant_store(roles, schema)
    release = make_next_release(tmp_path)
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(NEWER_APP), f"{roles.worker}&schema={schema}", str(tmp_path),
        env=os.environ | {"PYTHONPATH": str(release)}, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, said = await worker.communicate()
    assert f"has schema version {VERSION}, this holdfast needs version {NEXT_VERSION}" in said.decode()
    assert asked(roles.owner, f"select max(version) from {schema}.schema_version") == [(VERSION,)]


def _grant_store(roles: Roles, schema: str) -> None:
    asked(roles.owner, f"create table {schema}.battery (name text)")
    _grant(roles, schema)


async def test_a_worker_executes_runs_and_is_notified(roles: Roles) -> None:
    @tool
    async def charge() -> str:
        return "charged"

    model = ScriptedModel(tool_reply(call("c1", "charge")), "paid")
    async with fail_after_timeout(), App([Agent(name="clerk", model=model, tools=[charge])], roles.worker) as app:
        assert isinstance(app.store, PostgresStore)
        await wait_until_listening(app.store)
        await app.submit("clerk", "Charge.", run_id="order")
        assert (await app.result("order")).output == "paid"


async def test_a_worker_uses_mail_drafts_and_removes_runs(roles: Roles) -> None:
    async with fail_after_timeout(), open_store(roles.worker) as store:
        worker = await add_worker(store)
        claim = await create_claimed(store, worker, make_run("all", b"begin", labels={"team": "red"}))
        await store.post("all", Mail(mail_id="m1", topic="message", body=b"hello"))
        await store.read_draft("all", keep_for=timedelta(minutes=1))
        await store.put_draft(claim, b"text")
        assert await store.read_draft("all") == b"text"
        await store.append(claim, make_append(1, b"one", rewrite=True))
        await store.purge()
        await store.remove("all", claim=claim)
        assert "all" not in await list_run_ids(store)
        await store.deregister_worker(worker)


async def test_a_worker_uses_the_tables_of_batteries(roles: Roles) -> None:
    for schema in BATTERIES:
        tables = PostgresTables(roles.worker)
        await tables.open(schema)
        await tables.close()
    ledger = Ledger(PostgresTables(roles.worker))
    await ledger.open()
    now, spend = datetime.now(UTC), Spend(tokens=5)
    await ledger.commit("r1", ["team"], spend, now)
    assert (await ledger.spent("team", now - timedelta(hours=1))).tokens == 5
    await ledger.close()


def test_a_worker_may_write_every_table_but_the_versions(roles: Roles) -> None:
    for table in _list_tables(roles):
        rights = _find_rights(roles.worker, table)
        versions = table in ("schema_version", "battery")
        assert rights == (["SELECT"] if versions else ["SELECT", "INSERT", "UPDATE", "DELETE"]), table


def test_a_reader_may_read_every_table(roles: Roles) -> None:
    for table in _list_tables(roles):
        assert _find_rights(roles.reader, table) == ["SELECT"], table


def _find_rights(url: str, table: str) -> list[str]:
    rights = ["SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"]
    question = ", ".join(f"has_table_privilege('holdfast.{table}', '{right}')" for right in rights)
    [granted] = asked(url, f"select {question}")
    return [right for right, may in zip(rights, granted, strict=True) if may]


@pytest.mark.parametrize(
    "statement",
    [
        "create table holdfast.more (id integer)",
        "alter table holdfast.run add column more text",
        "drop table holdfast.segment",
        "create index on holdfast.run (reason)",
        "create or replace function holdfast.crc32(p_data bytea) returns bigint language sql as 'select 1::bigint'",
        "drop schema holdfast cascade",
        "create schema another",
    ],
)
@pytest.mark.parametrize("role", ["worker", "reader"])
def test_neither_may_change_the_schema(roles: Roles, role: str, statement: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        asked(getattr(roles, role), statement)


def test_tables_of_a_later_migration_are_covered(roles: Roles) -> None:
    asked(roles.owner, "create table holdfast.later (id bigserial)")
    try:
        asked(roles.worker, "insert into holdfast.later default values")
        assert asked(roles.reader, "select id from holdfast.later") == [(1,)]
        with pytest.raises(InsufficientPrivilege):
            asked(roles.reader, "delete from holdfast.later")
    finally:
        asked(roles.owner, "drop table holdfast.later")


@pytest.fixture
async def stored(roles: Roles) -> AsyncIterator[Roles]:
    """A run that the reader finds."""
    async with open_store(roles.worker) as store:
        await store.create(make_run("kept"))
        yield roles
        await store.remove("kept")


async def test_a_reader_finds_and_loads_runs_and_is_notified(stored: Roles, caplog: pytest.LogCaptureFixture) -> None:
    async with fail_after_timeout(), open_store(stored.reader) as store:
        assert "kept" in await list_run_ids(store)
        assert await load_bodies(store, "kept") == [b"begin"]
        assert (await store.list_page()).records
        assert (await store.check_health()).problems == []
        assert (await store.load("kept", after=END)).mail == ()
        await wait_until_listening(store)
    assert caplog.records == []


async def test_a_reader_writes_nothing(stored: Roles) -> None:
    async with open_store(stored.reader) as store:
        for write in (
            store.create(make_run("new")),
            store.post("kept", Mail(mail_id="m1", topic="message", body=b"hello")),
            store.claim("kept", "w1"),
            store.request_cancel("kept"),
            store.remove("kept"),
            store.read_draft("kept", keep_for=timedelta(minutes=1)),
        ):
            with pytest.raises(StorePermissionError):
                await write
        with pytest.raises(StorePermissionError):
            await add_worker(store)
    assert asked(stored.owner, "select status from holdfast.run where run_id = 'kept'") == [("queued",)]
    with psycopg.connect(stored.reader) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute("select holdfast.submit('clerk', 'Ship.')")
