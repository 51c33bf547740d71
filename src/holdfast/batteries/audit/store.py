"""Audit rows, queries for them, the store protocol, and the store in memory."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

AuditKind = Literal["start", "step", "tool", "event", "end"]


class AuditRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of one run. Immutable once written."""

    at: datetime
    kind: AuditKind
    run_id: str
    agent_name: str
    caller_id: str = ""
    parent_run_id: str | None = None
    #: For `start`: `begun` or `resumed`. For `end`: `complete`, `fail`, `park`, `leave` (interrupted) or `abandon`.
    status: str = ""
    iteration: int = 0
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


#: Query fields that a row has to equal, each a column of the tables too.
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


class AuditStore(Protocol):
    """Keeps rows in the order in which they were added."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def add(self, rows: Sequence[AuditRow]) -> None:
        """Write all of `rows`, or none."""
        ...

    async def query(self, query: AuditQuery) -> Sequence[AuditRow]:
        """Return the newest `query.limit` matching rows, oldest first."""
        ...

    async def purge(self, before: datetime) -> int:
        """Delete rows older than `before`. Returns their number."""
        ...


class MemoryAudit:
    """Keeps the newest `capacity` rows in memory. They do not survive the process."""

    def __init__(self, capacity: int = 100_000) -> None:
        self._rows: list[AuditRow] = []
        self._capacity = capacity

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def add(self, rows: Sequence[AuditRow]) -> None:
        self._rows.extend(rows)
        del self._rows[: -self._capacity]

    async def query(self, query: AuditQuery) -> Sequence[AuditRow]:
        tree = self._collect_run_tree(query.tree_of) if query.tree_of is not None else None
        rows = [row for row in self._rows if _matches(row, query) and (tree is None or row.run_id in tree)]
        return rows[-query.limit :]

    async def purge(self, before: datetime) -> int:
        kept = [row for row in self._rows if row.at >= before]
        dropped = len(self._rows) - len(kept)
        self._rows = kept
        return dropped

    def _collect_run_tree(self, root: str) -> set[str]:
        tree = {root}
        while children := {row.run_id for row in self._rows if row.parent_run_id in tree} - tree:
            tree |= children
        return tree


def _matches(row: AuditRow, query: AuditQuery) -> bool:
    return (
        all(getattr(query, name) in (None, getattr(row, name)) for name in EQUALITY_FIELDS)
        and (query.since is None or row.at >= query.since)
        and (query.until is None or row.at < query.until)
    )
