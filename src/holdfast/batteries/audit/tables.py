"""The audit in the database of the checkpoints."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.batteries.audit.store import AuditQuery, AuditRow
from holdfast.db.tables import Cursor, Schema, Tables

SCHEMA = Schema(
    name="audit",
    migrations=[
        [
            # What is asked for has a column; the row itself is kept whole beside it.
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

#: Rows that are dropped in one transaction.
_PURGE_BATCH = 10_000

_IN_RUN_TREE = """
    run_id IN (
        WITH RECURSIVE tree(run_id) AS (
            SELECT CAST(? AS TEXT) UNION SELECT audit.run_id FROM audit JOIN tree ON audit.parent_run_id = tree.run_id
        )
        SELECT run_id FROM tree
    )
"""


class TablesAudit:
    """An `AuditStore` that survives, and that any number of processes share."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def open(self) -> None:
        """Make the table ready."""
        await self._tables.open(SCHEMA)

    async def close(self) -> None:
        """Let go of the database."""
        await self._tables.close()

    async def add(self, rows: Sequence[AuditRow]) -> None:
        """Keep all of `rows`, or none."""

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
        """The rows that fit, oldest first."""
        clauses, parameters = _build_where(query)
        sql = f"SELECT body FROM audit WHERE {' AND '.join(clauses)} ORDER BY seq DESC LIMIT ?"
        rows = await self._tables.read(lambda cursor: cursor.execute(sql, (*parameters, query.limit)))
        return [msgspec.json.decode(body, type=AuditRow) for (body,) in reversed(rows)]

    async def purge(self, before: datetime) -> int:
        """Drop rows older than that, some at a time: others use the database meanwhile, and no statement takes long."""
        sql = "DELETE FROM audit WHERE seq IN (SELECT seq FROM audit WHERE at < ? LIMIT ?) RETURNING seq"
        dropped, parameters = 0, (before.timestamp(), _PURGE_BATCH)
        while rows := await self._tables.transaction(lambda cursor: cursor.execute(sql, parameters)):
            dropped += len(rows)
        return dropped


def _build_where(query: AuditQuery) -> tuple[list[str], list[Any]]:
    clauses, parameters = ["1 = 1"], list[Any]()
    for name in ("run_id", "caller_id", "agent_name", "kind", "status"):
        value = getattr(query, name)
        if value is not None:
            clauses.append(f"{name} = ?")
            parameters.append(value)
    for sign, at in ((">=", query.since), ("<", query.until)):
        if at is not None:
            clauses.append(f"at {sign} ?")
            parameters.append(at.timestamp())
    if query.tree_of is not None:
        clauses.append(_IN_RUN_TREE)
        parameters.append(query.tree_of)
    return clauses, parameters
