"""Interrupts of a graph as waiting calls of a run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from langgraph.types import Interrupt

from holdfast.adapters.call_arguments import make_fixed_schema
from holdfast.adapters.langgraph.graph_stream import to_plain_data
from holdfast.core.agents.calls import CallRequest, Effect
from holdfast.core.execution.calling.waits import WAITING
from holdfast.core.execution.step import StepContext
from holdfast.core.run.waiting import WaitKind

#: Stands in a waiting call in place of a tool's name.
INTERRUPT = "interrupt"


class Interrupts:
    """The interrupts of one run. Each is a question or an approval, and is answered by its id.

    A request of LangChain's `HumanInTheLoopMiddleware` about several calls is an approval of each: the first has the id
    of the interrupt and `-1`.
    """

    def __init__(self, context: StepContext, schemas: Mapping[str, dict[str, Any]]) -> None:
        """Resolve interrupts.

        Args:
            schemas: of the arguments of the graph's tools, by name: edited arguments have to fit.
        """
        self._context, self._schemas = context, schemas

    async def resolve(self, waiting: Sequence[Interrupt]) -> dict[str, Any]:
        """Return the answers to these interrupts, by id. The graph may continue as soon as there is one.

        Raises:
            RunWaiting: none of them has an answer.
        """
        answers: dict[str, Any] = {}
        for interrupt in waiting:
            answer = self.find_answer(interrupt.id, to_plain_data(interrupt.value))
            if answer is not WAITING:
                answers[interrupt.id] = answer
        if not answers:
            raise self._context.waits.make_error()
        # The write that consumes the answers comes before the nodes that read them.
        await self._context.attempt.saver.save(must_succeed=True)
        return answers

    def find_answer(self, interrupt_id: str, value: Any) -> Any:
        """Return the answer to an interrupt, or `WAITING`. The next save consumes the answer.

        Args:
            interrupt_id: names it in `App.answer`.
            value: as the graph gave it to `interrupt`, as plain data.
        """
        request = _read_request(interrupt_id, value)
        found = [self._resolve_question(each) for each in request.questions]
        return WAITING if WAITING in found else request.combine(found)

    def _resolve_question(self, question: "_Question") -> Any:
        waits = self._context.waits
        wait = waits.get(question.call_id)
        if wait is None:
            wait = waits.add(
                self._context.tool_calls.make_context(question.call_id, question.tool, question.arguments),
                question.kind,
                reason=question.reason,
                schema=self._find_schema(question),
            )
        answer = waits.resolve(question, wait)
        if answer is WAITING:
            return WAITING
        return _APPROVE if answer is None else answer.value

    def _find_schema(self, question: "_Question") -> dict[str, Any] | None:
        if question.kind != "approval":
            return None
        return self._schemas.get(question.tool) if question.is_editable else make_fixed_schema(question.arguments)


class _Answer(msgspec.Struct, frozen=True):
    """The answer to one question. Never `None`, which stands for an approval."""

    value: Any


#: A decision of LangChain's middleware.
_APPROVE = {"type": "approve"}


class _Question(CallRequest):
    """A question, or a call that needs an approval, as a call whose result is the answer."""

    def __init__(
        self, call_id: str, tool: str, arguments: Any, *, kind: WaitKind, reason: str, is_editable: bool = True
    ) -> None:
        super().__init__(call_id=call_id, tool=tool, arguments=arguments, effect=Effect.PURE)
        self.is_editable = is_editable
        self.kind: WaitKind = kind
        self.reason = reason

    def execute(self) -> Any:
        raise AssertionError("an interrupt is answered, not called")

    def error_result(self, text: str) -> _Answer:
        return _Answer({"type": "reject", "message": text})

    def reconciled_result(self, value: Any) -> _Answer:
        return _Answer(value)

    def replace_arguments(self, arguments: Any) -> _Answer:
        """Return an approval of the call with other arguments."""
        return _Answer({"type": "edit", "edited_action": {"name": self.tool, "args": arguments}})


class _InterruptRequest(msgspec.Struct, frozen=True):
    """What an interrupt asks, and how the answers become what `interrupt` returns."""

    questions: list[_Question]
    combine: Callable[[list[Any]], Any]


def _read_request(interrupt_id: str, value: Any) -> _InterruptRequest:
    actions = _list_actions(value)
    if not actions:
        return _InterruptRequest([_make_question(interrupt_id, value)], _get_only)
    if value.get("type") == "tool_approval":
        return _InterruptRequest([_make_approval(interrupt_id, actions[0])], _get_only)
    numbers = range(1, len(actions) + 1)
    ids = [interrupt_id] if len(actions) == 1 else [f"{interrupt_id}-{number}" for number in numbers]
    fixed = {
        each.get("action_name")
        for each in value.get("review_configs") or ()
        if isinstance(each, dict) and "edit" not in each.get("allowed_decisions", ["edit"])
    }
    questions = [
        _make_approval(call_id, action, is_editable=action["name"] not in fixed)
        for call_id, action in zip(ids, actions, strict=True)
    ]
    return _InterruptRequest(questions, _make_decisions)


def _list_actions(value: Any) -> list[dict[str, Any]]:
    """Return the tool calls that LangChain's `HumanInTheLoopMiddleware` asks about; none if it does not ask.

    It asks about all calls of a reply with one interrupt, or about each with an interrupt of its own.
    """
    if not isinstance(value, dict):
        return []
    actions = [value] if value.get("type") == "tool_approval" else value.get("action_requests")
    if not isinstance(actions, list):
        return []
    complete = all(isinstance(action, dict) and {"name", "args"} <= action.keys() for action in actions)
    return actions if complete else []


def _get_only(answers: list[Any]) -> Any:
    return answers[0]


def _make_decisions(answers: list[Any]) -> Any:
    return {"decisions": answers}


def _make_question(call_id: str, value: Any) -> _Question:
    return _Question(call_id, INTERRUPT, value, kind="question", reason=str(value))


def _make_approval(call_id: str, action: dict[str, Any], *, is_editable: bool = True) -> _Question:
    return _Question(
        call_id,
        action["name"],
        action["args"],
        kind="approval",
        reason=action.get("description", ""),
        is_editable=is_editable,
    )
