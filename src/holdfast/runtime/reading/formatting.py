"""Figures and values as people read them: durations, sizes, costs, amounts, calls."""

from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.clock import CLOCK


def utc_now() -> datetime:
    return CLOCK.get().now()


_LINE_LENGTH = 100
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def format_duration(length: timedelta) -> str:
    """`40 ms`, `0.8 s`, `42 s`, `5 min`, `3 h 20 min`, `2 d`."""
    seconds = max(0.0, length.total_seconds())
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if timedelta(hours=1) <= length < timedelta(hours=6):
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    for unit, name in _UNITS:
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def format_span(length: timedelta) -> str:
    """`0.8 s`, `42 s`, `53 min 17 s`, `3 h 20 min`, `2 d 5 h`: with a second unit, for numbers that are added."""
    seconds = max(0.0, length.total_seconds())
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, part, part_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            count, rest = divmod(whole, unit)
            return f"{count} {name} {rest // part} {part_name}" if rest // part else f"{count} {name}"
    return f"{whole} s"


def format_age(since: timedelta) -> str:
    """`now`, `12 s ago`, `3 h ago`, `in 5 min`."""
    seconds = since.total_seconds()
    length = f"{abs(seconds):.0f} s" if abs(seconds) < 90 else format_duration(abs(since))
    if seconds >= 5:
        return f"{length} ago"
    return "now" if seconds > -1 else f"in {length}"


def format_number(count: int) -> str:
    """`12,345`."""
    return f"{count:,}"


def format_cost(dollars: float) -> str:
    """`$0.0123`, `$1.50`; a dash for zero."""
    if dollars == 0:
        return "–"
    return f"${dollars:,.2f}" if dollars >= 0.1 else f"${dollars:.4f}"


def format_amount(value: float, unit: str) -> str:
    """Return an amount of a budget: `12,000 tokens`, `$1.50`, `3 runs`, `5 min`."""
    match unit:
        case "cost_usd":
            return f"${value:,.2f}" if value >= 0.1 or value == 0 else f"${value:.4f}"
        case "seconds":
            return format_duration(timedelta(seconds=value))
    return format_count(int(value), unit.removesuffix("s"))


def format_size(count: int) -> str:
    """`999 B`, `1.5 kB`, `20 MB`."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def format_count(count: int, noun: str, plural: str = "") -> str:
    """`1 step`, `3 steps`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_value(value: Any) -> str:
    """Return a stored value as text: text as it is, other data as indented JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode(errors="replace")


def format_call(tool: str, arguments: Any, limit: int = 80) -> str:
    """Return a call in one line, such as `refund(order="A17", amount=129.0)`. Long arguments are cut."""
    return f"{tool}({format_arguments(arguments, limit)})"


def format_whole_call(tool: str, arguments: Any) -> str:
    """Return a call with all its arguments, in one line if they are short: a person decides by them."""
    if isinstance(arguments, dict):
        line = ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in arguments.items())
        if len(line) <= _LINE_LENGTH:
            return f"{tool}({line})"
    return f"{tool}({format_value(arguments)})"


def format_arguments(arguments: Any, limit: int = 60) -> str:
    """Return the arguments of a call in one line. Long ones are cut."""
    if isinstance(arguments, dict):
        shown = ", ".join(f"{name}={_format_short(value, limit)}" for name, value in arguments.items())
    else:
        shown = _format_short(arguments, limit)
    return cut_text(shown, 2 * limit)


def _format_short(value: Any, limit: int) -> str:
    return cut_text(msgspec.json.encode(value).decode(errors="replace"), limit)


def cut_text(text: str, limit: int) -> str:
    """Return the text in one line of at most `limit` characters."""
    line = " ".join(text[: 2 * limit].split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"
