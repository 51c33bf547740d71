"""RunSummary: one run without its transcript, and the sentence that says what it does, waits for or needs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.errors import RecordDecodeError
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import TERMINAL_STATUSES, RunRecord, RunStatus
from holdfast.core.run.info import RunInfo
from holdfast.core.run.mail import BUDGET_TOPIC
from holdfast.core.run.messages import Usage
from holdfast.core.run.waiting import WaitingCall
from holdfast.runtime.reading.formatting import (
    cut_text,
    format_call,
    format_count,
    format_duration,
    format_span,
    utc_now,
)

#: A running run that has saved nothing for this long makes no progress.
QUIET_AFTER = timedelta(minutes=10)

_REASON_LENGTH = 160
#: Where the words of a reason end that many runs share.
_REASON_DETAILS = re.compile(r" \(|: | until |, ")
_ZERO = timedelta(0)


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run without its transcript."""

    run_id: str
    #: A running run whose owner is dead is interrupted.
    status: RunStatus
    #: What the run does, waits for, or why it is parked or failed, in words, when it was read.
    description: str
    agent: str
    caller: str
    parent: str | None
    #: The run that this one is a fork of, and the step or turn at which it was forked.
    forked_from: str | None
    forked_at: int
    labels: Mapping[str, str]
    #: The beginning of the prompt.
    prompt: str
    created_at: datetime
    updated_at: datetime
    #: When a terminal run may be purged.
    expires_at: datetime | None
    #: Finished steps and phases, and the current phase.
    steps: int
    phases: int
    phase: str
    #: The usage of the run and its child runs.
    usage: Usage
    #: Execution time, without the time it was interrupted or waited. Of a running run: until now.
    elapsed: timedelta
    #: From its creation to its end; of a run that has not ended, until now.
    total: timedelta
    #: The rest of `total`: no process executed the run.
    waited: timedelta
    #: Size of the journal in bytes.
    size: int
    #: The worker that executes the run, or that died while it did.
    owner: str | None
    owner_alive: bool
    #: Claims in a row that ended without a finished step.
    strikes: int
    #: Why the run is parked, failed or interrupted, or what it waits for, as its worker recorded it.
    reason: str
    #: Workers do not claim the run before this time.
    not_before: datetime
    #: When a waiting run is resumed without mail, and the topics of mail that resume it.
    wake_at: datetime | None
    wake_on: tuple[str, ...]
    cancel_requested: bool
    #: Calls that were retried after a transient error, and the last such error.
    retries: int
    retry_error: str
    #: When a running run retries the call that failed last. Past once it has.
    next_retry_at: datetime | None = None
    #: The key of a conversation, and the number of its turns that have ended. Empty and zero for other runs.
    conversation: str
    turns: int


class Piece(NamedTuple):
    """Part of a line: plain text, or code."""

    text: str
    is_code: bool = False


def summarize_run(record: RunRecord, now: datetime | None = None) -> RunSummary:
    """Summarize a record. Fields that only a newer holdfast can decode stay empty."""
    info, progress = RunInfo(run_id=record.run_id, agent_name=record.agent_name), Progress()
    with suppress(RecordDecodeError):  # a listing continues; `doctor` reports the error
        info, progress = decode(record.info, RunInfo), decode(record.progress, Progress)
    retry = progress.retry
    now = now or utc_now()
    times = measure_times(record, progress.elapsed, now)
    run = RunSummary(
        run_id=record.run_id,
        status=record.current_status,
        description="",
        agent=record.agent_name,
        caller=record.caller_id,
        parent=record.parent_run_id,
        forked_from=info.forked_from,
        forked_at=info.forked_at,
        labels=info.labels,
        prompt=info.prompt_text,
        created_at=record.created_at,
        updated_at=record.updated_at,
        expires_at=record.expires_at,
        steps=progress.steps,
        phases=progress.phases,
        phase=progress.phase,
        usage=progress.usage,
        elapsed=times.worked,
        total=times.total,
        waited=times.waited,
        size=record.size,
        owner=record.owner if record.status is RunStatus.RUNNING else None,
        owner_alive=record.owner_alive,
        strikes=record.strikes,
        reason=record.reason,
        not_before=record.not_before,
        wake_at=record.wake_at,
        wake_on=tuple(record.wake_on),
        cancel_requested=record.cancel_requested,
        retries=retry.count,
        retry_error=retry.error,
        next_retry_at=retry.next_at if record.status is RunStatus.RUNNING else None,
        conversation=info.conversation,
        turns=progress.turns,
    )
    pieces = describe_run(run, progress.calls.undecided, now)
    return msgspec.structs.replace(run, description="".join(piece.text for piece in pieces))


