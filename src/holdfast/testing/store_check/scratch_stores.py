"""The place of a check: a schema or a folder of its own, emptied after each test and removed at the end."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.store import RunStore
from holdfast.clock import SYSTEM_CLOCK
from holdfast.db.urls import POSTGRES_SCHEMES, parse_sqlite_path, redact_url
from holdfast.ids import make_id
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.store_processes.store_process import format_connection_name

if TYPE_CHECKING:
    import psycopg

#: How the processes of a check learn where it is. Not by arguments: every user of the host can read those.
URL_VARIABLE = "HOLDFAST_CHECK_URL"
PLACE_VARIABLE = "HOLDFAST_CHECK_PLACE"

_PREFIX = "holdfast_check_"
#: How long one statement of the check itself may take.
_STATEMENT_TIMEOUT_S = 60
#: A pooled session that has been idle this long executes nothing for a process that was killed before.
_IDLE_S = 0.25

#: Neither table has rows of runs: without theirs, tables that exist would be created again.
_FILLED_TABLES = """
    select format('%%I.%%I', nspname, relname) from pg_catalog.pg_class
    join pg_catalog.pg_namespace on pg_namespace.oid = relnamespace
    where nspname = %s and relkind = 'r' and pg_relation_size(pg_class.oid) > 0
        and relname not in ('schema_version', 'battery')
"""


class ScratchSchema:
    """A schema in a PostgreSQL database."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name

    @classmethod
    def make(cls, url: str) -> "ScratchSchema":
        """Choose a name. Connects to nothing.

        Raises:
            StoreError: the driver is not installed, or the URL is not valid.
        """
        from holdfast.stores.postgres import PostgresStore

        schema = cls(url, _PREFIX + make_id(10).lower())
        PostgresStore(url, schema=schema.name)
        return schema

    def describe(self) -> str:
        return f"schema {self.name} of {redact_url(self.url)}"

    def make_environment(self) -> dict[str, str]:
        return {URL_VARIABLE: self.url, PLACE_VARIABLE: self.name}

    def make_location(self) -> str:
        return self.name

    def build(self, location: str) -> RunStore:
        from holdfast.stores.postgres import PostgresStore

        return PostgresStore(self.url, schema=location)

    def clear(self) -> None:
        """Delete all runs."""
        with self.connect() as connection:
            if tables := [name for (name,) in connection.execute(_FILLED_TABLES, (self.name,)).fetchall()]:
                connection.execute(f"truncate {', '.join(tables)} cascade".encode())

    def damage(self, location: str, run_id: str, body: bytes) -> None:
        """Flip one bit of a stored entry."""
        index = "position(%(body)s in body) + 4"
        with self.connect() as connection:
            done = connection.execute(
                f'update "{location}".segment set body = set_byte(body, {index}, get_byte(body, {index}) # 1)'
                f' from "{location}".run where run.id = segment.run and run.run_id = %(run_id)s'
                " and position(%(body)s in body) > 0".encode(),
                {"run_id": run_id, "body": body},
            )
            assert done.rowcount == 1, f"run {run_id} has no such entry"

    def wait_until_idle(self, pid: int) -> None:
        """Wait until the server has finished the requests of a killed process.

        A server ends the sessions of a process that is gone. A pooler keeps them, so there they have to be idle.
        """
        # A pooler may run this query in a session that still has the name of the process.
        sessions = (
            "select count(*) from pg_catalog.pg_stat_activity where application_name = %s and pid <> pg_backend_pid()"
        )
        with self.connect() as connection:
            if connection.execute("select pg_backend_pid()").fetchone() != (connection.info.backend_pid,):
                sessions += f" and (state <> 'idle' or clock_timestamp() - state_change < interval '{_IDLE_S} s')"
            connection.commit()
            connection.autocommit = True
            deadline = SYSTEM_CLOCK.monotonic() + _STATEMENT_TIMEOUT_S
            while connection.execute(sessions.encode(), (format_connection_name(pid),)).fetchone() != (0,):
                assert SYSTEM_CLOCK.monotonic() < deadline, "the server still serves a process that has ended"

    def remove(self) -> None:
        """Drop the schema.

        Raises:
            StoreError: it could not be dropped, and is still there.
        """
        import psycopg

        try:
            with self.connect() as connection:
                connection.execute(f'drop schema if exists "{self.name}" cascade'.encode())
        except psycopg.Error as exc:
            statement = f"drop schema {self.name} cascade"
            raise StoreError(f"schema {self.name} could not be dropped: execute `{statement}` ({exc})") from exc

    @contextlib.contextmanager
    def connect(self) -> "Iterator[psycopg.Connection]":
        """Open a connection whose statements are one transaction. Sets nothing in the session: a pooler shares it."""
        import psycopg
        from psycopg.conninfo import make_conninfo

        from holdfast.db.postgres_url import parse_postgres_url

        conninfo = make_conninfo("", **{"connect_timeout": "10", **parse_postgres_url(self.url)})
        with psycopg.connect(conninfo, prepare_threshold=None) as connection:
            connection.execute(f"set local statement_timeout = '{_STATEMENT_TIMEOUT_S}s'".encode())
            yield connection


