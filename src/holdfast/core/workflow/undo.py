"""Undo: when a workflow or a part of it fails, the `undo` of its recorded steps is called, the last step first."""

import inspect
import logging
from contextvars import Token
from types import TracebackType
from typing import Any, Self

import msgspec

from holdfast.core.agents.calls import Effect
from holdfast.core.agents.retry import Retry
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.execution.call_retries import retry_call
from holdfast.core.workflow.step_calls import StepCall, ToolStep, ValueStep
from holdfast.core.workflow.step_errors import StepError, StepFailed
from holdfast.core.workflow.step_log import SAGA
from holdfast.core.workflow.workflow_run import BRANCH_CALLS, FAILED_SCOPE, WorkflowRun

log: logging.Logger = logging.getLogger("holdfast.run")

#: An undo is tried again after any error.
UNDO_RETRY = Retry(max_tries=4, retry_on=Exception)


class UndoStep(StepCall):
    """Undoes one recorded step. It may be repeated after a crash."""

    __slots__ = ("_step", "_value")

    def __init__(self, step: ToolStep, value: Any) -> None:
        super().__init__(
            step.attempt,
            tool=f"undo {step.tool}",
            arguments={"call_id": step.call_id, "arguments": step.arguments},
            effect=Effect.IDEMPOTENT,
            key=step.call_id,
        )
        self._step, self._value = step, value

    async def perform(self) -> Any:
        return await retry_call(self.attempt, UNDO_RETRY, self.tool, self.call_id, self._undo)

    async def _undo(self) -> Any:
        step = self._step
        assert step.undo is not None, "only steps with an undo are undone"
        context = ToolContext(
            info=self.attempt.info,
            step=step.number,
            call_id=step.call_id,
            tool=step.tool,
            arguments=step.arguments,
            clock=self.attempt.services.clock,
        )
        returned = step.undo(context, self._value)
        return await returned if inspect.isawaitable(returned) else returned


class Saga:
    """Undoes the steps that were made within it if it is left by an exception, which then is raised again.

    That it has failed is recorded first: a later attempt does not leave it in another way.
    """

    def __init__(self, run: WorkflowRun, name: str = SAGA, key: str | None = None) -> None:
        self._run = run
        self._step = ValueStep(run.attempt, name, self._get_error, key=key)
        self._calls: set[str] = set()
        self._error: StepError | None = None
        self._is_recorded = False
        self._tokens: tuple[Token[Any], Token[Any]] | None = None

    def _get_error(self) -> Any:
        return msgspec.to_builtins(self._error)

    async def __aenter__(self) -> Self:
        recorded = self._run.find(self._step)
        if recorded is not None:
            self._error, self._is_recorded = StepError.from_content(recorded.content), True
        self._tokens = (
            BRANCH_CALLS.set((*BRANCH_CALLS.get(), self._calls)),
            FAILED_SCOPE.set(self._error or FAILED_SCOPE.get()),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._tokens is not None:
            BRANCH_CALLS.reset(self._tokens[0])
            FAILED_SCOPE.reset(self._tokens[1])
        if error is not None and not isinstance(error, Exception):
            return  # the code is unwound, or the run is stopped
        if error is None and not self._is_recorded:
            return
        if FAILED_SCOPE.get() is not None:
            return  # what is around it has failed, and undoes its steps
        steps = self._run.take_undoable(self._calls)
        if not self._is_recorded:
            if not steps:
                return
            if error is not None:
                self._error = StepError.from_exception(error, ())
            await self._run.make(self._step)
        for step, value in steps:
            await self._undo(step, value)
        if error is None and self._error is not None:
            raise self._error.to_exception(self._step.tool, ())

    async def _undo(self, step: ToolStep, value: Any) -> None:
        try:
            await self._run.call(UndoStep(step, value))
        except StepFailed as exc:  # recorded: a person reads it
            log.error("run %s: step %s was not undone: %s", self._run.attempt.info.run_id, step.call_id, exc.message)
