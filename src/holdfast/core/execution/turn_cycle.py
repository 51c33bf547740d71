"""The turns of a conversation. Each attempt of its run begins or resumes one turn, ends it, and lets the run wait."""

import asyncio
from typing import Any

from holdfast.core.errors import RunCancelled, TurnInterrupted, format_error
from holdfast.core.execution.attempt import Attempt
from holdfast.core.loop import Loop, PendingCall
from holdfast.core.run.mail import MESSAGE_TOPIC, Mail
from holdfast.core.run.state import NO_CALLS
from holdfast.core.run.status import AttemptEnd
from holdfast.core.run.turns import (
    CLOSE_TOPIC,
    INTERRUPT_TOPIC,
    TURN_TOPIC,
    ConversationIdle,
    Totals,
    TurnInput,
    TurnMessage,
    TurnRecord,
    TurnStatus,
    summarize_input,
)
from holdfast.core.run.waiting import Decision, WaitingCall, format_denial

#: Sent to the model as the result of a call that had none when its turn ended.
CLOSED_CALL = (
    "This call has no result, because its turn was ended before. If the call was started, it may or may not have taken "
    "effect."
)
#: The same, for a call that was approved meanwhile.
_APPROVED_CALL = "This call was approved, but its turn was ended before it was made."


def open_turn(attempt: Attempt) -> Mail | None:
    """Return the message that begins the next turn; `None` if the current turn is resumed, or the conversation closes.

    Raises:
        ConversationIdle: there is no message.
        TurnInterrupted: the current turn waits, and a message interrupts it.
    """
    state, mailbox = attempt.state, attempt.mailbox
    if state.turn is not None:
        state.turn_totals = state.turn.totals
        if state.calls.waits:
            raise_if_interrupted(attempt)
        return None
    state.turn_totals = Totals.from_state(state)
    mail = _find_next(attempt)
    if mail is None and not mailbox.has(CLOSE_TOPIC):
        raise ConversationIdle(attempt.info.run_id)
    return mail


def _find_next(attempt: Attempt) -> Mail | None:
    return attempt.mailbox.peek(INTERRUPT_TOPIC) or attempt.mailbox.peek(TURN_TOPIC, MESSAGE_TOPIC)


def raise_if_interrupted(attempt: Attempt) -> None:
    """Raise `TurnInterrupted` if a message interrupts the current turn."""
    if attempt.info.conversation and attempt.mailbox.has(INTERRUPT_TOPIC):
        raise TurnInterrupted(attempt.info.run_id)


def begin_turn(attempt: Attempt, mail: Mail) -> None:
    """Begin a turn. The caller adds its messages before anything is awaited: the save of both consumes the mail."""
    state, message = attempt.state, TurnMessage.from_mail(mail)
    attempt.mailbox.take(mail)
    state.history.turn_start = len(state.history)
    state.turn = TurnInput(
        turn_id=mail.mail_id,
        number=len(state.turns) + 1,
        prompt=summarize_input(message.prompt),
        digest=message.digest,
        at=attempt.services.clock.now(),
        totals=state.turn_totals,
    )


def ends_turn(attempt: Attempt, end: AttemptEnd, error: BaseException | None) -> bool:
    """Whether the end of this attempt ends a turn, and the conversation continues."""
    if not attempt.info.conversation or not end.is_terminal:
        return False
    if isinstance(error, RunCancelled | asyncio.CancelledError) and attempt.stop_state.is_stopped:
        return False  # the conversation was cancelled
    return error is not None or attempt.state.turn is not None


def end_turn(attempt: Attempt, output: Any, error: BaseException | None) -> None:
    """Record the end of the current turn. The next write of the state contains it."""
    state = attempt.state
    if state.turn is None:  # it failed before it began
        mail = _find_next(attempt)
        if mail is None:
            return
        begin_turn(attempt, mail)
        assert state.turn is not None
    if error is not None:
        _close_calls(attempt)
    attempt.saver.update_elapsed()
    turn, before = state.turn, state.turn.totals
    state.turn = None
    status: TurnStatus = "done"
    if error is not None:
        status = "interrupted" if isinstance(error, TurnInterrupted) else "failed"
    state.turns.append(
        TurnRecord(
            input=turn,
            status=status,
            output=output,
            error="" if error is None else format_error(error),
            usage=state.usage - before.usage,
            steps=state.steps - before.steps,
            elapsed=state.elapsed - before.elapsed,
            at=attempt.services.clock.now(),
        )
    )


def _close_calls(attempt: Attempt) -> None:
    """Give every call of an unanswered reply a result: no provider accepts a history without them."""
    state, loop = attempt.state, attempt.loop
    pending = loop.pending_calls(state.history)
    if not pending:
        state.calls = NO_CALLS
        return
    results: list[Any] = []
    for call in pending:
        result = state.results.get(call.call_id)
        if result is None:
            result = _make_closed_result(loop, call, state.calls.waits.get(call.call_id))
        if not any(result is each for each in results):
            results.append(result)
    state.history.extend(results)
    state.finish_step()


def _make_closed_result(loop: Loop, call: PendingCall, wait: WaitingCall | None) -> Any:
    """Return the result of a call whose turn ends: the answer to its wait, if there was one in time."""
    decision = None if wait is None else wait.decision
    match decision:
        case Decision(kind="value"):
            return loop.make_result(call, decision.value)
        case Decision(kind="deny"):
            return loop.make_result(call, format_denial(decision), error=True)
        case Decision(kind="approve") if wait is not None and wait.kind == "approval":
            return loop.make_result(call, _APPROVED_CALL, error=True)
    return loop.make_result(call, CLOSED_CALL, error=True)
