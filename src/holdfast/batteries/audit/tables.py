"""The audit store in SQLite or PostgreSQL."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.batteries.audit.store import EQUALITY_FIELDS, AuditQuery, AuditRow
from holdfast.db.tables import Cursor, Schema, Tables

SCHEMA = Schema(
    name="audit",
    migrations=[
        [
            # Fields that queries use have a column; `body` is the whole row as JSON.
            "CREATE TABLE audit (seq BIGINT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, kind TEXT NOT NULL, "
            "run_id TEXT NOT NULL, parent_run_id TEXT, caller_id TEXT NOT NULL, agent_name TEXT NOT NULL, "
            "status TEXT NOT NULL, body TEXT NOT NULL)",
            "CREATE INDEX audit_run ON audit (run_id)",
            "CREATE INDEX audit_parent ON audit (parent_run_id)",
            "CREATE INDEX audit_caller ON audit (caller_id, at)",
            "CREATE INDEX audit_at ON audit (at)",
        ]
    ],
)

#: Number of rows deleted per transaction.
_PURGE_BATCH = 10_000

_IN_RUN_TREE = """
    run_id IN (
        WITH RECURSIVE tree(run_id) AS (
            SELECT CAST(? AS TEXT) UNION SELECT audit.run_id FROM audit JOIN tree ON audit.parent_run_id = tree.run_id
        )
        SELECT run_id FROM tree
    )
"""


class AuditTable:
    """A durable `AuditStore` that any number of processes may share."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def open(self) -> None:
        """Create or migrate the table."""
        await self._tables.open(SCHEMA)

    async def close(self) -> None:
        """Close the database connection."""
        await self._tables.close()

    async def add(self, rows: Sequence[AuditRow]) -> None:
        """Write all of `rows`, or none."""

        async def work(cursor: Cursor) -> None:
            last = (await cursor.execute("SELECT COALESCE(MAX(seq), 0) FROM audit"))[0][0]
            for seq, row in enumerate(rows, start=int(last) + 1):
                await cursor.execute(
                    "INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(seq, row.at.timestamp(), row.kind, row.run_id, row.parent_run_id),
                        *(row.caller_id, row.agent_name, row.status, msgspec.json.encode(row).decode()),
                    ),
                )

        await self._tables.transaction(work, lock=["audit"])

    async def query(self, query: AuditQuery) -> Sequence[AuditRow]:
        """Return the newest `query.limit` matching rows, oldest first."""
        clauses, parameters = _build_where(query)
        sql = f"SELECT body FROM audit WHERE {' AND '.join(clauses)} ORDER BY seq DESC LIMIT ?"

        async def work(cursor: Cursor) -> Sequence[tuple[Any, ...]]:
            return await cursor.execute(sql, (*parameters, query.limit))

        rows = await self._tables.read(work)
        return [msgspec.json.decode(body, type=AuditRow) for (body,) in reversed(rows)]

    async def purge(self, before: datetime) -> int:
        """Delete rows older than `before` in batches, so that no transaction blocks other writers for long."""
        sql = "DELETE FROM audit WHERE seq IN (SELECT seq FROM audit WHERE at < ? LIMIT ?) RETURNING seq"

        async def work(cursor: Cursor) -> int:
            return len(await cursor.execute(sql, (before.timestamp(), _PURGE_BATCH)))

        purged = 0
        while count := await self._tables.transaction(work):
            purged += count
        return purged


def _build_where(query: AuditQuery) -> tuple[list[str], list[Any]]:
    clauses, parameters = ["1 = 1"], list[Any]()
    for name in EQUALITY_FIELDS:
        value = getattr(query, name)
        if value is not None:
            clauses.append(f"{name} = ?")
            parameters.append(value)
    for operator, at in ((">=", query.since), ("<", query.until)):
        if at is not None:
            clauses.append(f"at {operator} ?")
            parameters.append(at.timestamp())
    if query.tree_of is not None:
        clauses.append(_IN_RUN_TREE)
        parameters.append(query.tree_of)
    return clauses, parameters
