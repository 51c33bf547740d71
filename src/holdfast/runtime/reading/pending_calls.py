"""Calls that wait, as they are shown to others."""

from datetime import datetime
from typing import Any, Self

import msgspec

from holdfast.core.run.waiting import WaitingCall, WaitKind


class PendingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits. Without what is stored of its token."""

    run_id: str
    call_id: str
    tool: str
    kind: WaitKind
    arguments: Any
    #: Digest of the arguments. An answer that names it is for these arguments.
    digest: str
    reason: str
    audience: str
    asked_at: datetime
    expires_at: datetime | None

    @classmethod
    def from_call(cls, call: WaitingCall, **more: Any) -> Self:
        """Show `call`. `more` are the further fields of a subclass."""
        shown = {name: getattr(call, name) for name in PendingCall.__struct_fields__}
        return cls(**shown, **more)
