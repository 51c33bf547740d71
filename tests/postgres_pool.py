"""PostgreSQL databases that contain the empty tables of a store, which tests use one after another.

To truncate the tables that a test filled takes a third of the time that it takes to create a database and drop it.
"""

import asyncio
import atexit
import contextlib
import queue
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psycopg
from tests.postgres_server import LocalServer, fresh_database

from holdfast.stores.postgres import PostgresStore

#: The tables and sequences with their sizes. Truncating leaves a table with the size zero, deleting its rows does not.
_RELATIONS = """
    select format('%I.%I', nspname, relname), relkind = 'r' and pg_relation_size(pg_class.oid) > 0
    from pg_class join pg_namespace on pg_namespace.oid = relnamespace
    where relkind in ('r', 'S', 'v', 'm', 'p') and nspname !~ '^(pg_|information_schema)'
"""
_OTHERS = """
    select count(*) from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
"""
_SETTINGS = """
    select count(*) from pg_db_role_setting join pg_database on pg_database.oid = setdatabase
    where datname = current_database()
"""
#: Seconds in which connections that were closed end at the server.
_LINGER = 1.0


class DatabasePool:
    """Databases of a server, by default of the shared one. Threads may share it."""

    def __init__(self, server: LocalServer | None = None) -> None:
        self._server = server
        self._free: queue.SimpleQueue[tuple[str, contextlib.ExitStack]] = queue.SimpleQueue()
        #: By name. The truth is whether a table contains rows when no run was ever stored.
        self._relations: dict[str, bool] = {}
        self._template = ""
        self._template_database = contextlib.ExitStack()

    @contextlib.contextmanager
    def open_empty(self) -> Iterator[str]:
        """The URL of a database with empty tables. One that the test left otherwise is not used again."""
        try:
            url, database = self._free.get_nowait()
        except queue.Empty:
            database = contextlib.ExitStack()
            url = database.enter_context(self.open_new())
        try:
            yield url
        finally:
            if self._clear(url):
                self._free.put((url, database))
            else:
                database.close()

    def open_new(self) -> contextlib.AbstractContextManager[str]:
        """The URL of a database with empty tables that no test used before, and none uses after this one."""
        return fresh_database(self._server, template=self._make_template())

    def _clear(self, url: str) -> bool:
        """Empty the tables. Return whether the database can be used again."""
        with psycopg.connect(url, autocommit=True) as connection:
            relations = _read_relations(connection)
            if relations.keys() != self._relations.keys() or not _is_unused(connection):
                return False
            filled = [name for name, has_rows in relations.items() if has_rows and not self._relations[name]]
            if filled:
                connection.execute(f"truncate {', '.join(filled)} restart identity cascade".encode())
            connection.execute("alter sequence holdfast.token restart")  # no table owns it
            return True

    def _make_template(self) -> str:
        """A database in which a store has made its tables. To copy it takes less time than to make them again."""
        if not self._template:
            url = self._template_database.enter_context(fresh_database(self._server))
            atexit.register(self.close)  # the server was started, so this comes before its removal
            with ThreadPoolExecutor(1) as thread:  # this one may have an event loop
                thread.submit(asyncio.run, _open_and_close(url)).result()
            with psycopg.connect(url) as connection:
                self._relations = _read_relations(connection)
            self._template = urlsplit(url).path.removeprefix("/")
        return self._template

    def close(self) -> None:
        """Drop the databases. Call it before the server is removed."""
        atexit.unregister(self.close)
        while not self._free.empty():
            self._free.get()[1].close()
        self._template_database.close()


def _read_relations(connection: "psycopg.Connection[tuple[str, bool]]") -> dict[str, bool]:
    return dict(connection.execute(_RELATIONS).fetchall())


def _is_unused(connection: "psycopg.Connection[tuple[str, bool]]") -> bool:
    """Return whether no other connection is left, after those that just ended, and no setting was changed."""
    end = time.monotonic() + _LINGER
    while _count(connection, _OTHERS):
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return not _count(connection, _SETTINGS)


def _count(connection: "psycopg.Connection[tuple[str, bool]]", query: str) -> int:
    return connection.cursor(row_factory=psycopg.rows.scalar_row).execute(query.encode()).fetchone() or 0


async def _open_and_close(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    await store.close()


_POOL = DatabasePool()


def open_empty_postgres() -> contextlib.AbstractContextManager[str]:
    """The URL of an empty store in a database that no other test uses at the same time."""
    return _POOL.open_empty()


def open_new_postgres() -> contextlib.AbstractContextManager[str]:
    """The URL of an empty store in a database of its own, for tests that change its tables or measure them."""
    return _POOL.open_new()