class RunTimes(NamedTuple):
    """How long a run took: `total` is the sum of the others."""

    total: timedelta
    worked: timedelta
    waited: timedelta


def measure_times(record: RunRecord, elapsed: timedelta, now: datetime) -> RunTimes:
    """Measure a run. Every list, page and answer has these numbers.

    Args:
        elapsed: the execution time that its last save recorded.
    """
    works = record.status is RunStatus.RUNNING and record.owner_alive
    worked = elapsed + max(now - record.updated_at, _ZERO) if works else elapsed
    # An end is written when the run has ended; clocks of two processes may differ.
    total = max((record.updated_at if record.is_terminal else now) - record.created_at, worked)
    return RunTimes(total, worked, total - worked)


def round_times(run: RunSummary) -> tuple[timedelta, RunTimes]:
    """Return the unit in which the times of a run are shown, and the times rounded to it, so that they add up."""
    unit = timedelta(seconds=1) if run.total >= timedelta(seconds=10) else timedelta(milliseconds=100)
    total = round(run.total / unit) * unit
    worked = min(round(run.elapsed / unit) * unit, total)
    return unit, RunTimes(total, worked, total - worked)


def format_times(run: RunSummary) -> tuple[str, str, str]:
    """Return total, worked and waited time, rounded."""
    total, worked, waited = round_times(run)[1]
    return format_span(total), format_span(worked), format_span(waited)


def describe_times(run: RunSummary) -> str:
    """Return the durations of a run in one line: `53 min 50 s total = 33 s worked + 53 min 17 s waited`."""
    total, worked, waited = format_times(run)
    return f"{total} total = {worked} worked + {waited} waited"


def describe_run(run: RunSummary, waits: Sequence[WaitingCall], now: datetime) -> list[Piece]:
    """Say what a run does, waits for or needs, in one line. Every list, page and answer uses these words.

    Args:
        waits: the calls of the run that wait.
    """
    match run.status:
        case RunStatus.WAITING if run.wake_at is not None and run.wake_at <= now:
            pieces = [Piece(describe_status(RunStatus.INTERRUPTED))]
        case RunStatus.WAITING if waits and BUDGET_TOPIC not in run.wake_on:
            pieces = list(_describe_wait(waits[0], now))
            if len(waits) > 1:
                pieces.append(Piece(f", and {format_count(len(waits) - 1, 'more call')}"))
        case RunStatus.WAITING if run.conversation and BUDGET_TOPIC not in run.wake_on:
            pieces = [Piece(f"waits for the next message, after {format_count(run.turns, 'turn')}")]
        case RunStatus.QUEUED | RunStatus.INTERRUPTED:
            pieces = _describe_unowned(run, now)
        case RunStatus.RUNNING:
            pieces = _describe_running(run, now)
        case RunStatus.DONE:
            kept = f", kept until {run.expires_at:%d %b}" if run.expires_at else ""
            after = f" after {format_count(run.steps, 'step')}" if run.steps else ""
            pieces = [Piece(f"finished{after}{kept}")]
        case RunStatus.CANCELLED:
            pieces = [Piece("cancelled")]
        case _:
            topics = f"mail ({', '.join(run.wake_on)})" if run.wake_on else ""
            pieces = [Piece(describe_status(run.status, run.reason or topics))]
    if run.cancel_requested and run.status not in TERMINAL_STATUSES:
        pieces.append(Piece(" · cancel requested"))
    return pieces


