"""The schema: created, migrated by several processes at once, refused."""

import asyncio
import re
import subprocess
import sys
import traceback
import uuid
from collections.abc import Iterator
from datetime import timedelta
from importlib import resources
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql
from tests.postgres_server import fresh_database, shared_server
from tests.stores.postgres_support import LONG, fail_after_timeout, open_store, wait_until
from tests.stores.version_fixture import describe, read_expected, restore_postgres

from holdfast.checkpoint.errors import RunNotFound, SchemaTooNew, StoreError, StorePermissionError
from holdfast.checkpoint.record import RunStatus
from holdfast.stores.from_url import store_from_url
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.database import SqlFiles
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    list_run_ids,
    load_bodies,
    load_contents,
    make_append,
    make_run,
)

VERSION = len(SqlFiles("holdfast").migrations)


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database() as url:
        yield url


def asked(url: str, question: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(question.encode())
        return cursor.fetchall() if cursor.description else []


def as_user(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{name}@{parts.netloc.rpartition('@')[2]}"))


@pytest.fixture
def stranger(url: str) -> Iterator[str]:
    """A user of the server who may do nothing; the URL of the database for him."""
    name = f"holdfast_stranger_{uuid.uuid4().hex}"
    asked(url, f"create role {name} login")
    yield as_user(url, name)
    asked(url, f"drop owned by {name}; drop role {name}")


async def test_many_stores_that_are_opened_at_once_find_one_schema(url: str) -> None:
    stores = [PostgresStore(url) for _ in range(8)]
    try:
        async with fail_after_timeout():
            await asyncio.gather(*(store.open() for store in stores))
            await asyncio.gather(*(store.create(make_run(f"run-{n}")) for n, store in enumerate(stores)))
        assert len(await list_run_ids(stores[0])) == 8
        assert asked(url, "select version from holdfast.schema_version") == [(n,) for n in range(1, VERSION + 1)]
    finally:
        await asyncio.gather(*(store.close() for store in stores))


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_stores_agree_where_transactions_are_more_isolated_than_usual(url: str, isolation: str) -> None:
    """Which a database may be told to make all of them."""
    name = urlsplit(url).path.removeprefix("/")
    asked(shared_server().url(), f"alter database \"{name}\" set default_transaction_isolation = '{isolation}'")
    stores = [PostgresStore(url) for _ in range(8)]
    try:
        async with fail_after_timeout():
            await asyncio.gather(*(store.open() for store in stores))
            await stores[0].create(make_run())
            claims = [store.claim("run-1", await add_worker(store)) for store in stores]
            results = await asyncio.gather(*claims, return_exceptions=True)
        assert sorted(type(result).__name__ for result in results) == ["Claim", *["RunBusy"] * 7]
        assert asked(url, "select version from holdfast.schema_version") == [(n,) for n in range(1, VERSION + 1)]
    finally:
        await asyncio.gather(*(store.close() for store in stores))


async def test_a_schema_that_a_newer_holdfast_wrote_is_refused_and_left_alone(url: str) -> None:
    async with open_store(url) as store:
        await store.create(make_run())
    asked(url, f"insert into holdfast.schema_version values ({VERSION + 1})")
    with pytest.raises(SchemaTooNew) as refused:
        await PostgresStore(url).open()
    assert (refused.value.found, refused.value.known) == (VERSION + 1, VERSION)
    assert asked(url, "select run_id from holdfast.run") == [("run-1",)]


@pytest.mark.parametrize("version", range(1, VERSION + 1))
async def test_a_schema_of_every_earlier_version_opens_and_continues(url: str, version: int) -> None:
    """How what was kept is made: tests/stores/version_fixture.py."""
    restore_postgres(url, version)
    async with open_store(url) as store:
        assert await describe(store) == read_expected(version)
        assert asked(url, "select max(version) from holdfast.schema_version") == [(VERSION,)]
        worker = await add_worker(store)
        for run_id in reversed(await list_run_ids(store)):
            record, journal = await load_contents(store, run_id)
            claim = await store.claim(run_id, worker, statuses=frozenset(RunStatus))
            assert claim.token > record.token
            new = [b"%d" % n * 3000 for n in range(3)]
            for seq, body in enumerate(new, record.next_seq):
                await store.append(claim, make_append(seq, body))
            assert (await load_bodies(store, run_id))[len(journal) :] == new
            await store.remove(run_id, claim=claim)
        assert await list_run_ids(store) == []
        await wait_until(lambda: _nothing_left(url))


async def _nothing_left(url: str) -> bool:
    return asked(url, "select count(*) from holdfast.segment") == [(0,)]


def test_migrations_are_numbered_without_a_gap() -> None:
    folder = resources.files("holdfast.stores.postgres") / "sql" / "migrations"
    numbers = sorted(int(file.name.partition("_")[0]) for file in folder.iterdir())
    assert numbers == list(range(1, VERSION + 1))


async def test_schemas_of_one_database_know_nothing_of_each_other(url: str) -> None:
    async with open_store(url) as one, open_store(url, schema="another") as two, fail_after_timeout():
        claim = await create_claimed(one, await add_worker(one))
        await one.append(claim, make_append(1, b"more"))
        with pytest.raises(RunNotFound):
            await two.load("run-1")
        await create_claimed(two, await add_worker(two), make_run("run-1", b"of another"))
        await two.remove("run-1", claim=await two.claim("run-1", await add_worker(two), steal=True))
        assert await load_bodies(one) == [b"begin", b"more"]
        await _quiet(two)
        sign = asyncio.ensure_future(two.wait_for_change(timedelta(seconds=LONG)))
        await one.create(make_run("run-2"))
        assert not (await asyncio.wait([sign], timeout=0.2))[0]
        await two.create(make_run("run-2"))
        assert await sign


async def _quiet(store: PostgresStore) -> None:
    while await store.wait_for_change(timedelta(milliseconds=50)):
        pass


@pytest.mark.parametrize("schema", ["", "Upper", 'quote"d', "with space", "1st", "x" * 49, "semi;colon", "é"])
def test_a_name_that_is_no_schema_is_refused(schema: str) -> None:
    with pytest.raises(StoreError, match="schema"):
        PostgresStore("postgresql://localhost/db", schema=schema)


async def test_a_reserved_word_may_be_a_schema(url: str) -> None:
    async with open_store(url, schema="user") as store:
        await store.create(make_run())
        assert await load_bodies(store) == [b"begin"]


async def test_who_may_not_create_a_schema_may_use_one_that_is_there(url: str, stranger: str) -> None:
    with pytest.raises(StorePermissionError):
        await PostgresStore(stranger).open()
    async with open_store(url):
        pass
    role = urlsplit(stranger).username
    asked(url, f"grant usage on schema holdfast to {role}; grant all on all tables in schema holdfast to {role}")
    asked(url, f"grant all on all sequences in schema holdfast to {role}")
    async with open_store(stranger) as store:
        claim = await create_claimed(store, await add_worker(store))
        await store.append(claim, make_append(1, b"more"))
        assert await load_bodies(store) == [b"begin", b"more"]


async def test_who_may_not_read_the_tables_is_denied(url: str, stranger: str) -> None:
    async with open_store(url):
        pass
    asked(url, f"grant usage on schema holdfast to {urlsplit(stranger).username}")
    with pytest.raises(StorePermissionError):
        await PostgresStore(stranger).open()


async def test_what_waiting_does_not_mend_is_not_waited_for() -> None:
    for url, error in (
        (shared_server().url("holdfast_never_was"), StoreError),
        (as_user(shared_server().url(), "holdfast_nobody"), StorePermissionError),
    ):
        with pytest.raises(StoreError, match="does not exist") as refused:
            await PostgresStore(url).open()
        assert type(refused.value) is error


async def test_a_database_that_does_not_store_utf8_is_refused() -> None:
    name = f"holdfast_test_latin_{uuid.uuid4().hex}"
    server = shared_server().url()
    asked(server, f"create database {name} encoding 'LATIN1' locale 'C' template template0")
    try:
        with pytest.raises(StoreError, match="UTF"):
            await PostgresStore(shared_server().url(name)).open()
    finally:
        asked(server, f"drop database {name}")


def test_a_url_that_names_no_database_is_refused() -> None:
    with pytest.raises(StoreError, match="URL"):
        PostgresStore("postgresql://localhost/db?nonsense=1")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@localhost/db?nonsense=1",
        "postgresql://me:%secret@localhost/db",
        "postgresql://me:secret@[localhost/db",
        "postgresql://localhost/db?password%secret",
        "postgresql+psycopg://me:secret@localhost/db",
        "host=localhost password=secret",
        "host=localhost password=a:secret",
    ],
)
def test_the_password_is_in_no_message(url: str) -> None:
    with pytest.raises(StoreError) as refused:
        store_from_url(url)
    assert "secret" not in "".join(traceback.format_exception(refused.value, limit=0))


