"""The contract of what keeps the audit, and the one in memory."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from holdfast.batteries.audit.rows import AuditQuery, AuditRow


class AuditStore(Protocol):
    """Keeps rows in the order in which they came."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def add(self, rows: Sequence[AuditRow]) -> None:
        """Keep all of `rows`, or none."""
        ...

    async def query(self, wanted: AuditQuery) -> Sequence[AuditRow]:
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

    async def query(self, wanted: AuditQuery) -> Sequence[AuditRow]:
        tree = self._tree(wanted.tree_of) if wanted.tree_of is not None else None
        found = [row for row in self._rows if _fits(row, wanted) and (tree is None or row.run_id in tree)]
        return found[-wanted.limit :]

    async def purge(self, before: datetime) -> int:
        kept = [row for row in self._rows if row.at >= before]
        dropped = len(self._rows) - len(kept)
        self._rows = kept
        return dropped

    def _tree(self, root: str) -> set[str]:
        tree, grown = {root}, True
        while grown:
            more = {row.run_id for row in self._rows if row.parent_run_id in tree} - tree
            tree |= more
            grown = bool(more)
        return tree


def _fits(row: AuditRow, wanted: AuditQuery) -> bool:
    return (
        all(
            getattr(wanted, name) in (None, getattr(row, name))
            for name in ("run_id", "caller_id", "agent_name", "kind", "status")
        )
        and (wanted.since is None or row.at >= wanted.since)
        and (wanted.until is None or row.at < wanted.until)
    )
