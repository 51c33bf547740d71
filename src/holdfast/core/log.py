"""The log of runs: an observer of their attempts and retries. The data of a line is in fields of its record too.

docs/how-to/observability.md has the table of the fields. No line has a message, a prompt or a result of a run.
"""

import logging
import traceback
from typing import Any

from holdfast.core.errors import RunParked, format_error
from holdfast.core.observer import AttemptControl, AttemptEnded, AttemptStarted, CallFailed, ObservedEvent, Retried
from holdfast.core.redaction import Redact
from holdfast.core.run.info import RunInfo
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd
from holdfast.core.run.waiting import BudgetExhausted, RunWaiting

#: A separate logger, for hosts that show the life cycle of their runs in another way.
LIFECYCLE_LOG = logging.getLogger("holdfast.lifecycle")

#: A separate logger, for hosts that show retries in another way.
RETRY_LOG = logging.getLogger("holdfast.retry")

#: A logger of its own, for hosts that show errors of their tools in another way.
TOOL_LOG = logging.getLogger("holdfast.tools")

_MAX_ERROR_LENGTH = 300


def format_short(error: BaseException) -> str:
    """Return the class and the beginning of the text of an error."""
    text = format_error(error)
    return text if len(text) <= _MAX_ERROR_LENGTH else f"{text[:_MAX_ERROR_LENGTH]}…"


class AttemptLogger:
    """Logs how one attempt begins and ends, its retries, and the errors of its tools."""

    kinds: frozenset[type] = frozenset({AttemptStarted, AttemptEnded, Retried, CallFailed})

    def __init__(self, attempt: AttemptControl, redact: Redact | None) -> None:
        self._redact = redact
        self._info, self._state, self._taken_from = attempt.info, attempt.state, attempt.taken_from

    def observe(self, event: ObservedEvent) -> None:
        match event:
            case AttemptStarted():
                _log_start(self._info, self._state, self._taken_from)
            case AttemptEnded():
                _log_end(self._info, self._state, event, self._redact)
            case Retried():
                _log_retry(self._info, self._state, event, self._redact)
            case CallFailed():
                _log_failed_call(event, self._redact)


class RunLog:
    """Makes the loggers of all attempts."""

    def __init__(self, redact: Redact | None = None) -> None:
        """Log errors without what `redact` removes from their texts."""
        self._redact = redact

    def begin(self, attempt: AttemptControl) -> AttemptLogger:
        return AttemptLogger(attempt, self._redact)


def _log_start(info: RunInfo, state: RunState, taken_from: str | None) -> None:
    if not LIFECYCLE_LOG.isEnabledFor(logging.INFO):
        return
    if taken_from is not None:
        more = {"previous_worker": taken_from}
        _log(logging.INFO, "taken_over", f"taken over from worker {taken_from}", info, state, **more)
    elif state.history or state.steps:
        _log(logging.INFO, "resumed", f"resumed after step {state.steps}", info, state)
    else:
        _log(logging.INFO, "started", "started", info, state)


def _log_end(info: RunInfo, state: RunState, ended: AttemptEnded, redact: Redact | None) -> None:
    end, error = ended.end, ended.error
    level, text = _describe_end(end, error, state.steps)
    if not LIFECYCLE_LOG.isEnabledFor(level):
        return
    fields: dict[str, Any] = {"elapsed_seconds": round(state.elapsed.total_seconds(), 3)}
    if ended.turn_ended:
        fields["turn"], text = len(state.turns), f"turn {len(state.turns)} {text}"
    if isinstance(error, RunParked):
        fields |= {"error": type(error).__name__, "reason": error.message}
    elif isinstance(error, RunWaiting):
        fields |= {"reason": _describe_wait(error)}
    elif error is not None:
        fields |= {"error": type(error).__name__, "reason": format_short(error)}
    if redact is not None:
        text = str(redact(text))
        fields = {name: redact(value) for name, value in fields.items()}
    _log(level, end.value, text, info, state, **fields)


