"""One line that says why a run is where it is."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from holdfast.checkpoint.record import RunStatus
from holdfast.core.waiting import WaitingCall
from holdfast.runtime.reading import RunSummary
from holdfast.web.ui.views.formatting import cut_text, format_call, format_count, format_duration

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
