"""audit: an append-only record of every run, step and tool call, with queries and retention.

`App(agents, audit=Audit())` keeps rows in memory, `Audit(AuditTable(tables))` in a database.
"""

from holdfast.batteries.audit.audit import Audit, AuditError
from holdfast.batteries.audit.store import AuditQuery, AuditRow, AuditStore, MemoryAudit
from holdfast.batteries.audit.tables import AuditTable

__all__ = ["Audit", "AuditError", "AuditQuery", "AuditRow", "AuditStore", "AuditTable", "MemoryAudit"]
