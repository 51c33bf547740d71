"""Ready-made tools that let a run wait: for a time, for a signal, for a person."""

from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.core.agents.tool import tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.run.waiting import Suspend


@tool(effect="pure")
async def sleep(seconds: float | None = None, until: datetime | None = None) -> str:
    """Wait for a number of seconds, or until a time. The run holds no resources meanwhile."""
    now = current_call().now()
    if (seconds is None) == (until is None):
        raise ValueError("give either seconds or until")
    if until is not None and until.tzinfo is None:
        raise ValueError("give until with a time zone, such as 2026-01-31T09:00:00Z")
    due = now + timedelta(seconds=max(0.0, seconds)) if seconds is not None else until
    assert due is not None
    raise Suspend("timer", expires_at=due.astimezone(UTC), reason="sleeps")


@tool(effect="pure")
async def wait_for(name: str, timeout_seconds: float | None = None) -> Any:
    """Wait for the signal of this name and return its payload. It may have come before. Default: no timeout."""
    now = current_call().now()
    expires_at = None if timeout_seconds is None else now + timedelta(seconds=timeout_seconds)
    raise Suspend("signal", topic=f"signal:{name}", expires_at=expires_at, reason=f"signal {name}")


@tool(effect="pure")
async def ask_person(question: str, options: list[str] | None = None) -> Any:
    """Ask a person a question, with options to choose from if there are any, and return the answer."""
    listed = f" ({', '.join(options)})" if options else ""
    raise Suspend("question", reason=f"{question}{listed}")
