"""The state of a run: history, phases, results, usage; and the times of its steps."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, overload

import msgspec

from holdfast.clock import Clock
from holdfast.core.errors import format_trace
from holdfast.core.run.messages import NATIVE_CODEC, NO_USAGE, MessageCodec, Usage
from holdfast.core.run.turns import NO_TOTALS, Totals, TurnInput, TurnRecord
from holdfast.core.run.waiting import CallToken, Decision, WaitingCall


class History(Sequence[Any]):
    """A list of messages that grows at its end, or is rewritten as a whole.

    A checkpointer remembers its length and the number of rewrites. With equal rewrites only the messages after that
    length are new.
    """

    __slots__ = ("_messages", "finished_count", "rewrites", "rewritten_count", "turn_start")

    def __init__(self, messages: Iterable[Any] = ()) -> None:
        self._messages = list(messages)
        #: The length when the last step was finished, or after the last rewrite.
        self.finished_count: int = len(self._messages)
        self.rewrites: int = 0
        #: The length after the last rewrite.
        self.rewritten_count: int = 0
        #: Where the messages of the current turn begin; after a rewrite, the messages since then.
        self.turn_start: int = 0

    def append(self, message: Any) -> None:
        self._messages.append(message)

    def extend(self, messages: Iterable[Any]) -> None:
        self._messages.extend(messages)

    def remove(self, message: Any) -> int:
        """Remove this message, one that no store has, and return its place."""
        place = next(i for i in reversed(range(len(self._messages))) if self._messages[i] is message)
        del self._messages[place]
        return place

    def rewrite(self, messages: Iterable[Any]) -> None:
        """Replace all messages: for compaction."""
        self._messages = list(messages)
        self.finished_count = self.rewritten_count = self.turn_start = len(self._messages)
        self.rewrites += 1

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._messages)

    def __repr__(self) -> str:
        return f"History({len(self._messages)} messages, {self.rewrites} rewrites)"


class PhaseOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A finished phase."""

    name: str
    output: Any
    #: The run's step count and execution time when the phase ended.
    steps: int
    elapsed: timedelta = timedelta(0)


