"""A request for a person's approval of a tool call."""

from datetime import timedelta

import msgspec


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Says that a call needs a person's approval, and returned by the predicate of a tool for such a call."""

    reason: str = ""
    #: How long the run waits for the answer. `None`: without limit.
    expires_in: timedelta | None = None
    #: Who may decide: a label that the host checks.
    audience: str = ""
