"""Observers: they see an attempt in the process that executes it. The dispatcher, and the events of the kernel.

A new kind of event is a struct here and one `emit`. Public events, those of `App.events`, are observed too.
"""

import logging
from collections.abc import Iterable, Set
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, Protocol, get_args, runtime_checkable

import msgspec

from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.run.info import RunInfo
from holdfast.core.run.run_events import Event
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd
from holdfast.core.run.waiting import Decision, WaitingCall

if TYPE_CHECKING:
    from holdfast.core.ports import Checkpointer, Critic, RunListener

__all__ = [
    "PUBLIC_EVENTS",
    "AttemptControl",
    "AttemptEnded",
    "AttemptEnding",
    "AttemptStarted",
    "CallAnswered",
    "CallEnded",
    "CallFailed",
    "CallInDoubt",
    "CallStarted",
    "ClaimVerified",
    "DraftEnded",
    "ModelAsked",
    "ModelNamed",
    "ObservedEvent",
    "Observer",
    "ObserverFactory",
    "ReplyReceived",
    "Retried",
    "Saved",
    "StepEnded",
]

log: logging.Logger = logging.getLogger("holdfast.run")


class AttemptStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt begins: its checkpoint is open."""

    #: It begins a turn of a conversation.
    new_turn: bool = False


class AttemptEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt ends. Port data that an observer sets now is saved with it."""

    end: AttemptEnd


class AttemptEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint is finalized. The last event of an attempt."""

    end: AttemptEnd
    error: BaseException | None = None
    #: A turn of a conversation ended, and the conversation waits for the next message.
    turn_ended: bool = False


class ModelAsked(msgspec.Struct, frozen=True):
    """The model is asked now, in this task."""


class ModelNamed(msgspec.Struct, frozen=True):
    """The model that is asked is known. Follows `ModelAsked`, where the loop knows a name."""

    #: As the framework names it, such as `openai:gpt-5`; for a function its name.
    model: str


class ReplyReceived(msgspec.Struct, frozen=True):
    """The model has replied. The usage of the reply is counted before the next event."""

    #: The model that has replied, as the provider names it. Empty: unknown.
    model: str = ""


class CallStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A tool is called now, in this task."""

    call: ToolContext
    effect: Effect


class CallEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The call has ended, in the task that started it. A result is recorded."""

    call: ToolContext
    effect: Effect
    #: `error`: the result says that the call failed. `raised`: the call has no result.
    outcome: Literal["done", "error", "waiting", "raised"]
    #: Set if it was raised.
    error: BaseException | None = None
    took: timedelta


class CallFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A tool has raised an error: its last try, if it has several. The model reads it, or it fails the run."""

    call: ToolContext
    error: BaseException


