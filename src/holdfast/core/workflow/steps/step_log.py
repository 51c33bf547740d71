"""The recorded steps of a workflow, and the identity by which its code finds them in any order."""

import asyncio
import hashlib
from collections.abc import Container, Iterable
from typing import Any

import msgspec

from holdfast.core.agents.calls import Effect
from holdfast.core.execution.native_calls import FIRST, list_abandoned
from holdfast.core.run.messages import Reply, ToolCall, ToolResult
from holdfast.core.workflow.steps.step_calls import StepCall
from holdfast.core.workflow.steps.step_errors import AmbiguousStep

#: The step that records that a saga has failed.
SAGA = "saga"

#: The step that records that a workflow has ended for good, before its steps are undone.
WORKFLOW_SCOPE = "workflow"


class StepLog:
    """What a workflow has recorded so far, from its history."""

    def __init__(self, history: Iterable[Any] = (), first_step: int = 0) -> None:
        self._first_step = first_step
        #: The calls that were announced, by id, in their order.
        self.calls: dict[str, ToolCall] = {}
        self.results: dict[str, ToolResult] = {}
        #: Calls of branches that lost a `first`.
        self.abandoned: set[str] = set()
        #: The place of each call among all of the run, from one.
        self.numbers: dict[str, int] = {}
        for message in history:
            if isinstance(message, Reply):
                for call in message.tool_calls:
                    self.add_call(call)
            elif isinstance(message, ToolResult):
                self.add_result(message)

    def add_call(self, call: ToolCall) -> None:
        self.calls[call.id] = call
        self.numbers.setdefault(call.id, self._first_step + len(self.numbers) + 1)

    def add_result(self, result: ToolResult) -> None:
        self.results[result.call_id] = result
        if result.tool == FIRST:
            self.abandoned.update(list_abandoned(result))

    @property
    def has_failed(self) -> bool:
        """Whether the workflow has recorded its own end, before its steps are undone."""
        return any(result.tool == WORKFLOW_SCOPE for result in self.results.values())

    def is_settled_without_effect(self, call: ToolCall) -> bool:
        """Whether the code need not repeat this call: it lost interest, or a person has decided about it."""
        result = self.results.get(call.id)
        if call.id in self.abandoned:
            return True
        if call.effect == Effect.TRANSACTION:  # without a value it was rolled back
            return result is None or result.error
        if result is None or not result.error:
            return False
        return not isinstance(result.content, dict) or self.is_cancelled(result)

    def is_cancelled(self, result: ToolResult) -> bool:
        """Whether this is the error of a call that the code has cancelled itself."""
        return isinstance(result.content, dict) and result.content.get("kind") == "cancelled"


class StepIdentity:
    """Gives ids to the calls of one attempt: name, key or digest of the arguments, ordinal among equals.

    No id depends on the order of different calls, so parallel branches find their own results after a crash.
    """

    def __init__(self, restarts: int = 0, abandoned: Container[str] = ()) -> None:
        """Give ids to calls.

        Args:
            abandoned: ids of calls in branches that have lost a race. They stay taken: an equal call elsewhere is
                another one.
        """
        # Calls of different lives differ, also for those who know them by their idempotency keys.
        self._suffix = f"@{restarts}" if restarts else ""
        self._abandoned = abandoned
        self._counts: dict[str, int] = {}
        #: The task that made each call first.
        self._tasks: dict[str, asyncio.Task[Any] | None] = {}

    def assign(self, call: StepCall, lost: Container[str] = ()) -> str:
        """Return the id of a call.

        Args:
            lost: those of `abandoned` that the call may be, as it is made in such a branch.

        Raises:
            AmbiguousStep: another task makes the same call, and it is not `pure`.
        """
        place = f"{call.tool}:{call.key or make_digest(call.arguments)}"
        task = asyncio.current_task()
        shared = self._tasks.setdefault(place, task) is not task
        if shared and (call.effect is not Effect.PURE or call.tool in (FIRST, SAGA)):
            raise AmbiguousStep(call.tool)
        while True:
            self._counts[place] = self._counts.get(place, 0) + 1
            call_id = f"{place}:{self._counts[place]}{self._suffix}"
            if call_id not in self._abandoned or call_id in lost:
                return call_id


def make_digest(arguments: Any) -> str:
    """Return a digest of plain data, in which the order of keys makes no difference."""
    return hashlib.sha256(msgspec.json.encode(arguments, order="sorted")).hexdigest()[:16]
