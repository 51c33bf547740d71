"""Interrupts of a graph as waiting calls of a run."""

from collections.abc import Sequence
from typing import Any

from langgraph.types import Interrupt

from holdfast.core.errors import PayloadError
from holdfast.core.execution.steps import StepContext
from holdfast.core.execution.waits import Expired
from holdfast.core.json_value import to_json_value
from holdfast.core.tool_context import ToolContext
from holdfast.core.waiting import Decision

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
            wait = waits.get(interrupt.id)
            if wait is None:
                value = _to_plain_data(interrupt.value)
                reason = value if isinstance(value, str) else str(interrupt.value)
                wait = waits.add(self._make_context(interrupt.id, value), "question", reason=reason)
            if (decision := waits.resolve(wait)) is not None:
                answers[interrupt.id] = _get_answer(decision)
        if not answers:
            raise waits.make_error()
        # The write that consumes the answers comes before the nodes that read them.
        await self._context.run.save(must_succeed=True)
        return answers

    def _make_context(self, call_id: str, value: Any) -> ToolContext:
        run = self._context.run
        return ToolContext(
            info=run.info,
            step=self._context.state.steps + 1,
            call_id=call_id,
            tool=INTERRUPT,
            arguments=value,
            clock=run.clock,
        )


def _get_answer(decision: Decision | Expired) -> Any:
    """Return what `interrupt` returns in the graph."""
    if isinstance(decision, Expired):
        return decision.text
    return {"type": "reject", "message": decision.comment} if decision.kind == "deny" else decision.value


def _to_plain_data(value: Any) -> Any:
    try:
        return to_json_value(value, "the value of an interrupt")
    except PayloadError:
        return str(value)
