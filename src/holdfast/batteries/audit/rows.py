"""What is recorded, and how it is asked for."""

from datetime import datetime
from typing import Any, Literal

import msgspec

Kind = Literal["start", "step", "tool", "event", "end"]


class AuditRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened in one run. Never changed once it is written."""

    at: datetime
    kind: Kind
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


def without_unstorable(row: AuditRow) -> AuditRow:
    """The row without what no store could keep."""
    return AuditRow(**{name: _storable(value) for name, value in msgspec.structs.asdict(row).items()})


def _storable(value: Any) -> Any:
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
    kind: Kind | None = None
    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 1000
