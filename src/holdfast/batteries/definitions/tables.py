"""Definitions in the database of the checkpoints."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.batteries.definitions.store import EVERYBODY, DefinitionNotFound, Version
from holdfast.db.tables import Cursor, Schema, Tables

SCHEMA = Schema(
    name="definitions",
    migrations=[
        [
            "CREATE TABLE definition (kind TEXT, owner TEXT, name TEXT, number BIGINT, at DOUBLE PRECISION NOT NULL, "
            "body TEXT NOT NULL, PRIMARY KEY (kind, owner, name, number))",
            "CREATE TABLE definition_reader (kind TEXT, owner TEXT, name TEXT, reader TEXT, "
            "PRIMARY KEY (kind, owner, name, reader))",
        ],
        [
            # The last number of what was removed.
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


class TablesDefinitions:
    """A `DefinitionStore` that survives, and that any number of processes share."""

    def __init__(self, tables: Tables, kind: str) -> None:
        self._tables, self._kind = tables, kind

    async def open(self) -> None:
        """Make the tables ready."""
        await self._tables.open(SCHEMA)

    async def close(self) -> None:
        """Let go of the database."""
        await self._tables.close()

    async def save(self, owner: str, name: str, body: bytes, now: datetime) -> Version:
        """Keep a new version, with the next number."""

        async def work(cursor: Cursor) -> int:
            rows = await cursor.execute(_SELECT_LAST_NUMBER, (self._kind, owner, name) * 2)
            number = int(rows[0][0]) + 1
            await cursor.execute(
                "INSERT INTO definition VALUES (?, ?, ?, ?, ?, ?)",
                (self._kind, owner, name, number, now.timestamp(), body.decode()),
            )
            return number

        number = await self._tables.transaction(work, lock=[self._lock_name(owner, name)])
        return Version(owner=owner, name=name, number=number, at=now, body=body)

    async def get(self, owner: str, name: str, number: int | None = None) -> Version:
        """That version, or the newest."""
        sql = f"SELECT {_COLUMNS} FROM definition WHERE kind = ? AND owner = ? AND name = ?"
        parameters: list[Any] = [self._kind, owner, name]
        if number is not None:
            sql, parameters = f"{sql} AND number = ?", [*parameters, number]
        rows = await self._tables.read(lambda cursor: cursor.execute(f"{sql} ORDER BY number DESC LIMIT 1", parameters))
        if not rows:
            raise DefinitionNotFound(self._kind, owner, name, number)
        return _parse_version(rows[0])

    async def newest(self, reader: str | None = None) -> Sequence[Version]:
        """The newest version of every definition that `reader` may see."""
        sql, parameters = _SELECT_NEWEST, [self._kind]
        if reader is not None:
            sql, parameters = sql + _AND_READABLE, [self._kind, reader, reader, EVERYBODY]
        rows = await self._tables.read(lambda cursor: cursor.execute(f"{sql} ORDER BY owner, name", parameters))
        return [_parse_version(row) for row in rows]

    async def history(self, owner: str, name: str) -> Sequence[Version]:
        """Every version, oldest first."""
        sql = f"SELECT {_COLUMNS} FROM definition WHERE kind = ? AND owner = ? AND name = ? ORDER BY number"
        rows = await self._tables.read(lambda cursor: cursor.execute(sql, (self._kind, owner, name)))
        if not rows:
            raise DefinitionNotFound(self._kind, owner, name)
        return [_parse_version(row) for row in rows]

    async def share(self, owner: str, name: str, reader: str) -> None:
        """Let `reader` see it."""
        await self.get(owner, name)
        sql = "INSERT INTO definition_reader VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
        await self._tables.transaction(lambda cursor: cursor.execute(sql, (self._kind, owner, name, reader)))

    async def remove(self, owner: str, name: str) -> None:
        """Forget all versions."""
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

        if not await self._tables.transaction(work, lock=[self._lock_name(owner, name)]):
            raise DefinitionNotFound(*key)

    def _lock_name(self, owner: str, name: str) -> str:
        return f"{self._kind} {owner} {name}"


def _parse_version(row: Sequence[Any]) -> Version:
    owner, name, number, at, body = row
    return Version(owner=owner, name=name, number=number, at=datetime.fromtimestamp(at, UTC), body=body.encode())