class CallTime(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """When a tool call was made, in milliseconds after its step began."""

    call_id: str
    start: int
    end: int


class StepTimes(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How long a step took in the process that finished it, in milliseconds. For people: no part of the state."""

    took: int
    #: Until the reply was complete; zero if an earlier process has recorded the reply.
    model: int = 0
    calls: tuple[CallTime, ...] = ()


class StepCalls(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of calls of the current step that have no result."""

    #: Calls that wait, by call id.
    waits: dict[str, WaitingCall] = {}
    #: Announced `once` calls that were never started. Stored when an attempt has ended, because after a crash any
    #: announced call may have been started; and before each call of those that are made in order.
    not_started: tuple[str, ...] = ()
    #: Calls in doubt that a person has to resolve. The run is parked.
    in_doubt: tuple[str, ...] = ()
    #: Calls in doubt that a person has resolved since the last attempt, with the decisions: for observers of the next.
    resolved: tuple[WaitingCall, ...] = ()
    #: Their holders may give the results of calls, also before the tools have returned `Deferred`.
    tokens: tuple[CallToken, ...] = ()

    def set_wait(self, call: WaitingCall) -> "StepCalls":
        return msgspec.structs.replace(self, waits={**self.waits, call.call_id: call})

    def remove_wait(self, call_id: str) -> "StepCalls":
        waits = {each: wait for each, wait in self.waits.items() if each != call_id}
        return msgspec.structs.replace(self, waits=waits)

    def remove_call(self, call_id: str) -> "StepCalls":
        """Return these without a call that has its result."""
        known = self.remove_wait(call_id)
        in_doubt = tuple(each for each in self.in_doubt if each != call_id)
        known = msgspec.structs.replace(known.mark_started(call_id), in_doubt=in_doubt).remove_tokens({call_id})
        return NO_CALLS if known == NO_CALLS else known

    def mark_started(self, call_id: str) -> "StepCalls":
        not_started = tuple(each for each in self.not_started if each != call_id)
        return msgspec.structs.replace(self, not_started=not_started)

    def add_token(self, token: CallToken) -> "StepCalls":
        return self if token in self.tokens else msgspec.structs.replace(self, tokens=(*self.tokens, token))

    def remove_tokens(self, call_ids: Container[str]) -> "StepCalls":
        return msgspec.structs.replace(self, tokens=tuple(each for each in self.tokens if each.call_id not in call_ids))

    def has_token(self, call_id: str) -> bool:
        """Whether the result of this call may come before its tool has returned `Deferred`."""
        return any(token.call_id == call_id for token in self.tokens)

    @property
    def undecided(self) -> tuple[WaitingCall, ...]:
        """The calls that still wait."""
        return tuple(call for call in self.waits.values() if call.decision is None)

    @property
    def decisions(self) -> dict[str, Decision]:
        """The decisions of people and other programs, by call id."""
        return {call.call_id: found for call in self.waits.values() if (found := call.recorded_decision) is not None}


NO_CALLS = StepCalls()


class RetryState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The retries of a run's calls after transient errors."""

    #: How many there were.
    count: int = 0
    #: The last error.
    error: str = ""
    #: When the call is repeated. `None`: no call waits for that.
    next_at: datetime | None = None
    #: How many times in a row the run was interrupted because its model was unavailable.
    outages: int = 0


NO_RETRY = RetryState()


class Faults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What kept earlier attempts from making progress."""

    #: Attempts in a row in which the agent could not be built.
    build_failures: int = 0
    #: The step in which the run last ended its process, and how. Zero: it did not.
    exit_step: int = 0
    exit_error: str = ""


NO_FAULTS = Faults()

#: What ports keep with a run, by the name of the port.
PortData = Mapping[str, Any]


class StepEnd(msgspec.Struct, frozen=True):
    """The part of the state when a step was finished that a later save may find changed."""

    own_usage: Usage = NO_USAGE
    child_usage: Usage = NO_USAGE
    retry: RetryState = NO_RETRY
    port_data: PortData = {}
    loop_data: Any = None
    #: The calls of the step that waited, by call id.
    decisions: dict[str, Decision] = {}
    times: StepTimes | None = None
    #: The tracebacks of its failed calls, by call id: for operators, no part of the state.
    traces: dict[str, str] = {}


_NO_STEP = StepEnd()


@dataclass(slots=True, kw_only=True)
class RunState:
    """The current state of a run. The loop changes it; a checkpointer reads it when it saves."""

    codec: MessageCodec = NATIVE_CODEC
    #: The conversation of the current phase.
    history: History = field(default_factory=History)
    #: Finished steps of the whole run.
    steps: int = 0
    #: Finished phases, by position.
    phases: list[PhaseOutput] = field(default_factory=list)
    #: The name of the current phase. Empty without phases, and in runs of versions that did not store it.
    phase: str = ""
    #: Results of tool calls that are not in the history yet, by call id.
    results: dict[str, Any] = field(default_factory=dict)
    #: Tracebacks of calls of the current step that have failed in this process, by call id.
    traces: dict[str, str] = field(default_factory=dict)
    #: Usage of the run itself.
    own_usage: Usage = NO_USAGE
    #: Usage of its child runs.
    child_usage: Usage = NO_USAGE
    #: Execution time, without the time it was interrupted.
    elapsed: timedelta = timedelta(0)
    # The structs and mappings from here on are replaced, not changed: a save compares them by identity.
    #: Calls of the current step that have no result.
    calls: StepCalls = NO_CALLS
    retry: RetryState = NO_RETRY
    faults: Faults = NO_FAULTS
    #: Messages of critics that no step has taken yet.
    nudges: tuple[str, ...] = ()
    #: Small plain data of ports, each under its own name. Set it with `set_port_data`.
    port_data: PortData = field(default_factory=dict)
    #: Plain data of the loop.
    loop_data: Any = None
    #: It may have steps to undo: a cancel is left to a process that can execute it.
    undo_on_cancel: bool = False
    #: It may have children in the background, which end with it.
    starts_runs: bool = False
    #: Ids of mail that the next save consumes, in the same write as the entries that use it.
    consumed: list[str] = field(default_factory=list)
    #: The next save is refused if the store has unread mail of these topics, not counting `consumed`. For a state that
    #: says that no such mail has come, such as an expiry.
    unless_mail: tuple[str, ...] = ()
    #: Events for watchers that the next save adds to the journal: the number of messages before each, and its body.
    recorded_events: list[tuple[int, bytes]] = field(default_factory=list)
    #: The last step that was finished in this process.
    step_end: StepEnd = _NO_STEP
    #: The turns of a conversation that have ended, and the current one.
    turns: list[TurnRecord] = field(default_factory=list)
    turn: TurnInput | None = None
    #: What the run had used when the current turn began. Bounds count from there.
    turn_totals: Totals = NO_TOTALS

    @property
    def usage(self) -> Usage:
        """Usage of the run and its child runs."""
        return self.own_usage + self.child_usage

    def finish_step(self, times: StepTimes | None = None) -> None:
        """Count the step: the reply and all its tool results are in the history."""
        self.steps += 1
        self.results.clear()
        self.history.finished_count = len(self.history)
        decisions = {} if self.calls is NO_CALLS else self.calls.decisions
        traces, self.traces, self.calls = self.traces, {}, NO_CALLS
        self.step_end = StepEnd(
            self.own_usage, self.child_usage, self.retry, self.port_data, self.loop_data, decisions, times, traces
        )

    def record_result(self, call_id: str, result: Any, error: BaseException | None) -> None:
        """Keep the result of a call until its step is finished, with the traceback of its error."""
        self.results[call_id] = result
        if error is not None:
            self.traces[call_id] = format_trace(error)

    def finish_call(
        self, call_id: str, result: Any, times: StepTimes | None = None, error: BaseException | None = None
    ) -> None:
        """Add the result of a call that is a step of its own to the history, and count the step."""
        self.steps += 1
        self.results.pop(call_id, None)
        self.history.append(result)
        self.history.finished_count = len(self.history)
        decisions: dict[str, Decision] = {}
        if self.calls is not NO_CALLS:
            decisions = {each: decision for each, decision in self.calls.decisions.items() if each == call_id}
            self.calls = self.calls.remove_call(call_id)
        traces = {} if error is None else {call_id: format_trace(error)}
        self.step_end = StepEnd(
            self.own_usage, self.child_usage, self.retry, self.port_data, self.loop_data, decisions, times, traces
        )

    def reopen_call(self, call_id: str, result: Any, calls: StepCalls, step_end: StepEnd) -> None:
        """Undo `finish_call`: the store has rolled the call back.

        Args:
            calls: and `step_end`: as they were before.
        """
        self.steps -= 1
        place = self.history.remove(result)
        if self.history.finished_count > place:
            self.history.finished_count -= 1
        if (wait := calls.waits.get(call_id)) is not None:
            self.calls = self.calls.set_wait(wait)
        self.step_end = step_end

    def restart(self, messages: Iterable[Any]) -> None:
        """Drop the history and the open calls, and begin with these messages. Usage, steps and times stay."""
        self.history.rewrite(())
        self.history.extend(messages)
        self.results.clear()
        self.calls = NO_CALLS
        self.undo_on_cancel = False

    def set_port_data(self, name: str, value: Any) -> None:
        """Keep plain data of a port with the run. The next save contains it."""
        self.port_data = {**self.port_data, name: value}

    def finish_phase(self, name: str, output: Any) -> None:
        """Record the output of the current phase and start an empty conversation."""
        self.phases.append(PhaseOutput(name=name, output=output, steps=self.steps, elapsed=self.elapsed))
        self.phase = ""
        self.history = History()
        self.results.clear()
        self.calls = NO_CALLS
        self.undo_on_cancel = False  # the steps of a finished phase are final

    @property
    def turn_steps(self) -> int:
        """Finished steps of the current turn; without turns, of the run."""
        return self.steps - self.turn_totals.steps

    @property
    def turn_elapsed(self) -> timedelta:
        """Execution time of the current turn; without turns, of the run."""
        return self.elapsed - self.turn_totals.elapsed

    @property
    def phase_elapsed(self) -> timedelta:
        """Execution time of the current phase."""
        return self.elapsed - (self.phases[-1].elapsed if self.phases else timedelta(0))

    @property
    def phase_steps(self) -> int:
        """Finished steps of the current phase; without phases, of the current turn."""
        return self.steps - self.phases[-1].steps if self.phases else self.turn_steps


#: A write costs some hundredths of this time at most; repeating such a reply costs all of it.
_COSTLY_REPLY_S = 0.1


class StepTimer:
    """The times of the step in progress, in this process."""

    __slots__ = ("_began_at", "_calls", "_clock", "_replied_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: `None` between two steps.
        self._began_at: float | None = None
        self._replied_at: float | None = None
        self._calls: list[CallTime] = []

    def begin(self) -> None:
        """The model is asked now."""
        self._began_at, self._replied_at = self._clock.monotonic(), None

    def reply(self) -> bool:
        """The reply is complete: return whether it took so long that it is worth a write of its own.

        Without `begin`, an earlier process has recorded it.
        """
        now, is_new = self._clock.monotonic(), self._replied_at is None
        self._replied_at = now
        if self._began_at is None:
            self._began_at = now
        return is_new and now - self._began_at >= _COSTLY_REPLY_S

    def add_call(self, call_id: str, started_at: float) -> None:
        """A call that was started then has its result."""
        began_at = self._began_at
        if began_at is not None:
            start, end = started_at - began_at, self._clock.monotonic() - began_at
            self._calls.append(CallTime(call_id, round(start * 1000), round(end * 1000)))

    def end(self) -> StepTimes | None:
        """Return the times of the step, which is finished; `None` if it was not measured."""
        began_at, replied_at, calls = self._began_at, self._replied_at, self._calls
        self._began_at, self._replied_at, self._calls = None, None, []
        if began_at is None:
            return None
        took = round((self._clock.monotonic() - began_at) * 1000)
        model = took if replied_at is None else round((replied_at - began_at) * 1000)
        return StepTimes(took, model, tuple(calls))