def test_without_its_driver_the_store_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from holdfast.checkpoint.errors import StoreError\n"
        "from holdfast.stores.from_url import store_from_url\n"
        "try: store_from_url('postgresql://localhost/db')\n"
        "except StoreError as exc: print(exc)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert re.search(r"pip install 'holdfast\[postgres\]'", said)


async def test_rows_of_processes_that_are_long_gone_are_tidied_away(url: str) -> None:
    async with open_store(url) as store:
        await add_worker(store)
        await store.create(make_run())
        asked(url, "update holdfast.worker set alive_until = now() - interval '8 days'")
        asked(url, "update holdfast.writer set used_at = now() - interval '8 days'")
        async with open_store(url) as second:
            assert asked(url, "select 1 from holdfast.worker") == []
            assert asked(url, "select 1 from holdfast.writer") == []
            await store.create(make_run("run-2"))
            assert await list_run_ids(second) == ["run-1", "run-2"]


async def test_the_health_check_warns_of_settings_that_hurt(url: str) -> None:
    unsynced = ["fsync"] if asked(url, "show fsync") == [("off",)] else []
    async with open_store(url) as store:
        assert [warning.partition(" is ")[0] for warning in (await store.check_health()).warnings] == unsynced
    name = urlsplit(url).path.removeprefix("/")
    for setting in ("synchronous_commit = off", "statement_timeout = '2s'", "idle_session_timeout = '5s'"):
        asked(shared_server().url(), f'alter database "{name}" set {setting}')
    async with open_store(url) as store:
        warnings = (await store.check_health()).warnings
    assert [warning.partition(" is ")[0] for warning in warnings] == [
        *unsynced,
        "synchronous_commit",
        "statement_timeout",
        "idle_session_timeout",
    ]


async def test_the_schema_is_made_by_the_sql_files_alone(url: str) -> None:
    """They can be read, and run by hand: they are valid as they are, for the schema they are written for."""
    folder = resources.files("holdfast.stores.postgres") / "sql"
    files = [file for part in ("migrations", "functions") for file in (folder / part).iterdir()]
    with psycopg.connect(url) as connection:
        connection.execute("create schema holdfast; set check_function_bodies = off")
        for file in sorted(files, key=lambda file: (file.name[0] != "0", file.name)):
            connection.execute(sql.SQL(file.read_text(encoding="utf-8")))
        count = connection.execute("select count(*) from pg_proc where pronamespace = 'holdfast'::regnamespace")
        assert count.fetchone() != (0,)
