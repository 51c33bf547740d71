"""What a loop is given to drive a conversation: steps, bounds, tool calls, and durability under all of it."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol

from holdfast.run.agent import Profile
from holdfast.run.call import _CURRENT, CallContext
from holdfast.run.children import Brood, StartChild
from holdfast.run.effects import DID_NOT_HAPPEN, Effect, Happened, InDoubt, Reconcile
from holdfast.run.errors import IterationsExceeded, RunParked
from holdfast.run.live import LiveRun, log
from holdfast.run.ports import RunEvent
from holdfast.run.state import RunState
from holdfast.run.usage import NO_USAGE, ONE_TOOL_CALL, Usage

#: What a model is told about a call in doubt.
UNKNOWN_OUTCOME = (
    "Unknown outcome: the process stopped after this call was started and before its result was recorded. "
    "It may or may not have taken effect. Check before you call it again."
)


class Intended(Protocol):
    """A call that a reply asks for, as far as it matters before the call is made. A `CallRequest` is one."""

    @property
    def call_id(self) -> str: ...

    @property
    def effect(self) -> Effect: ...


_NONE: frozenset[str] = frozenset()

#: Asked for at every call, and an enum takes its time to find a member.
_ONCE: Final = Effect.ONCE
_IDEMPOTENT: Final = Effect.IDEMPOTENT

#: Among the notes of a run that is parked: the calls in doubt that a person is asked about.
IN_DOUBT = "in_doubt"


class Requested(Intended, Protocol):
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

    def tell(self, text: str) -> Any:
        """A result, in the same form, that tells the model something instead."""
        ...

    def found(self, value: Any) -> Any:
        """A result, in the same form, of what a reconcile found."""
        ...

    def failed(self, result: Any) -> bool: ...


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
    tell: Callable[[str], Any]
    found: Callable[[Any], Any]
    reconcile: Reconcile | None = None
    in_doubt: InDoubt = "tell"
    failed: Callable[[Any], bool] = lambda result: False


class Drive:
    """One conversation of one run: the whole run, or one phase of it."""

    def __init__(self, live: LiveRun, profile: Profile, prompt: str, start_child: StartChild | None = None) -> None:
        self.profile, self.prompt = profile, prompt
        self.live, self.state = live, live.state
        self._start_child = start_child
        #: Calls of the current batch that have no result yet.
        self._outstanding = 0
        self._doubtful = _NONE
        self._ran_once = False
        self._intends = False
        #: Among the calls that are intended is one with a key, which is only good if the same call is made again.
        self._keyed = False
        self._background: set[asyncio.Task[bool]] = set()
        #: Children whose results are in this step.
        self._raised: list[str] = []

    @property
    def run_id(self) -> str:
        return self.live.info.run_id

    # -- steps --------------------------------------------------------------------------------------------------

    async def seed(self, messages: Iterable[Any]) -> None:
        """Begin the conversation. Returns when the run is in the store, before any model was asked."""
        self.state.history.extend(messages)
        await self.live.save(urgent=True)

    async def begin_step(self, prepare: Callable[[], Awaitable[None]] | None = None) -> list[str]:
        """Before each model call: bounds, budget, shutdown. Returns the messages that were steered in.

        They have to be put into the history at once: a save in between would hold them nowhere.

        Args:
            prepare: what the loop has to wait for before it can do so, such as compaction.
        """
        live, state = self.live, self.state
        live.boundary()
        bounds, phase_bounds = self.profile.bounds, self.profile.phase_bounds
        if state.iteration >= bounds.max_iterations:
            raise IterationsExceeded(self.run_id, bounds.max_iterations)
        if phase_bounds is not None and state.phase_iteration >= phase_bounds.max_iterations:
            raise IterationsExceeded(self.run_id, phase_bounds.max_iterations)
        if live.ports.budget is not None:
            await live.ports.budget.check(live.info, state)
        if live.is_watched:
            await live.emit(RunEvent(kind="step", iteration=state.iteration + 1))
        if prepare is not None:
            await prepare()
        # Taken last: what stops the run before its step must not lose what somebody said to it.
        if not live.has_steering:
            return []
        told = 0
        while told < len(live.steering):
            await live.emit(RunEvent(kind="steered", iteration=state.iteration + 1, text=live.steering[told]))
            told += 1
        return live.take_steering()

    def used(self, usage: Usage) -> None:
        """Count what a model call or a tool of this run has used."""
        self.state.own_usage = self.state.own_usage + usage

    async def said(self, text: str) -> None:
        """The model replied; for whoever watches."""
        if self.live.is_watched:
            await self.live.emit(RunEvent(kind="reply", iteration=self.state.iteration + 1, text=text))

    async def end_step(self) -> None:
        """The reply and all its tool results are in the history: the step is finished and saved."""
        live, state = self.live, self.state
        urgent, self._ran_once = self._ran_once or bool(self._raised), False
        if self._intends:
            self._intends = False
            live.intents.end(self)
            urgent = urgent or self._keyed
        state.finish_step()
        self._outstanding, self._doubtful = 0, _NONE
        if await live.save(urgent=urgent) and self._raised:
            await self._forget_children()
        if live.ports.budget is not None:
            live.count_time()
            await live.ports.budget.commit(live.info, state)
        if live.recorder is not None:
            live.recorder.step(state.iteration, state.own_usage)

    async def _forget_children(self) -> None:
        """What children left behind may go: their results are in the store with this run."""
        if self.live.ports.checkpoints is None:
            return
        try:
            await self.live.ports.checkpoints.forget(self._raised)
        except Exception as exc:  # trouble with the store must never become the run's result
            log.warning("run %s: its children will be removed later: %s", self.run_id, exc)
        else:
            self._raised = []

    @property
    def has_steering(self) -> bool:
        """Whether a message waits to be taken in: then an answer is not the end yet."""
        return self.live.has_steering

    # -- tool calls ---------------------------------------------------------------------------------------------

    async def intend(self, calls: Sequence[Intended], *, resumed: bool = False, untried: Collection[str] = ()) -> None:
        """The model asked for these calls. Once this returns, those that must not happen twice may be made.

        Args:
            resumed: the reply that asks for them was saved by an earlier life of this run, so every call without a
                recorded result is in doubt.
            untried: but not these. The loop knows that they were never started, because it keeps a record of its own:
                calls that wait for an approval, say.
        """
        missing = _without_result(calls, self.state) if self.state.results else calls
        self._outstanding = len(missing)
        self._ran_once = self._keyed = False
        for call in missing:
            self._ran_once = self._ran_once or call.effect is _ONCE
            self._keyed = self._keyed or call.effect is _IDEMPOTENT
        if resumed:
            self._doubtful = frozenset(call.call_id for call in missing).difference(untried)
            if self._ran_once:
                await self.live.confirm()
        elif self._ran_once:
            await self.live.save(essential=True)
        elif self.live.on_trial:
            # If this takes the process down, it is known what did.
            await self.live.save(urgent=True)
        elif self.live.checkpointer is not None:
            self._intends = True
            self.live.intents.begin(self)

    async def call(self, request: Requested) -> Any:
        """The result of the call: the recorded one, or that of making it now. Recorded when this returns."""
        live, state = self.live, self.state
        if request.call_id in state.results:
            return state.results[request.call_id]
        brood = Brood(live, request.call_id, self._start_child)
        context = CallContext(
            info=live.info,
            step=state.iteration + 1,
            call_id=request.call_id,
            tool=request.tool,
            arguments=request.arguments,
            start_child=brood.start,
        )
        result = None
        if request.effect is _ONCE and request.call_id in self._doubtful:
            result = await self._settle_doubt(request, context)
            if result is not None:
                self._record(request, result, brood)
        if result is None:
            result = await self._make(request, context, brood)
        if self._outstanding > 0:  # the last result of a batch is saved with the step
            await live.save(urgent=request.effect is _ONCE)
        return result

    def _record(self, request: Requested, result: Any, brood: Brood, usage: Usage = NO_USAGE) -> None:
        """The result, and all that was used for it, at once: no save can hold the one without the other."""
        state = self.state
        state.results[request.call_id] = result
        state.own_usage = state.own_usage + usage
        if brood.run_ids:
            state.child_usage = state.child_usage + brood.usage
            self._raised.extend(brood.run_ids)
        self._outstanding -= 1

    async def _make(self, request: Requested, context: CallContext, brood: Brood) -> Any:
        live, step = self.live, context.step
        if request.effect is _ONCE:
            await live.confirm()
        if live.is_watched:
            await live.emit(RunEvent(kind="tool_start", iteration=step, name=request.tool, call_id=request.call_id))
        began = live.clock.monotonic() if live.recorder is not None else 0.0
        token = _CURRENT.set(context)
        try:
            result = await request.execute()
        except Exception as exc:
            brood.check(exc)
            if live.is_left_by(exc):
                live.failing = exc
            raise
        finally:
            _CURRENT.reset(token)
            brood.over = True
            if brood.run_ids:
                await brood.end()
        brood.check()
        # Before anybody is told: a call that was made stays made, whatever those who are told do.
        self._record(request, result, brood, ONE_TOOL_CALL)
        if live.recorder is not None:
            took = timedelta(seconds=live.clock.monotonic() - began)
            live.recorder.tool(context, effect=request.effect.value, error=request.failed(result), took=took)
        if live.is_watched:
            error = request.failed(result)
            await live.emit(
                RunEvent(kind="tool_end", iteration=step, name=request.tool, call_id=request.call_id, error=error)
            )
        return result

    async def _settle_doubt(self, request: Requested, context: CallContext) -> Any:
        """What is known of a call that was started and whose result was never recorded; `None`: make it now."""
        if request.reconcile is not None:
            try:
                verdict = await request.reconcile(context)
            except Exception as exc:  # the user's code: that it cannot tell is an answer, too
                if self.live.is_left_by(exc):
                    raise
                log.warning("run %s: reconciling %s failed: %s", self.run_id, request.tool, exc, exc_info=exc)
            else:
                if isinstance(verdict, Happened):
                    return request.found(verdict.result)
                if verdict is DID_NOT_HAPPEN:
                    return None
        if self.live.recorder is not None:
            self.live.recorder.event("in doubt", f"{request.tool} {request.call_id}")
        if request.in_doubt == "park":
            self.state.notes[IN_DOUBT] = sorted({*self.state.notes.get(IN_DOUBT, ()), request.call_id})
            raise RunParked("in doubt", f"call {request.call_id} of {request.tool} may or may not have happened")
        return request.tell(UNKNOWN_OUTCOME)

    # -- the intent of harmless calls ---------------------------------------------------------------------------

    def save_intent(self) -> None:
        """The calls take a while: have the reply that asks for them written meanwhile."""
        self._intends = False
        task = asyncio.get_running_loop().create_task(self.live.save(urgent=self._keyed))
        self._background.add(task)
        task.add_done_callback(self._intent_saved)

    def _intent_saved(self, task: "asyncio.Task[bool]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.live.stop(error)

    def _cancel_intent(self) -> None:
        if self._intends:
            self._intends = False
            self.live.intents.end(self)

    async def close(self) -> None:
        """The conversation is over, one way or the other: leave nothing running behind it."""
        self._cancel_intent()
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)


def _without_result(calls: Sequence[Intended], state: RunState) -> list[Intended]:
    return [call for call in calls if call.call_id not in state.results]
