"""The database file of the store: its SQL, its schema, its connections."""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from importlib.resources import files
from operator import attrgetter
from os import PathLike

import apsw

from holdfast.checkpoint.errors import (
    SchemaTooNew,
    StoreError,
    StoreFull,
    StorePermissionError,
    StoreReplaced,
    StoreUnavailable,
)
from holdfast.checkpoint.store import Durability, StoreHealth
from holdfast.db.sqlite_file import APPLICATION_ID, ErrorTypes, SqliteFile, set_synchronous, transaction

#: Journals of runs that execute at the same time share pages, so one load caches pages of the next.
_WRITER_CACHE_BYTES, _READER_CACHE_BYTES = 32 * 2**20, 16 * 2**20
#: The WAL file is truncated to this length when it starts over.
_WAL_SIZE_LIMIT = 16 * 2**20

_ERRORS = ErrorTypes(
    full=StoreFull,
    denied=StorePermissionError,
    locked=StoreUnavailable,
    io=StoreError,
    replaced=StoreReplaced,
    other=StoreError,
)

_SQL_FOLDER = files("holdfast.stores.sqlite") / "sql"
_SECTION = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def _load_sections() -> dict[str, str]:
    text = (_SQL_FOLDER / "statements.sql").read_text(encoding="utf-8")
    _, *parts = _SECTION.split(text)
    sections = {name: _strip_comments(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}
    return {name: body.replace("{record_columns}", sections["record_columns"]) for name, body in sections.items()}


def _strip_comments(body: str) -> str:
    lines = (line.strip() for line in body.splitlines())
    return " ".join(line for line in lines if line and not line.startswith("--"))


def statement(name: str) -> str:
    """Return the statement under this name in `statements.sql`."""
    return _load_sections()[name]


def load_migrations() -> list[str]:
    """Return the migration scripts in order. Script n leads to schema version n."""
    scripts = [file for file in (_SQL_FOLDER / "migrations").iterdir() if file.name.endswith(".sql")]
    return [file.read_text(encoding="utf-8") for file in sorted(scripts, key=attrgetter("name"))]


class Database(SqliteFile):
    """The file of the store: migrates its schema, opens its connections. Knows no runs."""

    def __init__(
        self, path: str | PathLike[str], *, durability: Durability, timeout: timedelta, vfs: str | None = None
    ) -> None:
        super().__init__(path, timeout=timeout, errors=_ERRORS, vfs=vfs)
        self.syncs_each_commit = durability == "full"

    def prepare(self) -> None:
        """Create the folder, the file and the schema, or migrate an older schema.

        Raises:
            SchemaTooNew: a newer holdfast wrote the file. Nothing was changed.
            StoreError: the file is not a database, or belongs to another program. Nothing was changed.
        """
        self.unwatch_files()
        self.create()
        connection = self.connect()
        try:
            with self.mapped_errors(connection):
                self._migrate(connection)
        finally:
            connection.close()

    def read_version(self) -> StoreHealth:
        """Read the version of the schema; zero if there is no file. Changes nothing.

        Raises:
            SchemaTooNew: a newer holdfast wrote the file.
            StoreError: the file is not a database, or belongs to another program.
        """
        known = len(load_migrations())
        if not self.path.exists():
            return StoreHealth(version=0, known_version=known)
        connection = self.connect()
        try:
            with self.mapped_errors(connection):
                return StoreHealth(version=self._check_version(connection, known), known_version=known)
        finally:
            connection.close()

    def connect_writer(self, may_wait: Callable[[], bool]) -> apsw.Connection:
        """Open a connection that commits with the durability of this store. It never checkpoints the WAL by itself.

        Args:
            may_wait: asked before each wait for a lock; False ends the wait.
        """
        connection = self.connect(may_wait)
        with self.mapped_errors(connection):
            connection.pragma("cache_size", -_WRITER_CACHE_BYTES // 1024)
            connection.pragma("journal_size_limit", _WAL_SIZE_LIMIT)
            connection.wal_autocheckpoint(0)
            connection.pragma("temp_store", 2)  # in memory
            connection.execute(statement("prepare_bulk_appends"))
            connection.execute(statement("prepare_gc"))
            set_synchronous(connection, self.syncs_each_commit)
        return connection

    def connect_reader(self) -> apsw.Connection:
        """Open a connection that can only read."""
        connection = self.connect()
        with self.mapped_errors(connection):
            connection.pragma("cache_size", -_READER_CACHE_BYTES // 1024)
            connection.pragma("query_only", True)
        return connection

    def _migrate(self, connection: apsw.Connection) -> None:
        if connection.readonly("main"):
            # Checked before the first read, which would create WAL files that cannot be written either.
            raise StorePermissionError(
                f"{self.path} is read-only: check its permissions, and whether its disk is mounted read-only"
            )
        scripts = load_migrations()
        # Checked before any write: a file of another program, or a damaged one, stays as it is.
        self.refuse_truncated(connection)
        found = self._check_version(connection, len(scripts))
        self.set_format(connection)
        if found == len(scripts):
            return
        with transaction(connection):
            found = self._check_version(connection, len(scripts))
            for version, script in enumerate(scripts[found:], found + 1):
                connection.execute(script)
                connection.pragma("user_version", version)
            connection.pragma("application_id", APPLICATION_ID)

    def _check_version(self, connection: apsw.Connection, known: int) -> int:
        # In this order: another process may be creating the schema, and commits all of it at once.
        self.refuse_foreign(connection)
        found: int = connection.pragma("user_version")
        if found > known:
            raise SchemaTooNew(str(self.path), found, known)
        return found
