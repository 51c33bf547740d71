"""Audit rows and their table."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.db.tables import BatteryTables, Cursor, Schema

AuditKind = Literal["start", "step", "tool", "event", "end"]


class AuditRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of one run. Immutable once written."""

    at: datetime
    kind: AuditKind
    run_id: str
    agent_name: str
    caller_id: str = ""
    parent_run_id: str | None = None
    #: For `start`: `begun` or `resumed`. For `end`: how the attempt ended, such as `done` or `parked`.
    status: str = ""
    step: int = 0
    #: Total usage of the run so far, child runs excluded.
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    #: Name of the tool or the event.
    name: str = ""
    call_id: str = ""
    effect: str = ""
    #: Redacted.
    arguments: Any = None
    failed: bool = False
    #: Text of the error, or detail of the event. Redacted.
    detail: str = ""
    took_seconds: float = 0.0


def replace_unstorable(row: AuditRow) -> AuditRow:
    """Return the row with every value that cannot be stored replaced."""
    return AuditRow(**{name: _make_storable(value) for name, value in msgspec.structs.asdict(row).items()})


def _make_storable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    try:
        msgspec.json.encode(value)
    except Exception:  # a host's object may raise anything
        return "(could not be stored)"
    return value


#: Query fields that a row has to equal, each a column of the table too.
EQUALITY_FIELDS = ("run_id", "caller_id", "agent_name", "kind", "status")


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selects rows. A row matches if it matches every field that is set."""

    run_id: str | None = None
    #: The rows of this run and of all its descendants.
    tree_of: str | None = None
    caller_id: str | None = None
    agent_name: str | None = None
    kind: AuditKind | None = None
    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 1000


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


class AuditTable(BatteryTables):
    """Keeps rows in the order in which they were added. Any number of processes may share it."""

    schema = SCHEMA

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

        await self.transaction(work, lock=["audit"])

    async def query(self, query: AuditQuery) -> Sequence[AuditRow]:
        """Return the newest `query.limit` matching rows, oldest first."""
        clauses, parameters = _build_where(query)
        sql = f"SELECT body FROM audit WHERE {' AND '.join(clauses)} ORDER BY seq DESC LIMIT ?"
        rows = await self.select(sql, *parameters, query.limit)
        return [msgspec.json.decode(body, type=AuditRow) for (body,) in reversed(rows)]

    async def purge(self, before: datetime) -> int:
        """Delete rows older than `before` in short transactions. Returns their number."""
        sql = "DELETE FROM audit WHERE seq IN (SELECT seq FROM audit WHERE at < ? LIMIT ?) RETURNING seq"

        async def work(cursor: Cursor) -> int:
            return len(await cursor.execute(sql, (before.timestamp(), _PURGE_BATCH)))

        purged = 0
        while count := await self.transaction(work):
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
