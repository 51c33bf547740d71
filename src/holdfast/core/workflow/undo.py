"""Undo: when a workflow or a part of it fails or is cancelled, its recorded steps are undone, the last one first."""

import asyncio
import functools
import inspect
import logging
from contextlib import suppress
from contextvars import Token
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import msgspec

from holdfast.clock import Timer
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.retry import Retry
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.agents.tool_threads import call_in_thread
from holdfast.core.errors import RunCancelled, ToolTimeout
from holdfast.core.execution.calling.call_retries import await_thread, retry_call, run_within_timeout
from holdfast.core.workflow.steps.step_calls import StepCall, ToolStep, ValueStep
from holdfast.core.workflow.steps.step_errors import StepError, StepFailed
from holdfast.core.workflow.steps.step_log import SAGA, WORKFLOW_SCOPE
from holdfast.core.workflow.suspension import Unwind
from holdfast.core.workflow.workflow_run import BRANCH_CALLS, FAILED_SCOPE, WorkflowRun

log: logging.Logger = logging.getLogger("holdfast.run")

#: An undo is retried after any error.
UNDO_RETRY = Retry(max_tries=4, retry_on=Exception)

#: For one try of an undo whose tool has no `timeout`.
UNDO_TIMEOUT = timedelta(minutes=5)


class UndoStep(StepCall):
    """Undoes one recorded step. It may be repeated after a crash."""

    __slots__ = ("_step", "_value")

    is_cleanup = True

    def __init__(self, step: ToolStep, value: Any) -> None:
        super().__init__(
            step.attempt,
            tool=f"undo {step.tool}",
            arguments={"call_id": step.call_id, "arguments": step.arguments},
            effect=Effect.IDEMPOTENT,
        )
        # A step is undone once, whichever scope asks for it: a cancel may interrupt the undo of a saga.
        self.call_id = f"{self.tool}:{step.call_id}"
        self._step, self._value = step, value

    async def perform(self) -> Any:
        return await retry_call(self.attempt, UNDO_RETRY, self.tool, self.call_id, self._undo_in_time)

    async def _undo_in_time(self) -> Any:
        timeout = self._step.timeout or UNDO_TIMEOUT
        in_thread = not inspect.iscoroutinefunction(self._step.undo)
        error = ToolTimeout(self.tool, timeout, may_be_running=in_thread, effect_unknown=True)
        return await run_within_timeout(self._undo(), timeout, error, self.attempt.services.clock)

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
        if inspect.iscoroutinefunction(step.undo):
            return await step.undo(context, self._value)
        # A sync function runs in a thread, as sync tools do: it must not block the event loop.
        undo = functools.partial(step.undo, context, self._value)
        returned = await await_thread(self.attempt, call_in_thread(undo, {}))
        return await returned if inspect.isawaitable(returned) else returned


class ScopeStep(ValueStep):
    """Records that a workflow or a saga has failed, before its steps are undone."""

    __slots__ = ()

    is_cleanup = True


class Saga:
    """Undoes the steps that were made within it if it is left by an exception, which then is raised again.

    That it has failed is recorded first: a later attempt does not leave it in another way.
    """

    def __init__(self, run: WorkflowRun, name: str = SAGA, key: str | None = None) -> None:
        self._run = run
        self._step = ScopeStep(run.attempt, name, self._get_error, key=key)
        self._calls: set[str] = set()
        self._error: StepError | None = None
        self._is_recorded = False
        self._tokens: tuple[Token[Any], Token[Any]] | None = None

    def _get_error(self) -> Any:
        error, redact = self._error, self._run.attempt.services.redact
        return msgspec.to_builtins(error if error is None or redact is None else error.redact(redact))

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
        self._leave_scope()
        if error is not None and (not isinstance(error, Exception) or self._is_resumable_after(error)):
            return  # the code is unwound, the run is stopped, or its process ends
        if error is None and not self._is_recorded:
            return
        if FAILED_SCOPE.get() is not None:
            return  # what is around it has failed, and undoes its steps
        if error is not None:
            self._error = StepError.from_exception(error, ())
        await self._undo_steps()
        if error is None and self._error is not None:
            raise self._error.to_exception(self._step.tool, ())

    def _is_resumable_after(self, error: BaseException) -> bool:
        return self._run.attempt.stop_state.is_resumable_after(error)

    def _leave_scope(self) -> None:
        if self._tokens is not None:
            BRANCH_CALLS.reset(self._tokens[0])
            FAILED_SCOPE.reset(self._tokens[1])

    async def _undo_steps(self) -> None:
        """Record the failure, unless there is nothing to undo, and undo the steps."""
        steps = self._run.list_undoable(self._calls)
        if steps and not self._is_recorded:
            await self._run.make(self._step)
        for step, value in steps:
            await self._undo(step, value)

    async def _undo(self, step: ToolStep, value: Any) -> None:
        try:
            await self._run.call(UndoStep(step, value))
        except StepFailed as exc:  # recorded: a person reads it
            log.error("run %s: step %s was not undone: %s", self._run.attempt.info.run_id, step.call_id, exc.message)
        self._run.end_undo(step)


