"""What a loop is given to drive a conversation: steps, bounds, tool calls, and durability under all of it."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol

from holdfast.core.agent import Profile
from holdfast.core.effects import NOT_EXECUTED, Completed, Effect, InDoubt, Reconcile
from holdfast.core.errors import RunParked, StepsExceeded
from holdfast.core.execution.child_runs import ChildRuns, StartChild
from holdfast.core.execution.run import RunExecution, log
from holdfast.core.message import NO_USAGE, ONE_TOOL_CALL, Usage
from holdfast.core.ports import RunEvent
from holdfast.core.state import RunState
from holdfast.core.tool_context import _CURRENT_CALL, ToolContext

#: What a model is told about a call in doubt.
UNKNOWN_OUTCOME = (
    "Unknown outcome: the process stopped after this call was started and before its result was recorded. "
    "It may or may not have taken effect. Check before you call it again."
)


class AnnouncedCall(Protocol):
    """A call that a reply asks for, as far as it matters before the call is made. A `CallRequest` is one."""

    @property
    def call_id(self) -> str: ...

    @property
    def effect(self) -> Effect: ...


_NO_CALLS: frozenset[str] = frozenset()

#: Asked for at every call, and an enum takes its time to find a member.
_ONCE: Final = Effect.ONCE
_IDEMPOTENT: Final = Effect.IDEMPOTENT

#: Among the notes of a run that is parked: the calls in doubt that a person is asked about.
IN_DOUBT_KEY = "in_doubt"


class ExecutableCall(AnnouncedCall, Protocol):
    """One tool call that a loop wants made, or its recorded result. A `CallRequest` is one."""

    @property
    def tool(self) -> str: ...

    @property
    def arguments(self) -> Any: ...

    @property
    def reconcile(self) -> Reconcile | None: ...

    @property
    def in_doubt(self) -> InDoubt: ...

    def execute(self) -> Awaitable[Any]:
        """Make the call. What it returns is recorded, so the loop's codec has to be able to store it."""
        ...

    def error_result(self, text: str) -> Any:
        """A result, in the same form, that tells the model something instead."""
        ...

    def reconciled_result(self, value: Any) -> Any:
        """A result, in the same form, of what a reconcile found."""
        ...

    def is_error(self, result: Any) -> bool: ...


@dataclass(slots=True, kw_only=True)
class CallRequest:
    """A `Requested` call, put together from functions."""

    call_id: str
    tool: str
    arguments: Any
    effect: Effect
    #: Makes the call. What it returns is recorded, so the loop's codec has to be able to store it.
    execute: Callable[[], Awaitable[Any]]
    #: A result, in the same form, that tells the model something instead. Also wraps what a reconcile found.
    error_result: Callable[[str], Any]
    reconciled_result: Callable[[Any], Any]
    reconcile: Reconcile | None = None
    in_doubt: InDoubt = "report"
    is_error: Callable[[Any], bool] = lambda result: False


