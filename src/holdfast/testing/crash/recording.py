"""The event log of a crash test: a file beside the store, written by the tested processes and read by the checks."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoint.codec import decode, decode_run
from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import StoredRun
from holdfast.concurrency import THREADS
from holdfast.core.agents.agent import Agent, AgentSource
from holdfast.core.execution.native_loop import NATIVE_LOOP
from holdfast.core.loop import Loop
from holdfast.core.run.info import AgentDetails
from holdfast.core.run.messages import Usage


class TrialEvent(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something that happened in an attempt: a process that executes the run. The first attempt is number 0."""

    attempt: int = 0


class PointReachedEvent(TrialEvent, frozen=True, kw_only=True):
    """The process passed a crash point."""

    point: str
    #: A later attempt that is to crash here does so at the first of these marks.
    marks: Sequence[str]


class CrashEvent(TrialEvent, frozen=True, kw_only=True):
    """The process is about to kill itself at this point."""

    point: str


class RunStartedEvent(TrialEvent, frozen=True, kw_only=True):
    """A run was started or resumed."""

    run_id: str
    #: The tool call that started it, if it is a child run.
    parent_run_id: str | None = None
    call_id: str | None = None


class ModelRequestEvent(TrialEvent, frozen=True, kw_only=True):
    """A model was called with a conversation of the run. `key` is a hash of the whole conversation."""

    run_id: str
    key: str
    #: Each phase has a conversation of its own.
    phase: int
    #: Index of the first message in `messages`; the model has seen the ones before it.
    start: int
    messages: Sequence[bytes]


class ModelReplyEvent(TrialEvent, frozen=True, kw_only=True):
    """The reply of a model."""

    run_id: str
    phase: int
    message: bytes


class ToolStartedEvent(TrialEvent, frozen=True, kw_only=True):
    """The body of a tool starts."""

    run_id: str
    step: int
    call_id: str
    tool: str
    #: Empty if it is known only after the call; then a `ToolEffectEvent` follows.
    effect: str


class ToolEffectEvent(TrialEvent, frozen=True, kw_only=True):
    """The effect of a call that was made by a loop other than the native one."""

    run_id: str
    call_id: str
    effect: str


class OtherLoopReplyEvent(TrialEvent, frozen=True, kw_only=True):
    """A model of another loop replied in this step."""

    run_id: str
    step: int


class ToolReturnedEvent(TrialEvent, frozen=True, kw_only=True):
    """The body of a tool returned. Its result is not recorded yet."""

    run_id: str
    step: int
    call_id: str


class ReconciledEvent(TrialEvent, frozen=True, kw_only=True):
    """A tool's `reconcile` returned the outcome of a call."""

    run_id: str
    step: int
    call_id: str
    completed: bool
    not_executed: bool


class WriteAcknowledgedEvent(TrialEvent, frozen=True, kw_only=True):
    """The store acknowledged a write of these entries, or the removal of the run."""

    run_id: str
    entries: Sequence[Entry] = ()
    rewrite: bool = False
    removed: bool = False
    #: The parent of a run that was created, if it is a child.
    parent_run_id: str | None = None


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finished call of a loop other than the native one."""

    call_id: str
    body: bytes


class StoredJournal(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the store holds it."""

    run_id: str
    status: str
    reason: str
    entries: Sequence[Entry] = ()
    #: Finished steps.
    steps: int = 0
    #: For a loop other than the native one: the finished calls and the number of replies.
    call_results: Sequence[CallResult] | None = None
    replies: int = 0


class StoreFoundEvent(TrialEvent, frozen=True, kw_only=True):
    """The contents of the store when this attempt started."""

    journals: Sequence[StoredJournal]


class RunClosingEvent(TrialEvent, frozen=True, kw_only=True):
    """A run of another loop just before it is released or removed."""

    journal: StoredJournal


class RunParkedEvent(TrialEvent, frozen=True, kw_only=True):
    """The run was parked and is unparked now."""

    reason: str


class UsageEvent(TrialEvent, frozen=True, kw_only=True):
    """The usage of a run as its budget receives it."""

    run_id: str
    steps: int
    own: Usage
    children: Usage


class OutputEvent(TrialEvent, frozen=True, kw_only=True):
    """The tested run finished with this output."""

    output: Any


class StoreLeftEvent(TrialEvent, frozen=True, kw_only=True):
    """The contents of the store when this attempt had ended without a crash."""

    journals: Sequence[StoredJournal]


AnyEvent = (
    PointReachedEvent
    | CrashEvent
    | RunStartedEvent
    | ModelRequestEvent
    | ModelReplyEvent
    | OtherLoopReplyEvent
    | ToolStartedEvent
    | ToolReturnedEvent
    | ToolEffectEvent
    | ReconciledEvent
    | WriteAcknowledgedEvent
    | StoreFoundEvent
    | RunClosingEvent
    | RunParkedEvent
    | UsageEvent
    | OutputEvent
    | StoreLeftEvent
)


class EventLog:
    """An append-only file of events. One process at a time writes it, from any of its threads."""

    def __init__(self, path: Path, attempt: int) -> None:
        self._attempt = attempt
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = THREADS.get().make_lock()

    def write(self, event: AnyEvent) -> None:
        """Write one line. Once this returns, the event is in the page cache and survives `kill -9`."""
        line = memoryview(msgspec.json.encode(msgspec.structs.replace(event, attempt=self._attempt)) + b"\n")
        with self._lock:
            while line:
                line = line[os.write(self._file, line) :]


def read_events(path: Path) -> list[AnyEvent]:
    """Return all events in the order in which they were written."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=AnyEvent) for line in path.read_bytes().splitlines()]


def has_phase_agents(source: AgentSource) -> bool:
    """Whether a workflow or another agent executes some of its phases."""
    return isinstance(source, Agent) and any(phase.agent is not None for phase in source.phases)


class OtherLoops:
    """The loops of agents whose model calls are not recorded, by agent name. Only a loop can read its own messages."""

    def __init__(self) -> None:
        self._loops: dict[str, Loop] = {}

    def register(self, source: AgentSource) -> None:
        loop = AgentDetails.from_source(source).loop
        if loop is not None or has_phase_agents(source):
            self._loops[source.name] = loop or NATIVE_LOOP

    def __contains__(self, agent_name: str) -> bool:
        return agent_name in self._loops

    def read_journal(self, stored: StoredRun) -> StoredJournal:
        """Convert a stored run, with the calls and replies that its loop finds in it."""
        record = stored.record
        journal = StoredJournal(
            run_id=record.run_id,
            status=record.status.value,
            reason=record.reason,
            entries=stored.entries,
            steps=decode(record.progress, Progress).steps,
        )
        loop = self._loops.get(record.agent_name)
        if loop is None:
            return journal
        state = decode_run(stored, loop.codec).state
        calls = loop.finished_calls(state.history, state.results)
        call_results = [CallResult(call_id=call.call_id, body=msgspec.json.encode(call)) for call in calls]
        replies = state.steps + bool(loop.pending_calls(state.history))
        return msgspec.structs.replace(journal, call_results=call_results, replies=replies)
