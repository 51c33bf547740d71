"""audit: an append-only record of every run, step and tool call, queryable, with retention.

`App(agents, audit=Audit())` is all it takes; `Audit(TablesAudit(tables))` survives the process.
"""

from holdfast.batteries.audit.audit import Audit, AuditError
from holdfast.batteries.audit.store import AuditQuery, AuditRow, AuditStore, MemoryAudit
from holdfast.batteries.audit.tables import TablesAudit

__all__ = ["Audit", "AuditError", "AuditQuery", "AuditRow", "AuditStore", "MemoryAudit", "TablesAudit"]
