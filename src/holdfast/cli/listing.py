"""Stored runs as `ls`, `show` and `export` print them in JSON."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.runtime.reading import RunSummary


def to_json_object(run: RunSummary) -> dict[str, Any]:
    """Return the fields of a run that `--json` prints."""
    usage = run.usage
    return {
        **msgspec.to_builtins(run),
        "waits_for": run.waits_for,
        "tokens": usage.total_tokens,
        "cost_usd": usage.cost_usd,
    }


def utc_now() -> datetime:
    return datetime.now(UTC)
