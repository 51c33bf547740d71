"""Interrupts of a graph as waiting calls of a run."""

from collections.abc import Sequence
from typing import Any

import msgspec
from langgraph.types import Interrupt

from holdfast.core.effects import Effect
from holdfast.core.errors import PayloadError
from holdfast.core.execution.calls import CallRequest
from holdfast.core.execution.steps import StepContext
from holdfast.core.json_value import to_json_value
from holdfast.core.tool_context import ToolContext

#: Of a waiting call, in place of a tool's name.
INTERRUPT = "interrupt"


class Interrupts:
    """The interrupts of one run. Each is a question, and is answered by its id."""

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
                wait = waits.add(self._make_context(call), "question", reason=str(call.arguments))
            answer = waits.resolve(call, wait)
            if isinstance(answer, _Answer):
                answers[interrupt.id] = answer.value
        if not answers:
            raise waits.make_error()
        # The write that consumes the answers comes before the nodes that read them.
        await self._context.run.save(must_succeed=True)
        return answers

    def _make_context(self, call: CallRequest) -> ToolContext:
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


def _make_call(interrupt: Interrupt) -> CallRequest:
    """Return the interrupt as a call whose result is its answer."""
    return CallRequest(
        call_id=interrupt.id,
        tool=INTERRUPT,
        arguments=_to_plain_data(interrupt.value),
        effect=Effect.PURE,
        execute=_refuse,
        error_result=_reject,
        reconciled_result=_Answer,
    )


def _reject(text: str) -> _Answer:
    return _Answer({"type": "reject", "message": text})


async def _refuse() -> Any:
    raise AssertionError("an interrupt is answered, not called")


def _to_plain_data(value: Any) -> Any:
    try:
        return to_json_value(value, "the value of an interrupt")
    except PayloadError:
        return str(value)
