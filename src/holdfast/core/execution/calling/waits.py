"""The calls of one step that wait, and what ends each wait."""

import asyncio
from collections.abc import Container, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from holdfast.core.agents.calls import CallRequest
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.execution.attempt import Attempt
from holdfast.core.json_value import to_json_value
from holdfast.core.observer import CallAnswered
from holdfast.core.run.mail import CHILD_TOPIC, Mail, MailArrived
from holdfast.core.run.run_events import CallDecided
from holdfast.core.run.state import StepCalls
from holdfast.core.run.waiting import (
    ApprovalRequest,
    CallToken,
    Decision,
    Deferred,
    RunWaiting,
    Suspend,
    WaitingCall,
    WaitKind,
    format_denial,
    make_result_topic,
)


class StillWaiting:
    """The type of `WAITING`."""


#: What `ToolCalls.try_execute` returns for a call that waits.
WAITING: Final = StillWaiting()


class Waits:
    """The waiting calls of the current step. Kept in the run's state, so that they survive the process."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        #: Held while a decision is written that mail may refuse: no other branch of a workflow may act on it before.
        self._deciding = asyncio.Lock()

    def get(self, call_id: str) -> WaitingCall | None:
        """Return the wait of a call of the current step."""
        return self._attempt.state.calls.waits.get(call_id)

    def is_open(self, call_id: str) -> bool:
        """Whether the call waits, and neither an answer nor the time has ended the wait."""
        call = self.get(call_id)
        return call is not None and call.decision is None and not self._has_mail(call) and not self._is_due(call)

    def _has_mail(self, call: WaitingCall) -> bool:
        return any(map(self._attempt.mailbox.has, call.topics))

    def _is_due(self, call: WaitingCall) -> bool:
        """Whether the time alone ends the wait: no mail can."""
        return not call.topic and self._is_expired(call)

    def _is_expired(self, call: WaitingCall) -> bool:
        return call.expires_at is not None and call.expires_at <= self._attempt.services.clock.now()

    def undecided(self) -> frozenset[str]:
        """The calls that are not in doubt: they wait, and no answer was read."""
        return frozenset(call.call_id for call in self._attempt.state.calls.undecided)

    def add(
        self,
        context: ToolContext,
        kind: WaitKind,
        *,
        topic: str = "",
        other_topics: tuple[str, ...] = (),
        reason: str = "",
        expires_at: datetime | None = None,
        audience: str = "",
        has_token: bool = False,
        metadata: Any = None,
        timed: bool = False,
        schema: dict[str, Any] | None = None,
    ) -> WaitingCall:
        """Record that a call waits."""
        earlier = self.get(context.call_id)
        call = WaitingCall(
            run_id=context.run_id,
            call_id=context.call_id,
            step=context.step,
            tool=context.tool,
            kind=kind,
            arguments=to_json_value(context.arguments, f"the arguments of {context.tool}"),
            topic=topic or _make_topic(context, kind, earlier),
            other_topics=other_topics,
            reason=reason,
            metadata=to_json_value(metadata, f"the metadata of {context.tool}"),
            asked_at=self._attempt.services.clock.now(),
            expires_at=expires_at,
            audience=audience,
            has_token=has_token,
            timed=timed,
            schema=schema,
            approval=None if earlier is None else _find_approval(earlier),
        )
        self._set(call)
        return call

    def add_suspended(self, context: ToolContext, suspend: Suspend) -> WaitingCall:
        """Record that a tool has suspended its call."""
        return self.add(
            context,
            suspend.kind,
            topic=suspend.topic,
            other_topics=suspend.other_topics,
            reason=suspend.reason,
            expires_at=suspend.expires_at,
            audience=suspend.audience,
        )

    def add_children(self, context: ToolContext, waiting: Sequence[RunWaiting]) -> None:
        """Record that child runs of a call wait. The call is repeated when one of them may continue."""
        self.add(
            context,
            "child",
            topic=CHILD_TOPIC,
            reason="; ".join(each.reason for each in waiting),
            expires_at=min((each.wake_at for each in waiting if each.wake_at is not None), default=None),
            timed=all(each.only_for_time for each in waiting),
        )

    def _set(self, call: WaitingCall) -> None:
        self._attempt.state.calls = self._attempt.state.calls.set_wait(call)

    def add_approval(
        self,
        context: ToolContext,
        approval: ApprovalRequest,
        metadata: Any = None,
        *,
        schema: dict[str, Any] | None = None,
    ) -> WaitingCall:
        """Record that a call waits for a person's approval.

        Args:
            schema: of the arguments, for those that the person may give instead.
        """
        expires_at = None if approval.expires_in is None else self._attempt.services.clock.now() + approval.expires_in
        return self.add(
            context,
            "approval",
            reason=approval.reason,
            expires_at=expires_at,
            audience=approval.audience,
            metadata=metadata,
            schema=schema,
        )

    def add_deferred(self, context: ToolContext, deferred: Deferred) -> WaitingCall:
        """Record that a call waits for a result from outside."""
        expires_at = None if deferred.expires_in is None else self._attempt.services.clock.now() + deferred.expires_in
        state = self._attempt.state
        if context.token:
            state.calls = state.calls.add_token(CallToken.create(context.step, context.call_id, context.token))
        return self.add(
            context,
            "result",
            topic=make_result_topic(context.step, context.call_id),
            reason=deferred.reason,
            expires_at=expires_at,
            has_token=state.calls.has_token(context.call_id),
            metadata=deferred.metadata,
        )

    def resolve_early(self, request: CallRequest, context: ToolContext) -> Any:
        """Return the result of a call in doubt that came before its tool returned `Deferred`; `None` if none did."""
        topic = make_result_topic(context.step, context.call_id)
        if not self._attempt.mailbox.has(topic) or not self._attempt.state.calls.has_token(context.call_id):
            return None
        return self.resolve(request, self.add(context, "result", topic=topic, has_token=True))

    async def end_tokens(self, call_ids: Container[str]) -> None:
        """Accept no more results of these calls, except those that have arrived: their outcome is decided now."""
        mailbox = self._attempt.mailbox
        while unused := [
            token
            for token in self._attempt.state.calls.tokens
            if token.call_id in call_ids and not mailbox.has(token.topic)
        ]:
            calls = self._attempt.state.calls.remove_tokens({token.call_id for token in unused})
            await self._save_unless_mail(calls, [token.topic for token in unused])

    def resolve(self, request: CallRequest, wait: WaitingCall) -> Any:
        """Return the result of a call that waited, `WAITING`, or `None` if the call was approved and is to be made."""
        decision = self.decide(wait)
        if decision is None:
            return WAITING
        match decision.kind:
            case "expire" if wait.kind == "timer":
                return request.reconciled_result("The time has come.")
            case "expire":
                return request.expired_result(format_expiry(wait))
            case "approve":
                return None if decision.arguments is None else request.replace_arguments(decision.arguments)
            case "deny":
                return request.denied_result(format_denial(decision))
            case "value" if wait.kind == "run":  # the repeated call reads how the run has ended
                approved = None if wait.approval is None else wait.approval.arguments
                return None if approved is None else request.replace_arguments(approved)
            case "value":
                return request.reconciled_result(decision.value)

    def decide(self, call: WaitingCall) -> Decision | None:
        """Return what has ended the wait; `None` if the call still waits. The next save consumes the mail that ends it.

        A wait that mail can end expires only in `end_expired`.
        """
        if call.decision is not None:
            return call.decision
        mail = self._attempt.mailbox.peek(*call.topics)
        if mail is not None and call.kind == "run":  # the repeated call takes it
            decision = Decision(kind="value", at=mail.posted_at)
        elif mail is not None:
            self._attempt.mailbox.take(mail)
            decision = _read_decision(call, mail)
        elif self._is_due(call):
            decision = self._make_expiry()
        else:
            return None
        self._set_decision(call, decision)
        self._attempt.observers.emit(CallAnswered(call=call, decision=decision))
        return decision

    def _make_expiry(self, comment: str = "") -> Decision:
        return Decision(kind="expire", comment=comment, at=self._attempt.services.clock.now())

    def _set_decision(self, call: WaitingCall, decision: Decision) -> None:
        self._set(msgspec.structs.replace(call, decision=decision))
        self._record_decision(call, decision)

    def _record_decision(self, call: WaitingCall, decision: Decision) -> None:
        self._attempt.record_event(
            CallDecided(run_id=call.run_id, step=call.step, call_id=call.call_id, tool=call.tool, decision=decision)
        )

    async def end_expired(self) -> None:
        """Record that the waits whose time has come have ended, except those whose mail has arrived: it counts.

        Called before the calls of a resumed step are made. A wait that expires later ends in the next attempt.
        """
        async with self._deciding:
            while expired := [call for call in self._list_unanswered() if self._is_expired(call)]:
                await self._end_without_mail(expired, self._make_expiry())

    async def close(self) -> None:
        """End the waits for answers, because their turn ends. An answer that has arrived is read, and counts.

        Signals stay unread, for a later wait.
        """
        while waiting := [call for call in self._list_unanswered() if call.is_recorded]:
            await self._end_without_mail(waiting, self._make_expiry("its turn was ended"))
        for call in self._attempt.state.calls.undecided:
            if call.is_recorded:
                self.decide(call)

    def _list_unanswered(self) -> list[WaitingCall]:
        """Return the calls that mail can end, and that have none."""
        undecided = self._attempt.state.calls.undecided
        return [call for call in undecided if call.topic and call.kind != "child" and not self._has_mail(call)]

    async def _end_without_mail(self, calls: Sequence[WaitingCall], decision: Decision) -> None:
        """Record this decision about the calls, in a write that fails if mail for one of them has arrived.

        Then the mail is put into the mailbox, and no call has the decision.
        """
        state = self._attempt.state
        decided, events_before = state.calls, list(state.recorded_events)
        for call in calls:
            decided = decided.set_wait(msgspec.structs.replace(call, decision=decision))
            self._record_decision(call, decision)
        events = [event for event in state.recorded_events if event not in events_before]
        is_saved = False
        try:
            is_saved = await self._save_unless_mail(decided, [topic for call in calls for topic in call.topics])
        finally:
            if not is_saved and state.calls is not decided:  # otherwise the run was stopped after the write
                state.recorded_events[:] = [event for event in state.recorded_events if event not in events]
        for call in calls if is_saved else ():
            self._attempt.observers.emit(CallAnswered(call=call, decision=decision))

    async def _save_unless_mail(self, calls: StepCalls, topics: Sequence[str]) -> bool:
        """Save these calls, in a write that fails if mail of a topic has arrived.

        Then the mail is put into the mailbox, the calls are as before, and this returns False.
        """
        attempt, state = self._attempt, self._attempt.state
        before, state.calls, state.unless_mail = state.calls, calls, tuple(topics)
        try:
            await attempt.saver.save(must_succeed=True)
        except BaseException as exc:
            if state.unless_mail:  # it was not written
                state.calls, state.unless_mail = before, ()
            if not isinstance(exc, MailArrived):
                raise
            attempt.mailbox.deliver(exc.mail)
            if not any(map(attempt.mailbox.has, topics)):
                raise
            return False
        state.unless_mail = ()
        return True

    def end_child_wait(self, call: WaitingCall) -> WaitingCall | None:
        """Forget that child runs of a call wait: it is repeated. Return its approval, if it had one."""
        self.remove(call.call_id)
        if call.approval is None:
            return None
        approved = msgspec.structs.replace(call, kind="approval", decision=call.approval, approval=None)
        self._set(approved)
        return approved

    def remove(self, call_id: str) -> None:
        """Forget the wait of one call, if it waits."""
        if self.get(call_id) is not None:
            self._attempt.state.calls = self._attempt.state.calls.remove_wait(call_id)

    def make_error(self, call_ids: Container[str] | None = None) -> RunWaiting:
        """Return the error that lets the run wait.

        Args:
            call_ids: the calls whose results the code waits for. `None`: all that wait.
        """
        waiting = self._attempt.state.calls.undecided
        if call_ids is not None:
            waiting = tuple(call for call in waiting if call.call_id in call_ids)
        return RunWaiting(self._attempt.info.run_id, waiting)


def _find_approval(earlier: WaitingCall) -> Decision | None:
    """Return the approval of a call that waits again."""
    return earlier.approval or (None if earlier.kind == "run" else earlier.decision)


def _make_topic(context: ToolContext, kind: WaitKind, earlier: WaitingCall | None) -> str:
    """Return the topic of the answer. A call that was approved and waits again needs another one."""
    if kind == "timer":
        return ""
    place = f"{context.step}:{context.call_id}"
    return f"answer:{place}" if earlier is None else f"answer:{kind}:{place}"


def format_expiry(call: WaitingCall) -> str:
    """Return the text for the model that a call was not answered in time."""
    if call.expires_at is None:
        return "No answer."
    return f"No answer within {_format_period(call.expires_at - call.asked_at)}."


def _format_period(period: timedelta) -> str:
    """Return whole seconds in the largest unit that divides them, such as `2 days` or `90 minutes`."""
    seconds = max(1, round(period.total_seconds()))
    size, unit = next((size, unit) for size, unit in _PERIODS if seconds % size == 0)
    return f"{seconds // size} {unit}{'' if seconds == size else 's'}"


_PERIODS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


def _read_decision(call: WaitingCall, mail: Mail) -> Decision:
    if call.kind == "signal":
        return Decision(kind="value", value=msgspec.json.decode(mail.body), at=mail.posted_at)
    return msgspec.structs.replace(msgspec.json.decode(mail.body, type=Decision), at=mail.posted_at)
