"""What the processes of a crash test write down, outside the store, for the judge to read.

Agents that another loop than the native one drives: what can be known of their runs.
"""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoint.codec import Progress, decode, read_checkpoint
from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.record import StoredRun
from holdfast.core.agent import AgentSource
from holdfast.core.execution.loop import Loop
from holdfast.core.message import Usage


class TrialEvent(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something that happened in one life of the run. A life is one process that drives it; the first is number 0."""

    attempt: int = 0


class PointReachedEvent(TrialEvent, frozen=True, kw_only=True):
    """A crash point was passed."""

    point: str
    #: A later run crashes at this point when it meets the first of these marks.
    marks: Sequence[str]


class CrashEvent(TrialEvent, frozen=True, kw_only=True):
    """The process kills itself now, here."""

    point: str


class RunStartedEvent(TrialEvent, frozen=True, kw_only=True):
    """A run was begun or taken up again."""

    run_id: str
    #: The call that started it, if it is a child.
    parent_run_id: str | None = None
    call_id: str | None = None


class ModelRequestEvent(TrialEvent, frozen=True, kw_only=True):
    """A model was asked, and shown a conversation of a run; the key stands for all of it."""

    run_id: str
    key: str
    #: The place of the conversation among those of the run: there is one for each phase.
    phase: int
    #: Where the messages begin that are new since the model was last asked.
    start: int
    messages: Sequence[bytes]


class ModelReplyEvent(TrialEvent, frozen=True, kw_only=True):
    """What the model said to that."""

    run_id: str
    phase: int
    message: bytes


class ToolStartedEvent(TrialEvent, frozen=True, kw_only=True):
    """The body of a tool begins."""

    run_id: str
    step: int
    call_id: str
    tool: str
    #: Empty where it is known only after the call: then `Effected` tells.
    effect: str


class ToolEffectEvent(TrialEvent, frozen=True, kw_only=True):
    """What kind of effect a call has that another loop than the native one made."""

    run_id: str
    call_id: str
    effect: str


class OtherLoopReplyEvent(TrialEvent, frozen=True, kw_only=True):
    """A model of another loop has replied, in this step."""

    run_id: str
    step: int


class ToolReturnedEvent(TrialEvent, frozen=True, kw_only=True):
    """The body of a tool has returned; its result is not recorded yet."""

    run_id: str
    step: int
    call_id: str


class ReconciledEvent(TrialEvent, frozen=True, kw_only=True):
    """A tool's `reconcile` has said what became of a call."""

    run_id: str
    step: int
    call_id: str
    completed: bool
    not_executed: bool


class WriteAcknowledgedEvent(TrialEvent, frozen=True, kw_only=True):
    """The store has said that it wrote these entries, or that it removed the run."""

    run_id: str
    entries: Sequence[Entry] = ()
    rewrite: bool = False
    removed: bool = False


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finished call of another loop than the native one."""

    call_id: str
    body: bytes


class StoredJournal(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is in the store."""

    run_id: str
    status: str
    reason: str
    entries: Sequence[Entry] = ()
    #: Finished steps.
    steps: int = 0
    #: For another loop than the native one: the finished calls, and how many replies there are.
    call_results: Sequence[CallResult] | None = None
    replies: int = 0


class StoreFoundEvent(TrialEvent, frozen=True, kw_only=True):
    """What was in the store when this life began."""

    journals: Sequence[StoredJournal]


class RunClosingEvent(TrialEvent, frozen=True, kw_only=True):
    """A run of another loop as it is just before it is over."""

    journal: StoredJournal


class RunParkedEvent(TrialEvent, frozen=True, kw_only=True):
    """The run was parked, and is unparked now."""

    reason: str


class UsageEvent(TrialEvent, frozen=True, kw_only=True):
    """What a run has used so far, as its budget is told."""

    run_id: str
    steps: int
    own: Usage
    children: Usage


class OutputEvent(TrialEvent, frozen=True, kw_only=True):
    """The tested run came to its end, with this output."""

    output: Any


class StoreLeftEvent(TrialEvent, frozen=True, kw_only=True):
    """What was in the store when this life had ended in peace."""

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
    """An append-only file that one process at a time writes and that outlives it. Any thread may write."""

    def __init__(self, path: Path, attempt: int) -> None:
        self._attempt = attempt
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()

    def write(self, event: AnyEvent) -> None:
        """Once this returns, the note survives `kill -9`: it is with the operating system, in one piece."""
        line = memoryview(msgspec.json.encode(msgspec.structs.replace(event, attempt=self._attempt)) + b"\n")
        with self._lock:
            while line:
                line = line[os.write(self._file, line) :]


def read_events(path: Path) -> list[AnyEvent]:
    """All notes, in the order in which they were written."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=AnyEvent) for line in path.read_bytes().splitlines()]


class OtherLoops:
    """The loops of agents by the agents' names. Their messages are read by them alone."""

    def __init__(self) -> None:
        self._loops: dict[str, Loop] = {}

    def register(self, source: AgentSource) -> None:
        loop: Loop | None = getattr(source, "loop", None)
        if loop is not None:
            self._loops[source.name] = loop

    def __contains__(self, agent_name: str) -> bool:
        return agent_name in self._loops

    def read_journal(self, stored: StoredRun) -> StoredJournal:
        """A run as it is in the store, with what its loop makes of it."""
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
        state = read_checkpoint(stored, loop.codec).state
        calls = loop.finished_calls(state.history, state.results)
        answers = [CallResult(call_id=call.call_id, body=msgspec.json.encode(call)) for call in calls]
        replies = state.steps + bool(loop.pending_calls(state.history))
        return msgspec.structs.replace(journal, call_results=answers, replies=replies)
