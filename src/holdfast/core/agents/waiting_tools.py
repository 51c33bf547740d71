"""Ready-made tools that let a run wait: for a time, for a signal, for a person. Code of a workflow calls them too."""

from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.core.agents.tool import tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.run.waiting import Suspend


@tool(effect="pure")
async def sleep(seconds: float | timedelta | None = None, until: datetime | None = None) -> Any:
    """Wait for a number of seconds, or until a time. The run holds no resources meanwhile."""
    if (seconds is None) == (until is None):
        raise ValueError("give either seconds or until")
    if until is not None and until.tzinfo is None:
        raise ValueError("give until with a time zone, such as 2026-01-31T09:00:00Z")
    due = _make_expiry(seconds) if until is None else until.astimezone(UTC)
    raise Suspend("timer", expires_at=due, reason="sleeps")


@tool(effect="pure")
async def wait_for(name: str, timeout: float | timedelta | None = None) -> Any:
    """Wait for the signal of this name and return its payload. It may have come before.

    The timeout is a number of seconds. Default: no timeout.
    """
    raise Suspend("signal", topic=f"signal:{name}", expires_at=_make_expiry(timeout), reason=f"signal {name}")


@tool(effect="pure")
async def ask_person(question: str, options: list[str] | None = None, timeout: float | timedelta | None = None) -> Any:
    """Ask a person a question, with options to choose from if there are any, and return the answer.

    The timeout is a number of seconds. Default: no timeout.
    """
    listed = f" ({', '.join(options)})" if options else ""
    raise Suspend("question", reason=f"{question}{listed}", expires_at=_make_expiry(timeout))


def _make_expiry(period: float | timedelta | None) -> datetime | None:
    if period is None:
        return None
    length = period if isinstance(period, timedelta) else timedelta(seconds=period)
    return current_call().now() + max(length, timedelta(0))