def describe_status(status: RunStatus, reason: str = "") -> str:
    """Say what is known of a run by its status and reason alone. Empty if that is nothing more than the status."""
    reason = cut_text(reason, _REASON_LENGTH)
    match status:
        case RunStatus.QUEUED | RunStatus.INTERRUPTED:
            return f"ready for a worker, after: {reason}" if reason else "ready for a worker"
        case RunStatus.WAITING:
            return f"waits for {reason or 'a time'}"
        case RunStatus.PARKED:
            return reason or "needs a person"
        case RunStatus.FAILED:
            return reason
    return ""


def describe_reason(run: RunSummary) -> str:
    """Return why a run does not continue, without ids, texts and times: the same words for the same cause."""
    if run.status is RunStatus.WAITING:
        if run.reason.startswith("the time "):
            return "a time"
        return _REASON_DETAILS.split(run.reason)[0] or "mail"
    if run.status is RunStatus.RUNNING:
        return "no progress"
    return run.reason.partition(": ")[0] or ("its worker died" if run.owner is not None else "")


def _describe_wait(call: WaitingCall, now: datetime) -> Iterator[Piece]:
    if call.kind == "timer" and call.expires_at is not None:
        yield Piece(f"sleeps for {format_duration(call.expires_at - now)} more")
        return
    yield Piece("waits for ")
    yield from _describe_call(call)
    yield Piece(f", {format_duration(now - call.asked_at)} so far")
    if call.expires_at is not None:
        yield Piece(f", expires in {format_duration(call.expires_at - now)}")


def _describe_call(call: WaitingCall) -> list[Piece]:
    """Return what a call waits for, without times."""
    match call.kind:
        case "approval":
            return [Piece("approval of "), Piece(format_call(call.tool, call.arguments), is_code=True)]
        case "run":
            return [Piece("the end of "), Piece(call.reason, is_code=True)]
        case "question":
            return [Piece(f"an answer to “{cut_text(call.reason, _REASON_LENGTH)}”")]
        case "signal":
            return [Piece("the signal "), Piece(call.topic.partition(":")[2], is_code=True)]
        case "timer":
            return [Piece("a time")]
        case "result":
            return [Piece("the result of "), Piece(format_call(call.tool, call.arguments), is_code=True)]
        case "child":
            return [Piece("a child run of "), Piece(call.tool, is_code=True)]


def _describe_unowned(run: RunSummary, now: datetime) -> list[Piece]:
    if run.not_before > now:
        if run.retry_error and run.retry_error in run.reason:  # its model is unavailable
            error = cut_text(run.retry_error, 100)
            return [Piece(f"retries after {error} in {format_duration(run.not_before - now)}")]
        verb = "starts" if run.status is RunStatus.QUEUED else "resumes"
        after = f", after: {cut_text(run.reason, _REASON_LENGTH)}" if run.reason else ""
        return [Piece(f"{verb} in {format_duration(run.not_before - now)}{after}")]
    if run.owner is not None:
        return [Piece("worker "), Piece(run.owner, is_code=True), Piece(" died; ready for another worker")]
    return [Piece(describe_status(run.status, run.reason))]


def _describe_running(run: RunSummary, now: datetime) -> list[Piece]:
    phase = f" of phase {cut_text(run.phase, 40)}" if run.phase else ""
    if run.next_retry_at is not None and run.next_retry_at > now:
        error, pause = cut_text(run.retry_error, 100), format_duration(run.next_retry_at - now)
        return [Piece(f"retries after {error} in {pause} · step {run.steps + 1}{phase}")]
    quiet = now - run.updated_at
    stuck = f"no progress for {format_duration(quiet)} · " if quiet > QUIET_AFTER else ""
    pieces = [Piece(f"{stuck}step {run.steps + 1}{phase} · worker "), Piece(run.owner or "?", is_code=True)]
    if run.retries:
        error = cut_text(run.retry_error, 60)
        pieces.append(Piece(f" · {format_count(run.retries, 'retry', 'retries')}, last after {error}"))
    return pieces