class WorkflowScope(Saga):
    """The whole function: its steps are undone when the run fails or is cancelled, whatever its code raises."""

    def __init__(self, run: WorkflowRun) -> None:
        super().__init__(run, WORKFLOW_SCOPE)
        self._stop = run.attempt.stop_state
        self._timer: Timer | None = None
        self._task: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._task, cancel = asyncio.current_task(), self._stop.undo_error
        if cancel is not None:  # requested before this attempt: it only finds the steps to undo
            self._error = self._error or _to_step_error(cancel)
            FAILED_SCOPE.set(self._error)
            self._timer = self._run.attempt.services.clock.call_later(UNDO_TIMEOUT, self._cancel_function)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave_scope()
        if self._timer is not None:
            self._timer.cancel()
        end = self._find_end(error)
        if end is None:
            return
        self._stop.is_end_seen = True
        await self._run.suspension.end_tasks()  # one of them may still record the result of its step
        if self._is_recorded or self._run.list_undoable(self._calls):
            await self._begin_undo()
            if not self._is_recorded:
                self._error = _to_step_error(end)
            await self._undo_steps()
        elif not self._stop.is_undoing:
            return
        if end is not error:
            raise end

    def _cancel_function(self) -> None:
        """End a function that waits for something else than its steps."""
        if self._task is not None:
            self._task.cancel()

    def _find_end(self, error: BaseException | None) -> BaseException | None:
        """Return the error with which the run ends for good; `None` if it is done, or continues in a later attempt."""
        stop = self._stop
        stopped = stop.error if stop.is_stopped else self._run.suspension.pending_error
        if stopped is not None:
            return None if stop.is_resumable_after(stopped) else stopped
        if self._error is not None and self._error.kind == "run_cancelled":
            return RunCancelled(f"run {self._run.attempt.info.run_id} was cancelled")
        if self._error is not None and error is None:
            return self._error.to_exception(WORKFLOW_SCOPE, ())
        return None if error is None or self._continues_after(error) else error

    def _continues_after(self, error: BaseException) -> bool:
        """Whether a later attempt enters the function again: its code was unwound or stopped, or its process ends."""
        leaves = asyncio.CancelledError | GeneratorExit | SystemExit | KeyboardInterrupt | Unwind
        if isinstance(error, leaves) or (isinstance(error, BaseExceptionGroup) and error.subgroup(Unwind) is not None):
            return True
        return self._is_resumable_after(error)

    async def _begin_undo(self) -> None:
        """End what is left of the function, and accept further steps."""
        suspension, task = self._run.suspension, asyncio.current_task()
        with suppress(asyncio.CancelledError):  # of the stop, if it has not arrived yet
            await asyncio.sleep(0)
        while task is not None and task.cancelling():
            task.uncancel()
        self._stop.begin_undo()
        suspension.reset()


def _to_step_error(end: BaseException) -> StepError:
    if isinstance(end, RunCancelled | asyncio.CancelledError):
        return StepError(type_name="RunCancelled", message=str(end) or "the run was cancelled", kind="run_cancelled")
    return StepError.from_exception(end, ())
