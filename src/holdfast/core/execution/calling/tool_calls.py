"""The tool calls of a step: announced, made and recorded, so that a crash leaves none of them unknown."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.core.agents.calls import NOT_EXECUTED, CallRequest, Completed, Effect
from holdfast.core.agents.tool_context import _CURRENT_CALL, ToolContext
from holdfast.core.errors import ProcessExit, RunParked, convert_process_exit
from holdfast.core.execution.attempt import Attempt, log
from holdfast.core.execution.calling.call_tokens import CallTokens
from holdfast.core.execution.calling.call_transaction import CallTransaction
from holdfast.core.execution.calling.child_runs import ChildRuns
from holdfast.core.execution.calling.waits import WAITING, Waits
from holdfast.core.observer import CallEnded, CallFailed, CallInDoubt, CallStarted, StepEnded
from holdfast.core.run.mail import CHILD_TOPIC
from holdfast.core.run.messages import NO_USAGE, ONE_TOOL_CALL, ToolResult, Usage
from holdfast.core.run.run_events import ToolCalled, ToolReturned
from holdfast.core.run.state import NO_CALLS, CallTime, StepTimer, StepTimes
from holdfast.core.run.waiting import Deferred, Suspend, WaitingCall

#: Sent to the model as the result of a call in doubt.
UNKNOWN_OUTCOME = (
    "Unknown outcome: the process stopped after this call was started and before its result was recorded. "
    "It may or may not have taken effect. Check before you call it again."
)

_NONE: frozenset[str] = frozenset()

#: Constants, because Python 3.11 looks up a member of an enum 20 times more slowly than a global name.
_ONCE, _IDEMPOTENT, _TRANSACTION = Effect.ONCE, Effect.IDEMPOTENT, Effect.TRANSACTION


class ToolCalls:
    """The tool calls of the current step. Those that one reply asks for are a batch."""

    def __init__(self, attempt: Attempt, waits: Waits, times: StepTimer) -> None:
        self._attempt, self._state, self._waits, self._times = attempt, attempt.state, waits, times
        #: Announced calls without a result.
        self._open: dict[str, Effect] = {}
        self._tokens = CallTokens(attempt, self._open)
        #: Announced calls that an earlier process may have started.
        self._repeated: set[str] = set()
        #: Those of them whose outcome is unknown.
        self._in_doubt: set[str] = set()
        #: The `once` calls that have not been started and are not in doubt.
        self._not_started: set[str] = set()
        #: Calls that an earlier process announced and, as it has recorded, did not start.
        self._left: frozenset[str] = _NONE
        #: That record is removed from the state, and not yet from the store.
        self._removes_record = False
        self._has_once_call = False
        #: A call of the step has an idempotency key, which only matters if the same call is repeated.
        self._has_idempotent_call = False
        #: A reply that asks for calls is not saved: the intent timer will do that.
        self._intent_pending = False

    async def announce(
        self,
        calls: Mapping[str, Effect],
        *,
        resumed: bool = False,
        not_started: Collection[str] = (),
        in_order: bool = False,
    ) -> None:
        """Record that these calls are asked for, by their ids. Once this returns they may be made.

        Further calls of the step may be announced while others are made. One that is already announced stays as it is.

        Args:
            resumed: an earlier process saved the reply that asks for them, so every call without a recorded result
                is in doubt.
            not_started: except these, which the loop knows were never started, such as calls that wait for approval.
            in_order: they are made one after the other, so that a crash leaves at most one of them in doubt.
        """
        is_costly = self._times.reply()
        attempt, known = self._attempt, self._state.calls
        if attempt.mailbox.unread and not self._open:
            # The calls that start the children again find what the notices are about. Open calls are woken by them.
            attempt.mailbox.take_all(CHILD_TOPIC)
        new = calls
        if self._open or self._state.results:
            new = {each: calls[each] for each in calls if each not in self._open and each not in self._state.results}
        self._open.update(new)
        effects = new.values()
        has_once = _ONCE in effects
        self._has_once_call = self._has_once_call or has_once
        self._has_idempotent_call = self._has_idempotent_call or _IDEMPOTENT in effects
        if known is not NO_CALLS and known.not_started:
            self._take_record()
        if resumed:
            self._repeated.update(new)
            self._in_doubt.update(new.keys() - self._left.union(not_started, self._waits.undecided()))
            if known.tokens:
                await self._waits.end_tokens({each for each in self._in_doubt if new.get(each) is _ONCE})
        if has_once:
            once = {call_id for call_id, effect in new.items() if effect is _ONCE}
            self._not_started |= once.difference(self._in_doubt, not_started)
            if in_order:
                later = tuple(sorted(self._not_started - {next(iter(new))}))
                self._state.calls = msgspec.structs.replace(self._state.calls, not_started=later)
            # If the process dies from now on, these calls are in doubt: the store has to say so before one starts.
            if resumed and not self._removes_record:
                await attempt.saver.verify()
            else:
                await attempt.saver.save(must_succeed=True)
                self._removes_record = False
        elif resumed:
            return
        elif attempt.has_no_step_yet or is_costly:
            # If these calls end the process, the journal shows which did, and a reply that took long is not repeated.
            await attempt.saver.save(force=attempt.has_no_step_yet)
        elif attempt.saver.checkpointer is not None and not self._intent_pending:
            self._intent_pending = True
            attempt.services.intent_timer.schedule(self)

    def add_approvals(self, calls: Iterable[CallRequest]) -> None:
        """Record the calls that wait for approval, before they are announced: they count as never started."""
        for call in calls:
            if call.approval is not None and call.call_id not in self._state.results:
                context = self.make_context(call.call_id, call.tool, call.arguments, step=call.number)
                self._waits.add_approval(context, call.approval, schema=call.schema)

    async def execute(self, request: CallRequest) -> Any:
        """Return the recorded result of the call, or make it now. The result is recorded when this returns.

        Raises:
            RunWaiting: the call waits, and the run with it.
        """
        result = await self.try_execute(request)
        if result is WAITING:
            raise self._waits.make_error()
        return result

    async def try_execute(self, request: CallRequest) -> Any:
        """As `execute`, but return `WAITING` for a call that waits. The loop raises `waits.make_error()` later."""
        attempt, state = self._attempt, self._state
        if request.call_id in state.results:
            return state.results[request.call_id]
        step = request.number or state.steps + 1
        children = ChildRuns(attempt, request.call_id, step, is_repeated=request.call_id in self._repeated)
        context = self.make_context(request.call_id, request.tool, request.arguments, children, step)
        if request.effect is _TRANSACTION:
            context = CallTransaction(attempt, request, self._record_result).add_to(context)
        result, wait = None, None
        if state.calls is not NO_CALLS or request.approval is not None:
            wait = self._find_wait(request, context)
        has_waited = wait is not None
        if wait is not None and wait.kind == "child":
            wait = self._waits.end_child_wait(wait)  # the repeated call attaches to its child runs
        if wait is not None:
            result = self._waits.resolve(request, wait)
        if result is None and request.call_id in self._in_doubt and request.effect is _ONCE:
            result = await self._resolve_in_doubt(request, context)
        if result is not None:
            if result is WAITING:
                return WAITING
            self._record_result(request, result, children)
        else:
            if request.arguments is not context.arguments:  # a person has approved others
                context = msgspec.structs.replace(context, arguments=request.arguments)
            if has_waited and request.effect is _ONCE:
                # The answer is consumed, and the call counts as started, before it is.
                await attempt.saver.save(must_succeed=True)
            start = self._start_in_thread if request.in_thread else self._start_call
            result = await start(request, context, children)
            if result is WAITING:
                return WAITING
        if request.number:
            await self._end_call(request)
        elif self._open:  # the last result of a batch is saved with the step
            await attempt.saver.save(force=request.effect is _ONCE)
        return result

    async def _end_call(self, request: CallRequest) -> None:
        """Save a call that is a step of its own: its result is in the history."""
        attempt, force = self._attempt, request.effect is _ONCE
        self._repeated.discard(request.call_id)
        self._in_doubt.discard(request.call_id)
        if not self._open:
            if self._intent_pending:
                self._intent_pending = False
                attempt.services.intent_timer.cancel(self)
                force = force or self._has_idempotent_call
            self._has_once_call = self._has_idempotent_call = False
        await attempt.saver.save(force=force)
        if attempt.services.ports.budget is not None:
            attempt.saver.update_elapsed()
            await attempt.services.ports.budget.commit(attempt.info, self._state)
        times = self._state.step_end.times
        attempt.observers.emit(StepEnded(None if times is None else times.took / 1000))

    async def record_cancelled(self, request: CallRequest, result: Any) -> None:
        """Record the result of a call, a step of its own, that the run's own code has cancelled."""
        self._not_started.discard(request.call_id)
        self._record_result(request, result, None)
        await self._end_call(request)

    def make_context(
        self, call_id: str, tool: str, arguments: Any, children: ChildRuns | None = None, step: int = 0
    ) -> ToolContext:
        """Return the context of a call of the current step, or of another one."""
        return ToolContext(
            info=self._attempt.info,
            step=step or self._state.steps + 1,
            call_id=call_id,
            tool=tool,
            arguments=arguments,
            children=children,
            clock=self._attempt.services.clock,
            tokens=self._tokens,
        )

    def _find_wait(self, request: CallRequest, context: ToolContext) -> WaitingCall | None:
        """Return the wait of this call; one is added if it needs an approval."""
        wait = self._waits.get(request.call_id)
        # A `once` call in doubt was started without an approval, or not at all.
        in_doubt = request.effect is _ONCE and request.call_id in self._in_doubt
        if wait is not None or request.approval is None or in_doubt:
            return wait
        return self._waits.add_approval(context, request.approval, schema=request.schema)

    def _record_result(
        self,
        request: CallRequest,
        result: Any,
        children: ChildRuns | None,
        usage: Usage = NO_USAGE,
        started_at: float | None = None,
    ) -> None:
        """Record the result and its usage together: no save can contain one without the other."""
        state = self._state
        state.own_usage = state.own_usage + usage
        if children is not None and children.outcomes:
            state.child_usage = state.child_usage + children.usage
        if request.number:
            state.finish_call(request.call_id, result, self._measure_call(request, started_at), request.error)
        else:
            state.record_result(request.call_id, result, request.error)
        self._open.pop(request.call_id, None)

    def _measure_call(self, request: CallRequest, started_at: float | None) -> StepTimes | None:
        if started_at is None:
            return None
        took = round((self._attempt.services.clock.monotonic() - started_at) * 1000)
        return StepTimes(took, 0, (CallTime(request.call_id, 0, took),))

    async def _start_in_thread(self, request: CallRequest, context: ToolContext, children: ChildRuns) -> Any:
        """Wait for a slot first. The claim is verified after that."""
        with await self._attempt.services.threads.reserve(context, self._attempt.stop_state) as slot:
            context = msgspec.structs.replace(context, threads=slot)
            try:
                return await self._start_call(request, context, children)
            except asyncio.CancelledError:
                if request.effect is _ONCE and not slot.started:
                    self._not_started.add(request.call_id)
                raise

    async def _start_call(self, request: CallRequest, context: ToolContext, children: ChildRuns) -> Any:
        attempt, step, observers = self._attempt, context.step, self._attempt.observers
        if request.effect is _ONCE:
            if request.call_id in self._state.calls.not_started:  # one of several in order
                self._state.calls = self._state.calls.mark_started(request.call_id)
                await attempt.saver.save(must_succeed=True)
            await attempt.saver.verify()
        if ToolCalled in observers.wanted:
            await observers.publish(
                ToolCalled(
                    run_id=attempt.info.run_id,
                    step=step,
                    call_id=request.call_id,
                    tool=request.tool,
                    arguments=request.arguments,
                )
            )
            if request.effect is _ONCE:  # the listener may have taken longer than a check of the claim is valid
                await attempt.saver.verify()
        started_at = attempt.services.clock.monotonic()
        self._not_started.discard(request.call_id)
        attempt.stop_state.calls_in_progress += 1
        if CallStarted in observers.wanted:
            observers.emit(CallStarted(call=context, effect=request.effect))
        result: Any = None
        error: BaseException | None = None
        try:
            result = await self._await_result(request, context, children)
            if result is WAITING:
                return result
            # Recorded before any port runs: an error of a port does not undo the call.
            if context.transaction is None or context.transaction.result is None:
                self._record_result(request, result, children, ONE_TOOL_CALL, started_at)
            if not request.number:
                self._times.add_call(request.call_id, started_at)
        except BaseException as exc:
            error = exc
            raise
        finally:
            attempt.stop_state.end_call()
            if CallEnded in observers.wanted:
                took = timedelta(seconds=attempt.services.clock.monotonic() - started_at)
                outcome = request.classify_outcome(result, error, waits=result is WAITING)
                observers.emit(CallEnded(call=context, effect=request.effect, outcome=outcome, error=error, took=took))
            if request.error is not None:
                observers.emit(CallFailed(call=context, error=request.error))
            request.error = error = None  # their tracebacks hold this frame
        if ToolReturned in observers.wanted:
            await observers.publish(self._make_result_event(request, context, result))
        return result

    def _make_result_event(self, request: CallRequest, context: ToolContext, result: Any) -> ToolReturned:
        return ToolReturned(
            run_id=self._attempt.info.run_id,
            step=context.step,
            call_id=request.call_id,
            tool=request.tool,
            content=result.content if isinstance(result, ToolResult) else None,
            error=request.is_error(result),
        )

    async def _await_result(self, request: CallRequest, context: ToolContext, children: ChildRuns) -> Any:
        """Make the call and return its result, once its child runs have ended."""
        attempt, outer = self._attempt, _CURRENT_CALL.get()
        _CURRENT_CALL.set(context)
        try:
            result = await (request if context.transaction is None else context.transaction).execute()
        except Suspend as suspend:
            wait = self._waits.add_suspended(context, suspend)
            result = WAITING if wait.kind == "run" else self._waits.resolve(request, wait)  # that call is repeated
        except (SystemExit, KeyboardInterrupt) as exc:
            # Raised in a task, these two end the event loop before any run is saved.
            process_exit = ProcessExit(exc)
            attempt.stop_state.record_interruption(process_exit)
            raise process_exit from exc
        except Exception as exc:
            children.raise_if_interrupted(exc)
            if not children.waiting:
                attempt.stop_state.record_interruption(exc)
                raise
            result = WAITING
        finally:
            _CURRENT_CALL.set(outer)  # `reset` raises if the coroutine is closed from elsewhere
            children.closed = True
            if children.outcomes:
                await children.stop()
        if children.outcomes:
            children.raise_if_interrupted()
        if children.waiting:
            self._waits.add_children(context, children.waiting)
            return WAITING
        if isinstance(result, Deferred):
            wait = self._waits.add_deferred(context, result)
            await attempt.saver.save(must_succeed=True)  # the token is known outside from now on
            result = self._waits.resolve(request, wait)
        return result

    async def _resolve_in_doubt(self, request: CallRequest, context: ToolContext) -> Any:
        """Return the result of a call in doubt, or `None` if it was not executed and is to be made now."""
        early = self._waits.resolve_early(request, context)
        if early is not None:
            return early
        if request.reconcile is not None:
            try:
                found = await convert_process_exit(request.reconcile(context))
            except Exception as exc:  # user code may raise anything: the outcome stays unknown
                if self._attempt.stop_state.is_resumable_after(exc):
                    raise
                log.warning(
                    "run %s: reconciling %s failed: %s", self._attempt.info.run_id, request.tool, exc, exc_info=exc
                )
            else:
                if isinstance(found, Completed):
                    return request.reconciled_result(found.result)
                if found is NOT_EXECUTED:
                    return None
        self._attempt.observers.emit(CallInDoubt(call=context))
        if request.in_doubt == "park":
            calls = self._state.calls
            in_doubt = tuple(sorted({*calls.in_doubt, request.call_id}))
            self._state.calls = msgspec.structs.replace(calls, in_doubt=in_doubt)
            raise RunParked("in doubt", f"call {request.call_id} of {request.tool} may or may not have happened")
        return request.error_result(UNKNOWN_OUTCOME)

    def end_step(self) -> bool:
        """Forget the batch: all its results are in the history. Return whether they have to be saved at once."""
        force = self._has_once_call
        if self._intent_pending:
            self._intent_pending = False
            self._attempt.services.intent_timer.cancel(self)
            force = force or self._has_idempotent_call
        self._has_once_call = self._has_idempotent_call = False
        self._open.clear()
        self._not_started.clear()
        if self._repeated or self._left:
            self._repeated.clear()
            self._in_doubt.clear()
            self._left, self._removes_record = _NONE, False
        return force

    # -- the intent of pure and idempotent calls ----------------------------------------------------------------

    def save_intent(self) -> None:
        """Save the reply while its calls are running: for the intent timer."""
        self._intent_pending = False
        self._tokens.start_save(force=self._has_idempotent_call)

    def _take_record(self) -> None:
        """Remember the calls of this step that an earlier process announced and did not start, and forget the record.

        The next save removes the record from the store. Only an attempt that has ended writes one.
        """
        self._left = self._left.union(self._state.calls.not_started)
        self._state.calls = msgspec.structs.replace(self._state.calls, not_started=())
        self._removes_record = True

    async def close(self) -> None:
        """End the conversation: no timer and no save of it stays behind."""
        if self._not_started:  # the batch was interrupted
            left = tuple(sorted(self._not_started))
            self._state.calls = msgspec.structs.replace(self._state.calls, not_started=left)
        if self._intent_pending:
            self._intent_pending = False
            self._attempt.services.intent_timer.cancel(self)
        await self._tokens.close()