class CallInDoubt(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the call is unknown, also after reconciling."""

    call: ToolContext


class CallAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waited has its decision."""

    call: WaitingCall
    decision: Decision


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """A try of a model call or a tool call failed. The next one follows after `delay`."""

    #: The tool call; both are empty for a model call.
    tool: str
    call_id: str
    failed_tries: int
    delay: timedelta
    error: BaseException


class StepEnded(msgspec.Struct, frozen=True):
    """The step is finished and saved: the state counts it."""

    #: `None`: it was not measured.
    took_seconds: float | None = None


class Saved(msgspec.Struct, frozen=True):
    """The state was saved, and the attempt waited this long for it."""

    took_seconds: float


class ClaimVerified(msgspec.Struct, frozen=True):
    """The claim was proven before a `once` call. That is not a save."""

    took_seconds: float


class DraftEnded(msgspec.Struct, frozen=True):
    """The reply whose text was shown as it arrived is complete, and in the history."""


ObservedEvent = (
    Event
    | AttemptStarted
    | AttemptEnding
    | AttemptEnded
    | ModelAsked
    | ModelNamed
    | ReplyReceived
    | CallStarted
    | CallEnded
    | CallFailed
    | CallInDoubt
    | CallAnswered
    | Retried
    | StepEnded
    | Saved
    | ClaimVerified
    | DraftEnded
)

#: The kinds of public events.
PUBLIC_EVENTS: frozenset[type] = frozenset(get_args(Event))

MODEL_ASKED, REPLY_RECEIVED, DRAFT_ENDED = ModelAsked(), ReplyReceived(), DraftEnded()


class AttemptControl(Protocol):
    """One attempt of a run, for its observers and its critic."""

    @property
    def info(self) -> RunInfo: ...

    @property
    def state(self) -> RunState: ...

    @property
    def checkpointer(self) -> "Checkpointer | None":
        """`None`: the run is not durable."""
        ...

    @property
    def resumed(self) -> bool: ...

    @property
    def taken_from(self) -> str | None:
        """The worker that executed the run before, if that one died."""
        ...

    @property
    def is_child(self) -> bool:
        """Whether a tool of another attempt of this process has started it."""
        ...

    def nudge(self, text: str) -> None:
        """Put a message in front of the run's next step.

        Raises:
            PayloadError: the text cannot be stored. Nothing was changed.
        """
        ...

    def kill(self, reason: str) -> None:
        """End the run with `RunKilled`."""
        ...

    async def save(self) -> None:
        """Save the run's port data now instead of with its next step."""
        ...


class Observer(Protocol):
    """Sees one attempt."""

    @property
    def kinds(self) -> frozenset[type]:
        """The classes of the events that it wants. Read once, when the attempt begins."""
        ...

    def observe(self, event: ObservedEvent) -> None:
        """See what has happened, after it was recorded, in the task in which it happened. Returns at once.

        An observer that raises is logged. It gets no further event of this attempt but `AttemptEnded`.
        """
        ...


@runtime_checkable
class ObserverFactory(Protocol):
    """Makes observers. The executor closes one that has `close` when its last attempt has ended."""

    def begin(self, attempt: AttemptControl) -> Observer | None:
        """Return the observer of an attempt, whose checkpoint is open; `None` if it is not observed.

        Called in the task of the attempt. Keep data that has to survive the process in port data.
        """
        ...


class Observers:
    """The observers of one attempt, by the kinds of events that they want, and the host's listener."""

    __slots__ = ("_by_kind", "_info", "_listener", "_watches", "has_begun", "wanted")

    def __init__(self, info: RunInfo, listener: "RunListener | None", above: "Observers | None" = None) -> None:
        """Make the dispatcher of an attempt.

        Args:
            above: the dispatcher of the attempt that started this one. Its critics see this one too.
        """
        self._info, self._listener = info, listener
        self._by_kind: dict[type, tuple[Observer, ...]] = {} if listener is None else dict.fromkeys(PUBLIC_EVENTS, ())
        #: `AttemptStarted` was shown.
        self.has_begun: bool = False
        #: The kinds of events that an observer or the listener wants. Others need not be made.
        self.wanted: Set[type] = self._by_kind.keys()
        self._watches: tuple[Observer, ...] = () if above is None else above._watches
        for watch in self._watches:
            self._subscribe(watch, PUBLIC_EVENTS)

    def begin(self, factories: Iterable[ObserverFactory], attempt: AttemptControl) -> None:
        """Add the observers of the attempt. A factory that raises is logged."""
        for factory in factories:
            try:
                if (observer := factory.begin(attempt)) is not None:
                    self._subscribe(observer, observer.kinds)
            except Exception as exc:  # a host's own observer may raise anything
                self._log_failure("could not begin", factory, exc)

    def start(self, factories: Iterable[ObserverFactory], attempt: AttemptControl, started: AttemptStarted) -> None:
        """Add the observers of the attempt, whose checkpoint is open, and show them that it begins."""
        self.begin(factories, attempt)
        self.has_begun = True
        self.emit(started)

    def begin_watch(self, critic: "Critic", attempt: AttemptControl, max_runtime: timedelta | None) -> bool:
        """Add the watch of a critic. Return whether it watches the attempt. A critic that raises is logged."""
        try:
            watch = critic.begin(attempt, max_runtime)
            if watch is not None:
                self._subscribe(watch, watch.kinds)
        except Exception as exc:  # a host's own critic may raise anything
            self._log_failure("could not begin", critic, exc)
            return False
        if watch is not None:
            self._watches = (*self._watches, watch)
        return watch is not None

    def emit(self, event: ObservedEvent) -> None:
        """Show an event to the observers."""
        for observer in self._by_kind.get(type(event), ()):
            try:
                observer.observe(event)
            except Exception as exc:  # a host's own observer may raise anything
                self._log_failure("failed and sees no more of this attempt", observer, exc)
                self._unsubscribe(observer)

    async def publish(self, event: Event) -> None:
        """Show a public event to the observers, then to the listener. Raises what the listener raises."""
        self.emit(event)
        if self._listener is not None:
            await self._listener.on_event(self._info, event)

    def _subscribe(self, observer: Observer, kinds: Iterable[type]) -> None:
        for kind in kinds:
            self._by_kind[kind] = (*self._by_kind.get(kind, ()), observer)

    def _unsubscribe(self, observer: Observer) -> None:
        for kind, observers in self._by_kind.items():
            if kind is not AttemptEnded:  # then it releases what it holds
                self._by_kind[kind] = tuple(each for each in observers if each is not observer)

    def _log_failure(self, what: str, part: object, error: Exception) -> None:
        log.error("run %s: its observer %s %s", self._info.run_id, type(part).__name__, what, exc_info=error)