class ScratchFolder:
    """A folder beside a SQLite file, with a file for each test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, url: str) -> "ScratchFolder":
        """Choose a name. Creates nothing yet.

        Raises:
            StoreError: the URL has no path, or its folder does not exist.
        """
        try:
            parent = Path(parse_sqlite_path(url)).parent
        except ValueError as exc:
            raise StoreError(str(exc)) from None
        if not parent.is_dir():
            raise StoreError(f"there is no folder {parent}: create it, or name a file in another one")
        return cls(parent / f".{_PREFIX}{make_id(10).lower()}")

    def describe(self) -> str:
        return f"folder {self.folder}"

    def make_environment(self) -> dict[str, str]:
        return {URL_VARIABLE: "sqlite:", PLACE_VARIABLE: str(self.folder)}

    def make_location(self) -> str:
        folder = self.folder / make_id(8)
        try:
            folder.mkdir(mode=0o700, parents=True)
        except OSError as exc:
            raise StoreError(f"no store can be created in {self.folder.parent}: {exc.strerror}") from exc
        return str(folder / "runs.db")

    def build(self, location: str) -> RunStore:
        return SqliteStore(location)

    def clear(self) -> None:
        """Delete the files of the last test."""
        for folder in self.folder.iterdir():
            shutil.rmtree(folder)

    def damage(self, location: str, run_id: str, body: bytes) -> None:
        """Flip one bit of a stored entry."""
        flip_bit(Path(location), body)

    def wait_until_idle(self, pid: int) -> None:
        """Return at once: the kernel has dropped the locks of a killed process."""

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


Scratch = ScratchSchema | ScratchFolder


def make_scratch(url: str) -> Scratch:
    """Return a place for stores in the database that `url` names.

    Raises:
        StoreError: it names neither a PostgreSQL database nor a SQLite file.
    """
    scheme = url.partition(":")[0]
    if scheme in POSTGRES_SCHEMES:
        return ScratchSchema.make(url)
    if scheme == "sqlite":
        return ScratchFolder.make(url)
    raise StoreError(f"{redact_url(url)!r} cannot be checked: write postgresql://HOST/DATABASE or sqlite:PATH")


def find_scratch(environment: Mapping[str, str] = os.environ) -> Scratch:
    """Return the place that another process has made."""
    url, place = environment[URL_VARIABLE], environment[PLACE_VARIABLE]
    return ScratchFolder(Path(place)) if url == "sqlite:" else ScratchSchema(url, place)


def build_scratch_store(location: str) -> RunStore:
    """Return the store of a test, not open. Child processes of the suite import this function."""
    return find_scratch().build(location)


def flip_bit(path: Path, content: bytes) -> None:
    """Flip one bit of `content` in the file."""
    stored = path.read_bytes()
    assert content in stored, f"{path} does not contain {content!r}"
    damaged = bytearray(content)
    damaged[5] ^= 1
    path.write_bytes(stored.replace(content, damaged))
