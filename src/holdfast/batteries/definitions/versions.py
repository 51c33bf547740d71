"""Versions of definitions and their tables."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.core.errors import RunInterrupted
from holdfast.db.tables import BatteryTables, Cursor, Schema, Tables
from holdfast.root_error import HoldfastError


class DefinitionStoreError(HoldfastError):
    """A stored definition could not be read or written.

    What to do: The message has the database's error. The same call may be repeated.
    """


class DefinitionNotFound(DefinitionStoreError):
    """There is no such definition or version.

    What to do: Check the name and the version, or store the definition first.
    """

    def __init__(self, kind: str, owner: str, name: str, version: int | None = None) -> None:
        which = "" if version is None else f" version {version}"
        super().__init__(f"no {kind} {owner}/{name}{which}: it was never saved, or it was removed")
        self.kind = kind
        self.owner = owner
        self.name = name
        self.version = version


class DefinitionsUnavailable(DefinitionStoreError, RunInterrupted):
    """The definitions cannot be read. The run is interrupted.

    What to do: Make their database reachable: a worker resumes the run.
    """

    retry_after: timedelta = timedelta(seconds=5)


class MalformedDefinition(DefinitionStoreError):
    """A definition has invalid front matter, an invalid field or an invalid name.

    What to do: Correct the definition as the message says, and store it again.
    """


#: The reader that stands for all owners.
ALL_READERS = "*"


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version of one definition. Immutable once stored."""

    owner: str
    name: str
    #: Counts from 1. Never reused, not even after the definition was removed.
    number: int
    at: datetime
    #: JSON.
    body: bytes


SCHEMA = Schema(
    name="definitions",
    migrations=[
        [
            "CREATE TABLE definition (kind TEXT, owner TEXT, name TEXT, number BIGINT, at DOUBLE PRECISION NOT NULL, "
            "body TEXT NOT NULL, PRIMARY KEY (kind, owner, name, number))",
            "CREATE TABLE definition_reader (kind TEXT, owner TEXT, name TEXT, reader TEXT, "
            "PRIMARY KEY (kind, owner, name, reader))",
            # The last number of each removed definition.
            "CREATE TABLE definition_removed (kind TEXT, owner TEXT, name TEXT, number BIGINT NOT NULL, "
            "PRIMARY KEY (kind, owner, name))",
        ],
    ],
)

_COLUMNS = "owner, name, number, at, body"
_SELECT_LAST_NUMBER = """
    SELECT COALESCE(MAX(number), 0) FROM (
        SELECT number FROM definition WHERE kind = ? AND owner = ? AND name = ?
        UNION ALL SELECT number FROM definition_removed WHERE kind = ? AND owner = ? AND name = ?
    ) AS numbers
"""
_SELECT_VERSIONS = f"SELECT {_COLUMNS} FROM definition WHERE kind = ? AND owner = ? AND name = ?"
_SELECT_NEWEST = f"""
    SELECT {_COLUMNS} FROM definition WHERE kind = ? AND number = (
        SELECT MAX(number) FROM definition AS d
        WHERE d.kind = definition.kind AND d.owner = definition.owner AND d.name = definition.name
    )
"""
_AND_READABLE = """
    AND (owner = ? OR EXISTS (
        SELECT 1 FROM definition_reader AS r
        WHERE r.kind = definition.kind AND r.owner = definition.owner AND r.name = definition.name
        AND r.reader IN (?, ?)
    ))
"""


class VersionTable(BatteryTables):
    """Keeps every version of every definition of one kind. Any number of processes may share it."""

    schema = SCHEMA

    def __init__(self, kind: str, tables: Tables | None = None) -> None:
        super().__init__(tables)
        self._kind = kind

    async def save(self, owner: str, name: str, body: bytes, now: datetime) -> Version:
        """Store a new version under the next number. Concurrent saves get different numbers."""

        async def work(cursor: Cursor) -> int:
            rows = await cursor.execute(_SELECT_LAST_NUMBER, (self._kind, owner, name) * 2)
            number = int(rows[0][0]) + 1
            await cursor.execute(
                "INSERT INTO definition VALUES (?, ?, ?, ?, ?, ?)",
                (self._kind, owner, name, number, now.timestamp(), body.decode()),
            )
            return number

        number = await self.transaction(work, lock=[self._lock_name(owner, name)])
        return Version(owner=owner, name=name, number=number, at=now, body=body)

    async def get(self, owner: str, name: str, number: int | None = None) -> Version:
        """Return that version, or the newest.

        Raises:
            DefinitionNotFound: there is none.
        """
        if number is None:
            versions = await self._select(f"{_SELECT_VERSIONS} ORDER BY number DESC LIMIT 1", self._kind, owner, name)
        else:
            versions = await self._select(f"{_SELECT_VERSIONS} AND number = ?", self._kind, owner, name, number)
        if not versions:
            raise DefinitionNotFound(self._kind, owner, name, number)
        return versions[0]

    async def newest(self, reader: str | None = None) -> Sequence[Version]:
        """Return the newest version of each definition; with a reader, only of those it owns or may read."""
        if reader is None:
            return await self._select(f"{_SELECT_NEWEST} ORDER BY owner, name", self._kind)
        sql = f"{_SELECT_NEWEST} {_AND_READABLE} ORDER BY owner, name"
        return await self._select(sql, self._kind, reader, reader, ALL_READERS)

    async def history(self, owner: str, name: str) -> Sequence[Version]:
        """Return every version, oldest first.

        Raises:
            DefinitionNotFound: there is none.
        """
        versions = await self._select(f"{_SELECT_VERSIONS} ORDER BY number", self._kind, owner, name)
        if not versions:
            raise DefinitionNotFound(self._kind, owner, name)
        return versions

    async def share(self, owner: str, name: str, reader: str) -> None:
        """Share a definition with `reader`, or with `ALL_READERS`.

        Raises:
            DefinitionNotFound: there is none.
        """
        await self.get(owner, name)

        async def work(cursor: Cursor) -> None:
            sql = "INSERT INTO definition_reader VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
            await cursor.execute(sql, (self._kind, owner, name, reader))

        await self.transaction(work)

    async def remove(self, owner: str, name: str) -> None:
        """Delete all versions. The next save continues their numbers.

        Raises:
            DefinitionNotFound: there is none.
        """
        key = (self._kind, owner, name)

        async def work(cursor: Cursor) -> bool:
            await cursor.execute("DELETE FROM definition_reader WHERE kind = ? AND owner = ? AND name = ?", key)
            sql = "DELETE FROM definition WHERE kind = ? AND owner = ? AND name = ? RETURNING number"
            numbers = [number for (number,) in await cursor.execute(sql, key)]
            if numbers:
                await cursor.execute(
                    "INSERT INTO definition_removed VALUES (?, ?, ?, ?) "
                    "ON CONFLICT (kind, owner, name) DO UPDATE SET number = excluded.number",
                    (*key, max(numbers)),
                )
            return bool(numbers)

        if not await self.transaction(work, lock=[self._lock_name(owner, name)]):
            raise DefinitionNotFound(*key)

    async def _select(self, sql: str, *parameters: Any) -> list[Version]:
        return [_parse_version(row) for row in await self.select(sql, *parameters)]

    def _lock_name(self, owner: str, name: str) -> str:
        return f"{self._kind} {owner} {name}"


def _parse_version(row: Sequence[Any]) -> Version:
    owner, name, number, at, body = row
    return Version(owner=owner, name=name, number=number, at=datetime.fromtimestamp(at, UTC), body=body.encode())
