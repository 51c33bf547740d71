"""Short formats of durations, sizes, counts and costs; the present time."""

from datetime import UTC, datetime, timedelta


def utc_now() -> datetime:
    return datetime.now(UTC)


def duration(length: timedelta) -> str:
    """`0.3 s`, `42 s`, `5 min`, `3 h`, `2 d`."""
    seconds = max(0.0, length.total_seconds())
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit or (name == "min" and seconds >= 90):
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def size(count: int) -> str:
    """`999 B`, `1.5 kB`, `20 MB`."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def number(count: int) -> str:
    """`12,345`."""
    return f"{count:,}"


def cost(dollars: float) -> str:
    """`$0.0123`, `$1.50`; empty for zero."""
    if dollars == 0:
        return ""
    return f"${dollars:.2f}" if dollars >= 0.1 else f"${dollars:.4f}"
