"""What is recorded, and how it is asked for.

The contract of what keeps the audit, and the one in memory.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

AuditKind = Literal["start", "step", "tool", "event", "end"]


class AuditRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened in one run. Never changed once it is written."""

    at: datetime
    kind: AuditKind
    run_id: str
    agent_name: str
    caller_id: str = ""
    parent_run_id: str | None = None
    #: Of an end: `complete`, `fail`, `park`, `leave`, `abandon`. Of a start: `begun` or `resumed`.
    status: str = ""
    iteration: int = 0
    #: What the run itself has used up to here, in all.
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    #: The tool's name, or the event's.
    name: str = ""
    call_id: str = ""
    effect: str = ""
    #: Redacted.
    arguments: Any = None
    failed: bool = False
    #: An error's text, or an event's detail. Redacted.
    detail: str = ""
    took_seconds: float = 0.0


def replace_unstorable(row: AuditRow) -> AuditRow:
    """The row without what no store could keep."""
    return AuditRow(**{name: _make_storable(value) for name, value in msgspec.structs.asdict(row).items()})


def _make_storable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    try:
        msgspec.json.encode(value)
    except Exception:  # whatever is in it
        return "(could not be stored)"
    return value


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows are wanted. Fields that are set all have to fit."""

    run_id: str | None = None
    #: The rows of this run, of the runs it started, and of those they started.
    tree_of: str | None = None
    caller_id: str | None = None
    agent_name: str | None = None
    kind: AuditKind | None = None
    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 1000


class AuditStore(Protocol):
    """Keeps rows in the order in which they came."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def add(self, rows: Sequence[AuditRow]) -> None:
        """Keep all of `rows`, or none."""
        ...

    async def query(self, query: AuditQuery) -> Sequence[AuditRow]:
        """The rows that fit, oldest first; of more than the limit, the newest."""
        ...

    async def purge(self, before: datetime) -> int:
        """Drop rows older than that. Returns how many."""
        ...


class MemoryAudit:
    """Rows of one process. Does not survive it; keeps the newest `capacity`."""

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
        found = [row for row in self._rows if _matches(row, query) and (tree is None or row.run_id in tree)]
        return found[-query.limit :]

    async def purge(self, before: datetime) -> int:
        kept = [row for row in self._rows if row.at >= before]
        dropped = len(self._rows) - len(kept)
        self._rows = kept
        return dropped

    def _collect_run_tree(self, root: str) -> set[str]:
        tree, grown = {root}, True
        while grown:
            more = {row.run_id for row in self._rows if row.parent_run_id in tree} - tree
            tree |= more
            grown = bool(more)
        return tree


def _matches(row: AuditRow, query: AuditQuery) -> bool:
    return (
        all(
            getattr(query, name) in (None, getattr(row, name))
            for name in ("run_id", "caller_id", "agent_name", "kind", "status")
        )
        and (query.since is None or row.at >= query.since)
        and (query.until is None or row.at < query.until)
    )