class StepContext:
    """One conversation of one run: the whole run, or one phase of it."""

    def __init__(self, run: RunExecution, profile: Profile, prompt: str, start_child: StartChild | None = None) -> None:
        self.profile, self.prompt = profile, prompt
        self.run, self.state = run, run.state
        self._start_child = start_child
        #: Calls of the current batch that have no result yet.
        self._outstanding = 0
        self._in_doubt = _NO_CALLS
        self._has_once_call = False
        self._intent_pending = False
        #: Among the calls that are intended is one with a key, which is only good if the same call is made again.
        self._has_idempotent_call = False
        self._intent_saves: set[asyncio.Task[bool]] = set()
        #: Children whose results are in this step.
        self._finished_children: list[str] = []

    @property
    def run_id(self) -> str:
        return self.run.info.run_id

    # -- steps --------------------------------------------------------------------------------------------------

    async def start(self, messages: Iterable[Any]) -> None:
        """Begin the conversation. Returns when the run is in the store, before any model was asked."""
        self.state.history.extend(messages)
        await self.run.save(force=True)

    async def begin_step(self, prepare: Callable[[], Awaitable[None]] | None = None) -> list[str]:
        """Before each model call: bounds, budget, shutdown. Returns the messages that were steered in.

        They have to be put into the history at once: a save in between would hold them nowhere.

        Args:
            prepare: what the loop has to wait for before it can do so, such as compaction.
        """
        live, state = self.run, self.state
        live.raise_if_stopped()
        bounds, phase_bounds = self.profile.bounds, self.profile.phase_bounds
        if state.steps >= bounds.max_steps:
            raise StepsExceeded(self.run_id, bounds.max_steps)
        if phase_bounds is not None and state.phase_steps >= phase_bounds.max_steps:
            raise StepsExceeded(self.run_id, phase_bounds.max_steps)
        if live.ports.budget is not None:
            await live.ports.budget.check(live.info, state)
        if live.has_listeners:
            await live.emit(RunEvent(kind="step", step=state.steps + 1))
        if prepare is not None:
            await prepare()
        # Taken last: what stops the run before its step must not lose what somebody said to it.
        if not live.has_steering:
            return []
        told = 0
        while told < len(live.steering):
            await live.emit(RunEvent(kind="steered", step=state.steps + 1, text=live.steering[told]))
            told += 1
        return live.take_steering()

    def add_usage(self, usage: Usage) -> None:
        """Count what a model call or a tool of this run has used."""
        self.state.own_usage = self.state.own_usage + usage

    async def emit_reply(self, text: str) -> None:
        """The model replied; for whoever watches."""
        if self.run.has_listeners:
            await self.run.emit(RunEvent(kind="reply", step=self.state.steps + 1, text=text))

    async def end_step(self) -> None:
        """The reply and all its tool results are in the history: the step is finished and saved."""
        live, state = self.run, self.state
        urgent, self._has_once_call = self._has_once_call or bool(self._finished_children), False
        if self._intent_pending:
            self._intent_pending = False
            live.intent_timer.cancel(self)
            urgent = urgent or self._has_idempotent_call
        state.finish_step()
        self._outstanding, self._in_doubt = 0, _NO_CALLS
        if await live.save(force=urgent) and self._finished_children:
            await self._discard_children()
        if live.ports.budget is not None:
            live.update_elapsed()
            await live.ports.budget.commit(live.info, state)
        if live.recorder is not None:
            live.recorder.step(state.steps, state.own_usage)

    async def _discard_children(self) -> None:
        """What children left behind may go: their results are in the store with this run."""
        if self.run.ports.checkpoints is None:
            return
        try:
            await self.run.ports.checkpoints.discard_children(self._finished_children)
        except Exception as exc:  # trouble with the store must never become the run's result
            log.warning("run %s: its children will be removed later: %s", self.run_id, exc)
        else:
            self._finished_children = []

    @property
    def has_steering(self) -> bool:
        """Whether a message waits to be taken in: then an answer is not the end yet."""
        return self.run.has_steering

    # -- tool calls ---------------------------------------------------------------------------------------------

    async def announce_calls(
        self, calls: Sequence[AnnouncedCall], *, resumed: bool = False, not_started: Collection[str] = ()
    ) -> None:
        """The model asked for these calls. Once this returns, those that must not happen twice may be made.

        Args:
            resumed: the reply that asks for them was saved by an earlier life of this run, so every call without a
                recorded result is in doubt.
            untried: but not these. The loop knows that they were never started, because it keeps a record of its own:
                calls that wait for an approval, say.
        """
        missing = _filter_unfinished(calls, self.state) if self.state.results else calls
        self._outstanding = len(missing)
        self._has_once_call = self._has_idempotent_call = False
        for call in missing:
            self._has_once_call = self._has_once_call or call.effect is _ONCE
            self._has_idempotent_call = self._has_idempotent_call or call.effect is _IDEMPOTENT
        if resumed:
            self._in_doubt = frozenset(call.call_id for call in missing).difference(not_started)
            if self._has_once_call:
                await self.run.verify_claim()
        elif self._has_once_call:
            await self.run.save(must_succeed=True)
        elif self.run.unproven_since_resume:
            # If this takes the process down, it is known what did.
            await self.run.save(force=True)
        elif self.run.checkpointer is not None:
            self._intent_pending = True
            self.run.intent_timer.schedule(self)

    async def call(self, request: ExecutableCall) -> Any:
        """The result of the call: the recorded one, or that of making it now. Recorded when this returns."""
        live, state = self.run, self.state
        if request.call_id in state.results:
            return state.results[request.call_id]
        brood = ChildRuns(live, request.call_id, self._start_child)
        context = ToolContext(
            info=live.info,
            step=state.steps + 1,
            call_id=request.call_id,
            tool=request.tool,
            arguments=request.arguments,
            start_child=brood.start,
        )
        result = None
        if request.effect is _ONCE and request.call_id in self._in_doubt:
            result = await self._resolve_in_doubt(request, context)
            if result is not None:
                self._record_result(request, result, brood)
        if result is None:
            result = await self._execute_call(request, context, brood)
        if self._outstanding > 0:  # the last result of a batch is saved with the step
            await live.save(force=request.effect is _ONCE)
        return result

    def _record_result(
        self, request: ExecutableCall, result: Any, children: ChildRuns, usage: Usage = NO_USAGE
    ) -> None:
        """The result, and all that was used for it, at once: no save can hold the one without the other."""
        state = self.state
        state.results[request.call_id] = result
        state.own_usage = state.own_usage + usage
        if children.run_ids:
            state.child_usage = state.child_usage + children.usage
            self._finished_children.extend(children.run_ids)
        self._outstanding -= 1

    async def _execute_call(self, request: ExecutableCall, context: ToolContext, children: ChildRuns) -> Any:
        live, step = self.run, context.step
        if request.effect is _ONCE:
            await live.verify_claim()
        if live.has_listeners:
            await live.emit(RunEvent(kind="tool_start", step=step, name=request.tool, call_id=request.call_id))
        began = live.clock.monotonic() if live.recorder is not None else 0.0
        token = _CURRENT_CALL.set(context)
        try:
            result = await request.execute()
        except Exception as exc:
            children.raise_if_interrupted(exc)
            if live.is_resumable_after(exc):
                live.call_error = exc
            raise
        finally:
            _CURRENT_CALL.reset(token)
            children.closed = True
            if children.run_ids:
                await children.cancel_all()
        children.raise_if_interrupted()
        # Before anybody is told: a call that was made stays made, whatever those who are told do.
        self._record_result(request, result, children, ONE_TOOL_CALL)
        if live.recorder is not None:
            took = timedelta(seconds=live.clock.monotonic() - began)
            live.recorder.tool(context, effect=request.effect.value, error=request.is_error(result), took=took)
        if live.has_listeners:
            error = request.is_error(result)
            await live.emit(
                RunEvent(kind="tool_end", step=step, name=request.tool, call_id=request.call_id, error=error)
            )
        return result

    async def _resolve_in_doubt(self, request: ExecutableCall, context: ToolContext) -> Any:
        """What is known of a call that was started and whose result was never recorded; `None`: make it now."""
        if request.reconcile is not None:
            try:
                verdict = await request.reconcile(context)
            except Exception as exc:  # the user's code: that it cannot tell is an answer, too
                if self.run.is_resumable_after(exc):
                    raise
                log.warning("run %s: reconciling %s failed: %s", self.run_id, request.tool, exc, exc_info=exc)
            else:
                if isinstance(verdict, Completed):
                    return request.reconciled_result(verdict.result)
                if verdict is NOT_EXECUTED:
                    return None
        if self.run.recorder is not None:
            self.run.recorder.event("in doubt", f"{request.tool} {request.call_id}")
        if request.in_doubt == "park":
            self.state.annotations[IN_DOUBT_KEY] = sorted(
                {*self.state.annotations.get(IN_DOUBT_KEY, ()), request.call_id}
            )
            raise RunParked("in doubt", f"call {request.call_id} of {request.tool} may or may not have happened")
        return request.error_result(UNKNOWN_OUTCOME)

    # -- the intent of harmless calls ---------------------------------------------------------------------------

    def save_intent(self) -> None:
        """The calls take a while: have the reply that asks for them written meanwhile."""
        self._intent_pending = False
        task = asyncio.get_running_loop().create_task(self.run.save(force=self._has_idempotent_call))
        self._intent_saves.add(task)
        task.add_done_callback(self._on_intent_saved)

    def _on_intent_saved(self, task: "asyncio.Task[bool]") -> None:
        self._intent_saves.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.run.stop(error)

    def _cancel_intent(self) -> None:
        if self._intent_pending:
            self._intent_pending = False
            self.run.intent_timer.cancel(self)

    async def close(self) -> None:
        """The conversation is over, one way or the other: leave nothing running behind it."""
        self._cancel_intent()
        if self._intent_saves:
            await asyncio.gather(*self._intent_saves, return_exceptions=True)


def _filter_unfinished(calls: Sequence[AnnouncedCall], state: RunState) -> list[AnnouncedCall]:
    return [call for call in calls if call.call_id not in state.results]
