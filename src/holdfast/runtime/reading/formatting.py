"""Runs in words and figures: durations, sizes, costs, and what a run does or waits for."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from holdfast.checkpoint.record import RunStatus
from holdfast.clock import CLOCK
from holdfast.core.run.waiting import WaitingCall
from holdfast.runtime.reading.run_views import RunSummary


def utc_now() -> datetime:
    return CLOCK.get().now()


def duration(length: timedelta) -> str:
    """`0.3 s`, `42 s`, `5 min`, `3 h`, `2 d`."""
    seconds = max(0.0, length.total_seconds())
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit or (name == "min" and seconds >= 90):
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def cost(dollars: float) -> str:
    """`$0.0123`, `$1.50`; empty for zero."""
    if dollars == 0:
        return ""
    return f"${dollars:.2f}" if dollars >= 0.1 else f"${dollars:.4f}"


_LINE_LENGTH = 100
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def format_duration(length: timedelta) -> str:
    """`40 ms`, `0.8 s`, `42 s`, `5 min`, `3 h 20 min`, `2 d`."""
    seconds = max(0.0, length.total_seconds())
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if 3600 <= seconds < 6 * 3600:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    for unit, name in _UNITS:
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def format_age(since: timedelta) -> str:
    """`now`, `12 s ago`, `3 h ago`, `in 5 min`."""
    seconds = since.total_seconds()
    if -1 < seconds < 5:
        return "now"
    length = f"{abs(seconds):.0f} s" if abs(seconds) < 10 else format_duration(timedelta(seconds=abs(seconds)))
    return f"{length} ago" if seconds > 0 else f"in {length}"


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


def show_time(at: datetime) -> Markup:
    """Return an element with the time to the second. The script shows it in the reader's time zone."""
    return _show(at, "time", f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")


def show_age(at: datetime, now: datetime) -> Markup:
    """Return an element with the age of a time. The script keeps it up to date."""
    return _show(at, "age", format_age(now - at))


def _show(at: datetime, form: str, text: str) -> Markup:
    at = at.astimezone(UTC)
    return Markup('<time datetime="{}" data-format="{}" title="{:%Y-%m-%d %H:%M:%S} UTC">{}</time>').format(
        at.isoformat(), form, at, text
    )


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


_REASON_LENGTH = 160


class Piece(NamedTuple):
    """Part of a line: plain text, or code."""

    text: str
    is_code: bool = False


def explain_run(run: RunSummary, waits: Sequence[WaitingCall], now: datetime) -> list[Piece]:
    """Return the line for a run, in pieces."""
    match run.status:
        case RunStatus.WAITING if waits:
            pieces = list(_explain_wait(waits[0], now))
            if len(waits) > 1:
                pieces.append(Piece(f", and {format_count(len(waits) - 1, 'more call')}"))
        case RunStatus.WAITING if run.conversation:
            pieces = [Piece(f"waits for the next message, after {format_count(run.turns, 'turn')}")]
        case RunStatus.WAITING:
            pieces = [Piece(f"waits for {_cut(run.waits_for)}")]
        case RunStatus.QUEUED | RunStatus.INTERRUPTED:
            pieces = _explain_unowned(run, now)
        case RunStatus.RUNNING:
            pieces = _explain_running(run, now)
        case RunStatus.DONE:
            kept = f", kept until {run.expires_at:%d %b}" if run.expires_at else ""
            after = f" after {format_count(run.steps, 'step')}" if run.steps else ""
            pieces = [Piece(f"finished{after}{kept}")]
        case RunStatus.CANCELLED:
            pieces = [Piece("cancelled")]
        case _:
            pieces = [Piece(_cut(run.reason) or str(run.status))]
    if run.cancel_requested and run.status not in (RunStatus.CANCELLED, RunStatus.DONE, RunStatus.FAILED):
        pieces.append(Piece(" · cancel requested"))
    return pieces


def explain_call(call: WaitingCall) -> list[Piece]:
    """Return what a call waits for, without times."""
    match call.kind:
        case "approval":
            return [Piece("approval of "), Piece(format_call(call.tool, call.arguments), is_code=True)]
        case "question":
            return [Piece(f"answer to “{_cut(call.reason)}”")]
        case "signal":
            return [Piece("the signal "), Piece(call.topic.partition(":")[2], is_code=True)]
        case "timer":
            return [Piece("a time")]
        case "result":
            return [Piece("the result of "), Piece(format_call(call.tool, call.arguments), is_code=True)]
        case "child":
            return [Piece("a child run of "), Piece(call.tool, is_code=True)]


def _explain_wait(call: WaitingCall, now: datetime) -> Iterator[Piece]:
    if call.kind == "timer" and call.expires_at is not None:
        yield Piece(f"sleeps for {format_duration(call.expires_at - now)} more")
        return
    yield from explain_call(call)
    yield Piece(f" since {format_duration(now - call.asked_at)}")
    if call.expires_at is not None:
        yield Piece(f", expires in {format_duration(call.expires_at - now)}")


def _explain_unowned(run: RunSummary, now: datetime) -> list[Piece]:
    if run.not_before > now:
        if run.retry_error and run.retry_error in run.reason:  # its model is unavailable
            error = cut_text(run.retry_error, 100)
            return [Piece(f"retries after {error} in {format_duration(run.not_before - now)}")]
        verb = "starts" if run.status is RunStatus.QUEUED else "resumes"
        after = f" after {_cut(run.reason)}" if run.reason else ""
        return [Piece(f"{verb} in {format_duration(run.not_before - now)}{after}")]
    if run.owner is not None:
        return [Piece("worker "), Piece(run.owner, is_code=True), Piece(" died; waits for another worker")]
    return [Piece(f"waits for a worker{f': {_cut(run.reason)}' if run.reason else ''}")]


def _explain_running(run: RunSummary, now: datetime) -> list[Piece]:
    phase = f" of phase {cut_text(run.phase, 40)}" if run.phase else ""
    if run.next_retry_at is not None and run.next_retry_at > now:
        error, pause = cut_text(run.retry_error, 100), format_duration(run.next_retry_at - now)
        return [Piece(f"retries after {error} in {pause} · step {run.steps + 1}{phase}")]
    pieces = [Piece(f"step {run.steps + 1}{phase} · worker "), Piece(run.owner or "?", is_code=True)]
    if run.retries:
        error = cut_text(run.retry_error, 60)
        pieces.append(Piece(f" · {format_count(run.retries, 'retry', 'retries')}, last after {error}"))
    return pieces


def _cut(reason: str) -> str:
    return cut_text(reason, _REASON_LENGTH)
