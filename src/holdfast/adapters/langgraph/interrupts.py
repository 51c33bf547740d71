"""Interrupts of a graph as waiting calls of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from langgraph.types import Interrupt

from holdfast.adapters.langgraph.stream import to_plain_data
from holdfast.core.effects import Effect
from holdfast.core.execution.calls import CallRequest
from holdfast.core.execution.steps import StepContext
from holdfast.core.execution.waits import WAITING
from holdfast.core.tool_context import ToolContext
from holdfast.core.waiting import WaitKind

#: Of a waiting call, in place of a tool's name.
INTERRUPT = "interrupt"


class Interrupts:
    """The interrupts of one run. Each is a question or an approval, and is answered by its id."""

    def __init__(self, context: StepContext) -> None:
        self._context = context

    async def resolve(self, waiting: Sequence[Interrupt]) -> dict[str, Any]:
        """Return the answers to these interrupts, by id. The graph may continue as soon as there is one.

        Raises:
            RunWaiting: none of them has an answer.
        """
        waits = self._context.waits
        answers: dict[str, Any] = {}
        for interrupt in waiting:
            call = _make_call(interrupt)
            wait = waits.get(interrupt.id)
            if wait is None:
                wait = waits.add(self._make_context(call), call.kind, reason=call.reason)
            answer = waits.resolve(call, wait)
            if answer is not WAITING:
                answers[interrupt.id] = call.approved if answer is None else answer.value
        if not answers:
            raise waits.make_error()
        # The write that consumes the answers comes before the nodes that read them.
        await self._context.run.save(must_succeed=True)
        return answers

    def _make_context(self, call: "_Question") -> ToolContext:
        run = self._context.run
        return ToolContext(
            info=run.info,
            step=self._context.state.steps + 1,
            call_id=call.call_id,
            tool=call.tool,
            arguments=call.arguments,
            clock=run.clock,
        )


class _Answer(msgspec.Struct, frozen=True):
    """What `interrupt` returns in the graph."""

    value: Any


@dataclass(slots=True, kw_only=True)
class _Question(CallRequest):
    """An interrupt as a call whose result is its answer."""

    kind: WaitKind = "question"
    reason: str = ""

    @property
    def approved(self) -> Any:
        """What `interrupt` returns for an approval."""
        return {"decisions": [{"type": "approve"}]}

    def replace_arguments(self, arguments: Any) -> Any:
        """Return an approval of the action with other arguments."""
        action = {"name": self.tool, "args": arguments}
        return _Answer({"decisions": [{"type": "edit", "edited_action": action}]})


def _make_call(interrupt: Interrupt) -> _Question:
    value = to_plain_data(interrupt.value)
    action = _get_action(value)
    if action is None:
        return _Question(
            call_id=interrupt.id,
            tool=INTERRUPT,
            arguments=value,
            reason=str(value),
            effect=Effect.PURE,
            execute=_refuse,
            error_result=_reject,
            reconciled_result=_Answer,
        )
    return _Question(
        call_id=interrupt.id,
        tool=action["name"],
        arguments=action["args"],
        kind="approval",
        reason=action.get("description", ""),
        effect=Effect.PURE,
        execute=_refuse,
        error_result=_reject_action,
        reconciled_result=_Answer,
    )


def _get_action(value: Any) -> dict[str, Any] | None:
    """Return the tool call that LangChain's `HumanInTheLoopMiddleware` asks about, if it is one.

    A request about several calls is a question: each of them may be decided in another way.
    """
    actions = value.get("action_requests") if isinstance(value, dict) else None
    if not isinstance(actions, list) or len(actions) != 1 or not isinstance(actions[0], dict):
        return None
    action: dict[str, Any] = actions[0]
    return action if {"name", "args"} <= action.keys() else None


def _reject(text: str) -> _Answer:
    return _Answer({"type": "reject", "message": text})


def _reject_action(text: str) -> _Answer:
    return _Answer({"decisions": [{"type": "reject", "message": text}]})


async def _refuse() -> Any:
    raise AssertionError("an interrupt is answered, not called")