def _describe_end(end: AttemptEnd, error: BaseException | None, steps: int) -> tuple[int, str]:
    """Return the level and the text."""
    match end:
        case AttemptEnd.WAITING if isinstance(error, RunWaiting):
            return logging.INFO, f"waits after step {steps} for {_describe_wait(error)}"
        case AttemptEnd.PARKED if isinstance(error, RunParked):
            return logging.WARNING, f"parked after step {steps}: {error.message}"
        case AttemptEnd.LOST if error is None:
            return logging.INFO, "not executed here: another attempt has created it"
        case AttemptEnd.LOST:
            return logging.WARNING, f"lost after step {steps}: another worker owns it"
        case AttemptEnd.INTERRUPTED | AttemptEnd.FAILED if error is not None:
            level = logging.ERROR if end is AttemptEnd.FAILED else logging.INFO
            return level, f"{end} after step {steps}: {format_short(error)}"
    return logging.INFO, f"{end} after step {steps}"


def _describe_wait(error: RunWaiting) -> str:
    """Return the kinds of what the run waits for: the question of a tool is part of the conversation."""
    if isinstance(error, BudgetExhausted):
        return error.reason
    return ", ".join(sorted({call.kind for call in error.calls})) or "a message"


def log_parked(run_id: str, agent: str, step: int, reason: str) -> None:
    """Log that a worker parked a run without executing it.

    Args:
        agent: empty for a run that cannot be read.
    """
    fields = {"event": "parked", "run_id": run_id, "agent": agent, "step": step, "reason": reason}
    LIFECYCLE_LOG.warning("run %s%s: parked: %s", run_id, agent and f" of {agent}", reason, extra=fields)


def describe_retry(event: Retried) -> str:
    """Return a sentence about a try that failed and is followed by another one."""
    pause = f"{event.delay.total_seconds():.3g} s"
    called = event.tool or "the model"
    return f"try {event.failed_tries} of {called} failed, next in {pause}: {format_short(event.error)}"


def _log_retry(info: RunInfo, state: RunState, event: Retried, redact: Redact | None) -> None:
    text, reason = describe_retry(event), format_short(event.error)
    if redact is not None:
        text, reason = str(redact(text)), str(redact(reason))
    fields = {
        "event": "retry",
        "run_id": info.run_id,
        "agent": info.agent_name,
        "step": state.steps + 1,
        "tool": event.tool,
        "call_id": event.call_id,
        "attempt": event.failed_tries,
        "delay_seconds": event.delay.total_seconds(),
        "error": type(event.error).__name__,
        "reason": reason,
    }
    RETRY_LOG.warning("run %s: %s", info.run_id, text, extra=fields)


def _log_failed_call(event: CallFailed, redact: Redact | None) -> None:
    """Log the error of a tool with its traceback. With a redactor, the traceback is part of the text."""
    call, error = event.call, event.error
    reason = format_short(error)
    text = f"call {call.call_id} of {call.tool} failed in step {call.step}: {reason}"
    if redact is not None:
        trace = "".join(traceback.format_exception(error)).rstrip()
        text, reason = str(redact(f"{text}\n{trace}")), str(redact(reason))
    fields = {
        "event": "call_failed",
        "run_id": call.run_id,
        "agent": call.info.agent_name,
        "step": call.step,
        "tool": call.tool,
        "call_id": call.call_id,
        "error": type(error).__name__,
        "reason": reason,
    }
    TOOL_LOG.warning("run %s: %s", call.run_id, text, extra=fields, exc_info=error if redact is None else None)


def _log(level: int, event: str, text: str, info: RunInfo, state: RunState, **more: Any) -> None:
    fields = {
        "event": event,
        "run_id": info.run_id,
        "agent": info.agent_name,
        "step": state.steps,
        "parent_run_id": info.parent_run_id or "",
        **more,
    }
    LIFECYCLE_LOG.log(level, "run %s of %s: %s", info.run_id, info.agent_name, text, extra=fields)
