"""One attempt of a workflow: makes the steps that its code asks for, and unwinds the code when the run has to wait."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, NoReturn

import msgspec

from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import Tool
from holdfast.core.errors import RunError, RunParked, StepsExceeded
from holdfast.core.execution.calling.background import take_notices
from holdfast.core.execution.calling.waits import WAITING
from holdfast.core.execution.step import StepContext, take_messages
from holdfast.core.run.messages import Reply, ToolCall, ToolResult, User
from holdfast.core.run.prompt import summarize_prompt
from holdfast.core.run.run_events import ABANDONED, PROGRESS, CustomEvent, ItemProgress, StepStarted
from holdfast.core.workflow.restart import Life
from holdfast.core.workflow.steps.step_calls import StepCall, ToolStep
from holdfast.core.workflow.steps.step_errors import StepError
from holdfast.core.workflow.steps.step_log import StepIdentity, StepLog
from holdfast.core.workflow.suspension import Suspension, Unwind

log: logging.Logger = logging.getLogger("holdfast.run")

#: Constants, because Python 3.11 looks up a member of an enum slowly.
_TRANSACTION = Effect.TRANSACTION
_GUARDED = (Effect.ONCE, Effect.TRANSACTION)

#: A wait that ends within this time is waited out in the process.
MAX_IN_PROCESS_WAIT = timedelta(seconds=5)

#: The ids of the calls that the current branch of a `first` has made, and those of the branches around it.
BRANCH_CALLS: ContextVar[tuple[set[str], ...]] = ContextVar("holdfast_branch", default=())

#: Set within a branch that has lost a `first` in an earlier attempt: the calls of all that lost. It makes no new step.
LOST_CALLS: ContextVar[frozenset[str] | None] = ContextVar("holdfast_lost", default=None)

#: Set within a part of a workflow that has failed in an earlier attempt: it makes no new step.
FAILED_SCOPE: ContextVar[StepError | None] = ContextVar("holdfast_failed_scope", default=None)


class WorkflowRun:
    """Makes the steps of a workflow in one attempt. Belongs to one event loop."""

    def __init__(self, context: StepContext, life: Life) -> None:
        self.attempt = context.attempt
        self.steps = StepLog(context.state.history, life.first_step)
        self.suspension = Suspension(context.attempt, context.waits)
        self._context, self._state = context, context.state
        self._identity = StepIdentity(life.restarts, self.steps.abandoned)
        self._loop = asyncio.get_running_loop()
        #: The steps that can be undone, each with its value.
        self._undoable: dict[str, tuple[ToolStep, Any]] = {}
        #: The calls of earlier attempts that the code has not repeated in this one, by tool.
        self._unmet: dict[str, dict[str, ToolCall]] = {}
        for each in self.steps.calls.values():
            self._unmet.setdefault(each.name, {})[each.id] = each
        for call_id in self.steps.abandoned:  # a process has ended before it recorded that they are cancelled
            context.waits.remove(call_id)

    def call_tool(self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: str | None) -> Any:
        """Return an awaitable of the result of the tool, as a step.

        Raises:
            TypeError: the arguments do not fit the tool.
            DefinitionError: the key is not text.
        """
        return self.call(ToolStep(self.attempt, tool, tool.bind(args, kwargs), key))

    async def call(self, call: StepCall) -> Any:
        """Return the value of a step, recorded or made now, or raise its error."""
        result = self.find(call)
        if result is None:
            if (failed := FAILED_SCOPE.get()) is not None and not call.is_cleanup:
                self._context.waits.remove(call.call_id)
                if failed.kind == "run_cancelled":
                    raise Unwind(f"{call.tool} was called in a workflow that is cancelled")
                raise failed.to_exception(call.tool, ())
            result = await self.make(call)
        elif result.error and self.steps.is_cancelled(result):
            await self.suspension.rest_until_cancelled()
        value = call.load(result)
        if isinstance(call, ToolStep) and call.undo is not None:
            self._add_undoable(call, value)
        return value

    def _add_undoable(self, call: StepCall, value: Any) -> None:
        """Undo the step from now on if the workflow fails, and if it has an `undo`."""
        if isinstance(call, ToolStep) and call.undo is not None:
            call.number = self.steps.numbers[call.call_id]
            self._undoable[call.call_id] = call, value

    def list_undoable(self, call_ids: set[str]) -> list[tuple[ToolStep, Any]]:
        """Return the steps among these that can be undone and were not yet, the last recorded one first."""
        known = [each for each in self.steps.results if each in call_ids and each in self._undoable]
        return [self._undoable[each] for each in reversed(known)]

    def lacks_undo(self, call_ids: Iterable[str]) -> bool:
        """Whether one of these has taken effect and can be undone, and the code has not repeated it yet."""
        effective = [each for each in call_ids if (result := self.steps.results.get(each)) and not result.error]
        return any(self.steps.calls[each].can_undo and each not in self._undoable for each in effective)

    def end_undo(self, step: ToolStep) -> None:
        """The outcome of undoing this step is recorded."""
        self._undoable.pop(step.call_id, None)

    def find(self, call: StepCall) -> ToolResult | None:
        """Give the call its id, and return its recorded result."""
        self._check_place(call.tool)
        call.call_id = call.call_id or self._identity.assign(call, LOST_CALLS.get() or ())
        for branch in BRANCH_CALLS.get():
            branch.add(call.call_id)
        if call.tool in self._unmet:
            self._unmet[call.tool].pop(call.call_id, None)
        self.suspension.on_step()
        return self.steps.results.get(call.call_id)

    def _check_place(self, tool: str) -> None:
        if self.suspension.closed:
            raise RunError(f"{tool} was called for the workflow run {self._context.run_id}, which has ended")
        if asyncio.get_running_loop() is not self._loop:
            raise RunError(f"{tool} was called in another event loop or thread than that of its workflow")
        if self.suspension.error is not None or self.attempt.stop_state.is_stopped:
            raise Unwind(f"{tool} was called while its workflow is unwound: the next attempt continues there")

    async def make(self, call: StepCall) -> ToolResult:
        """Make a call that has no recorded result, and record it."""
        if LOST_CALLS.get() is not None:
            raise asyncio.CancelledError  # as in the attempt in which its branch lost
        if call.effect is _TRANSACTION:
            self.attempt.saver.check_transaction(call.tool, in_thread=call.in_thread)
        self.suspension.begin_work()
        try:
            if self._unmet.get(call.tool) and call.call_id not in self.steps.calls:
                await self._refuse_changed_arguments(call)
            await self._announce(call)
            return await self._execute(call)
        except asyncio.CancelledError:
            await self._on_cancelled(call)
            raise
        except Exception as exc:  # no result of the step
            await self._end_attempt(exc)
        finally:
            self.suspension.end_work()

    async def _end_attempt(self, error: Exception) -> NoReturn:
        """End the attempt as soon as no other step is in progress."""
        self.attempt.stop_state.record_interruption(error)
        self.suspension.stop(error)
        await self.suspension.rest()
        raise Unwind from error

    async def _announce(self, call: StepCall) -> None:
        """Check bounds, budget and shutdown, and record that the call is asked for."""
        attempt, context = self.attempt, self._context
        stop = attempt.stop_state
        if stop.error is not None:
            raise stop.error
        stop.raise_if_stopped()
        if not call.is_cleanup:
            await self._check_limits()
        if attempt.mailbox.unread or self._state.nudges:
            self.consume_messages()
        if isinstance(call, ToolStep) and call.undo is not None:
            self._state.undo_on_cancel = True
        resumed = call.call_id in self.steps.calls
        if not resumed:
            self._add_call(call)
        call.number = self.steps.numbers[call.call_id]
        if not resumed and call.approval is not None:
            context.tool_calls.add_approvals([call])
        if StepStarted in attempt.observers.wanted:
            await attempt.observers.publish(StepStarted(run_id=context.run_id, step=call.number))
        await context.tool_calls.announce({call.call_id: call.effect}, resumed=resumed)

    async def _check_limits(self) -> None:
        attempt, profile = self.attempt, self._context.profile
        bounds = profile.phase_bounds or profile.bounds
        if self._state.turn_steps >= bounds.max_steps:
            raise StepsExceeded(self._context.run_id, bounds.max_steps)
        if attempt.services.ports.budget is not None:
            await attempt.services.ports.budget.check(attempt.info, self._state)

    def _add_call(self, call: StepCall) -> None:
        can_undo = isinstance(call, ToolStep) and call.undo is not None
        request = ToolCall(
            id=call.call_id, name=call.tool, arguments=call.arguments, effect=call.effect, can_undo=can_undo
        )
        self.steps.add_call(request)
        self._state.history.append(Reply(tool_calls=(request,)))

    async def _execute(self, call: StepCall) -> ToolResult:
        tool_calls, waits, clock = self._context.tool_calls, self._context.waits, self.attempt.services.clock
        while True:
            result = await tool_calls.try_execute(call)
            if result is not WAITING:
                self.steps.add_result(result)
                return result  # type: ignore[no-any-return]
            wait = waits.get(call.call_id)
            delay = None if wait is None or wait.expires_at is None else wait.expires_at - clock.now()
            if delay is None or delay > MAX_IN_PROCESS_WAIT:
                await self.suspension.rest(call.call_id)
            else:
                await self.attempt.saver.save(force=True)  # the time at which it ends stays the same
                await self.attempt.stop_state.pause(max(delay, timedelta(0)))
                await waits.end_expired()

    async def _on_cancelled(self, call: StepCall) -> None:
        """Record that the workflow has cancelled a call itself, unless it has a result or the run is being stopped."""
        self._keep_result(call)
        await self.attempt.receive_stop()
        if self.suspension.error is not None:
            raise Unwind from None
        task = asyncio.current_task()
        if self.suspension.pending_error is not None and task is not None and not task.cancelling():
            await self.suspension.rest()  # its thread was not started, because another branch stops the run
        if self.attempt.stop_state.is_stopping or call.number == 0 or call.call_id in self.steps.results:
            return
        if (recorded := self._find_recorded(call.call_id)) is not None:  # cancelled while it was saved
            self.steps.add_result(recorded)
            if not recorded.error:
                self._add_undoable(call, call.load(recorded))
            return
        result = call.cancelled_result()
        self.steps.add_result(result)
        await self._context.tool_calls.record_cancelled(call, result)

    def _find_recorded(self, call_id: str) -> ToolResult | None:
        """Return the result of a call of this attempt, whose code has not got it."""
        for message in reversed(self._state.history):
            if isinstance(message, ToolResult) and message.call_id == call_id:
                return message
            if isinstance(message, Reply) and any(call.id == call_id for call in message.tool_calls):
                break
        return None

    def _keep_result(self, call: StepCall) -> None:
        """Keep the result of a call that was cancelled after its record, while it was saved: it can be undone."""
        found = (each for each in reversed(self._state.history) if isinstance(each, ToolResult))
        result = next((each for each in found if each.call_id == call.call_id), None)
        if result is not None and call.call_id not in self.steps.results:
            self.steps.add_result(result)
            with suppress(Exception):  # the error of the step: there is nothing to undo
                self._add_undoable(call, call.load(result))

    async def show_progress(self, progress: ItemProgress) -> None:
        """Show watchers how far a part of the workflow is, and record it with the next save."""
        self.suspension.begin_work()
        try:
            await self._context.emit_custom(PROGRESS, msgspec.to_builtins(progress))
        except Exception as exc:  # not an error of the code, which would cancel its other branches
            await self._end_attempt(exc)
        finally:
            self.suspension.end_work()

    def record_abandoned(self) -> None:
        """Record the calls of earlier attempts that the code has not repeated: the life that they belong to is over."""
        unmet = [call for calls in self._unmet.values() for call in calls.values()]
        left = [call.id for call in unmet if call.id not in self.steps.abandoned]
        if left:
            info = self.attempt.info
            log.warning("run %s: %d recorded calls were not repeated: %s", info.run_id, len(left), ", ".join(left[:5]))
            self.attempt.record_event(
                CustomEvent(run_id=info.run_id, step=self._state.steps, name=ABANDONED, value=left)
            )

    def consume_messages(self) -> None:
        """Put messages that were sent to the run into its history. A workflow reads signals and answers only."""
        if self.attempt.mailbox.unread:
            take_notices(self.attempt)
        for content in take_messages(self.attempt):
            log.warning("run %s: a workflow reads no messages, send it a signal", self._context.run_id)
            self._state.history.append(User(summarize_prompt(content)))

    # -- changed arguments --------------------------------------------------------------------------------------------

    async def _refuse_changed_arguments(self, call: StepCall) -> None:
        """Return once the code has met every recorded call of this tool, if it is not to happen twice.

        These are `once` and `transaction` calls, and those that start runs.

        Raises:
            RunParked: it meets no more of them. This call may be one of them with other arguments.
        """
        is_guarded = call.effect in _GUARDED or call.starts_run
        while is_guarded and (unmet := self._list_unmet(call.tool)):
            if await self.suspension.rest_until_next_step():
                continue
            self._add_call(call)
            calls = self._state.calls
            self._state.calls = msgspec.structs.replace(calls, in_doubt=(*calls.in_doubt, call.call_id))
            earlier = "; ".join(f"{each.id} with {_to_text(each.arguments)}" for each in unmet)
            raise RunParked(
                "changed arguments",
                f"the workflow calls {call.tool} with {_to_text(call.arguments)} ({call.call_id}), and did not repeat "
                f"the recorded {earlier}: it may be the same call. Unpark the run with the result of the new call, "
                "unpark it after the code was corrected, or cancel it",
            )

    def _list_unmet(self, tool: str) -> list[ToolCall]:
        unmet = self._unmet.get(tool, {}).values()
        return [call for call in unmet if not self.steps.is_settled_without_effect(call)]


def _to_text(arguments: Any) -> str:
    return msgspec.json.encode(arguments).decode()
