"""audit: an append-only record of every run, step and tool call, with queries and retention.

`App(agents, audit=Audit())` keeps the rows in the store of the App.
"""

from holdfast.batteries.audit.audit import Audit, AuditError
from holdfast.batteries.audit.audit_rows import AuditQuery, AuditRow, AuditTable

__all__ = ["Audit", "AuditError", "AuditQuery", "AuditRow", "AuditTable"]
