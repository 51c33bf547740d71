"""The calls of one step that wait, and what ends each wait."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from holdfast.core.events import CallDecided
from holdfast.core.execution.calls import ExecutableCall
from holdfast.core.execution.run import RunExecution
from holdfast.core.mail import CHILD_TOPIC
from holdfast.core.tool_context import ToolContext
from holdfast.core.waiting import ApprovalRequest, Decision, RunWaiting, Suspend, WaitingCall, WaitKind, describe_waits

#: Among a run's annotations: its waiting calls, by call id.
WAITS_KEY = "waits"


class StillWaiting:
    """The type of `WAITING`."""


#: What `StepContext.call` returns for a call that waits.
WAITING: Final = StillWaiting()


class Expired(msgspec.Struct, frozen=True):
    """The wait ended without an answer."""

    call: WaitingCall

    @property
    def text(self) -> str:
        if self.call.kind == "timer":
            return "The time has come."
        assert self.call.expires_at is not None
        return f"No answer within {self.call.expires_at - self.call.asked_at}."


class Waits:
    """The waiting calls of the current step. Kept in the run's annotations, so that they survive the process."""

    def __init__(self, run: RunExecution) -> None:
        self._run = run

    def get(self, call_id: str) -> WaitingCall | None:
        """Return the wait of a call of the current step."""
        stored = self._run.state.annotations.get(WAITS_KEY, {}).get(call_id)
        if stored is None:
            return None
        call = msgspec.convert(stored, WaitingCall)
        return call if call.step == self._run.state.steps + 1 else None

    def undecided(self) -> frozenset[str]:
        """The calls that were never started: they wait, and no answer was read."""
        return frozenset(
            call_id
            for call_id in self._run.state.annotations.get(WAITS_KEY, {})
            if (call := self.get(call_id)) is not None and call.decision is None and call.kind != "child"
        )

    def add(
        self,
        context: ToolContext,
        kind: WaitKind,
        *,
        topic: str = "",
        reason: str = "",
        expires_at: datetime | None = None,
        audience: str = "",
        token: str = "",
        timed: bool = False,
    ) -> WaitingCall:
        """Record that a call waits."""
        call = WaitingCall(
            run_id=context.run_id,
            call_id=context.call_id,
            step=context.step,
            tool=context.tool,
            kind=kind,
            arguments=context.arguments,
            topic=topic or ("" if kind == "timer" else f"answer:{context.step}:{context.call_id}"),
            reason=reason,
            asked_at=self._run.clock.now(),
            expires_at=expires_at,
            audience=audience,
            token=token,
            timed=timed,
        )
        self._set(call)
        return call

    def add_suspended(self, context: ToolContext, suspend: Suspend) -> WaitingCall:
        """Record that a tool has suspended its call."""
        return self.add(
            context,
            suspend.kind,
            topic=suspend.topic,
            reason=suspend.reason,
            expires_at=suspend.expires_at,
            audience=suspend.audience,
        )

    def add_children(self, context: ToolContext, waiting: Sequence[RunWaiting]) -> None:
        """Record that child runs of a call wait. The call is made again when one of them may continue."""
        self.add(
            context,
            "child",
            topic=CHILD_TOPIC,
            reason="; ".join(describe_waits(each.calls) for each in waiting),
            expires_at=min((each.wake_at for each in waiting if each.wake_at is not None), default=None),
            timed=all(each.only_for_time for each in waiting),
        )

    def _set(self, call: WaitingCall) -> None:
        # New objects each time: a save compares annotations with those it saved last.
        waits = self._run.state.annotations.get(WAITS_KEY, {})
        self._run.state.annotations[WAITS_KEY] = {**waits, call.call_id: msgspec.to_builtins(call)}

    def add_approval(self, context: ToolContext, approval: ApprovalRequest) -> WaitingCall:
        """Record that a call waits for a person's approval."""
        expires_at = None if approval.expires_in is None else self._run.clock.now() + approval.expires_in
        return self.add(context, "approval", reason=approval.reason, expires_at=expires_at, audience=approval.audience)

    def resolve(self, request: ExecutableCall, wait: WaitingCall) -> Any:
        """Return the result of a call that waited, `WAITING`, or `None` if the call was approved and is to be made."""
        decision = self._decide(wait)
        if decision is None:
            return WAITING
        if isinstance(decision, Expired):
            done = wait.kind == "timer"
            return request.reconciled_result(decision.text) if done else request.error_result(decision.text)
        match decision.kind:
            case "approve":
                return None if decision.arguments is None else request.replace_arguments(decision.arguments)
            case "deny":
                reason = f": {decision.comment}" if decision.comment else ""
                return request.error_result(f"The call was denied{reason}.")
            case "value":
                return request.reconciled_result(decision.value)

    def _decide(self, call: WaitingCall) -> Decision | Expired | None:
        """Return what has ended the wait; `None` if the call still waits. The next save consumes the mail that ends it.

        An answer that arrived before the expiry is read counts, however late it is read.
        """
        if call.decision is not None:
            return call.decision
        mail = self._run.mailbox.peek(call.topic) if call.topic else None
        if mail is None:
            if call.expires_at is None or call.expires_at > self._run.clock.now():
                return None
            self.remove(call.call_id)
            return Expired(call)
        self._run.mailbox.take(mail)
        if call.kind == "signal":
            decision = Decision(kind="value", value=msgspec.json.decode(mail.body))
        else:
            decision = msgspec.json.decode(mail.body, type=Decision)
        decision = msgspec.structs.replace(decision, at=mail.posted_at)
        self._set(msgspec.structs.replace(call, decision=decision))
        self._run.note(
            CallDecided(run_id=call.run_id, step=call.step, call_id=call.call_id, tool=call.tool, decision=decision)
        )
        return decision

    def remove(self, call_id: str) -> None:
        """Forget the wait of one call."""
        waits = self._run.state.annotations[WAITS_KEY]
        self._run.state.annotations[WAITS_KEY] = {key: wait for key, wait in waits.items() if key != call_id}

    def clear(self) -> None:
        """Forget the waits: the step is finished."""
        self._run.state.annotations.pop(WAITS_KEY, None)

    def make_error(self) -> RunWaiting:
        """Return the error that lets the run wait."""
        stored = self._run.state.annotations.get(WAITS_KEY, {})
        calls = tuple(call for call_id in stored if (call := self.get(call_id)) is not None and call.decision is None)
        return RunWaiting(self._run.info.run_id, calls)


def read_waits(annotations: dict[str, Any]) -> tuple[WaitingCall, ...]:
    """Return the undecided waits among the annotations of a stored run."""
    calls = [msgspec.convert(each, WaitingCall) for each in annotations.get(WAITS_KEY, {}).values()]
    return tuple(call for call in calls if call.decision is None)
