"""The timeline of one trial, read from its event log, and the reading of journals that it needs."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.checkpoint.codec import RecordedResult, Step, decode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.run.messages import NATIVE_CODEC, Reply, ToolResult
from holdfast.testing.crash.instrument import hash_conversation
from holdfast.testing.crash.recording import (
    AnyEvent,
    CallResult,
    CrashEvent,
    ModelReplyEvent,
    ModelRequestEvent,
    OtherLoopReplyEvent,
    OutputEvent,
    ReconciledEvent,
    RunClosingEvent,
    RunParkedEvent,
    RunStartedEvent,
    StoredJournal,
    StoreFoundEvent,
    StoreLeftEvent,
    ToolEffectEvent,
    ToolReturnedEvent,
    ToolStartedEvent,
    TrialEvent,
    UsageEvent,
    WriteAcknowledgedEvent,
)

#: A call within its run: the step, and the call's id, which a later step may use again.
StepCallKey = tuple[int, str]


def decode_message(body: bytes) -> Any:
    """Decode a message of the native loop. Return `None` for a message of another loop."""
    try:
        return NATIVE_CODEC.decode(body)
    except Exception:  # the format of another loop's message is unknown
        return None


def read_conversations(entries: Sequence[Entry]) -> list[list[bytes]]:
    """Return the messages of each phase of a run, in order."""
    conversations: list[list[bytes]] = [[]]
    results: dict[str, bytes] = {}
    for entry in entries:
        if entry.kind is EntryKind.MESSAGE:
            conversations[-1].append(entry.body)
        elif entry.kind is EntryKind.RESULT:
            recorded = decode(entry.body, RecordedResult)
            results[recorded.call] = bytes(recorded.message)
        elif entry.kind is EntryKind.ADOPT:
            conversations[-1].extend(results[call] for call in decode(entry.body, list[str]))
        elif entry.kind is EntryKind.PHASE:
            conversations.append([])
    return conversations


def read_results(entries: Sequence[Entry], steps: int = 0) -> dict[StepCallKey, bytes]:
    """Return the tool results in a journal of the native loop.

    Args:
        steps: the number of finished steps, which a rewritten journal does not contain.
    """
    results: dict[StepCallKey, bytes] = {}
    group: list[tuple[Any, bytes]] = []
    step = 0
    for entry in entries:
        if entry.kind is EntryKind.RESULT:
            recorded = decode(entry.body, RecordedResult)
            results[recorded.steps + 1, recorded.call] = bytes(recorded.message)
        elif entry.kind is EntryKind.MESSAGE:
            group.append((decode_message(entry.body), entry.body))
        elif entry.kind is EntryKind.STEP:
            step = decode(entry.body, Step).progress.steps
            results.update(_read_group_results(group, step))
            group = []
    results.update(_read_group_results(group, max(step, steps) + 1))
    return results


def _read_group_results(group: Sequence[tuple[Any, bytes]], step: int) -> dict[StepCallKey, bytes]:
    """Return the results among messages that end with this step. Each belongs to the last reply before it."""
    step -= sum(isinstance(message, Reply) for message, _ in group)
    results: dict[StepCallKey, bytes] = {}
    for message, body in group:
        step += isinstance(message, Reply)
        if isinstance(message, ToolResult):
            results[step, message.call_id] = body
    return results


def read_replies(run_id: str, entries: Sequence[Entry]) -> Counter[str]:
    """Count the model calls of the native loop whose replies are in the journal, by key."""
    keys: Counter[str] = Counter()
    for conversation in read_conversations(entries):
        for place, body in enumerate(conversation):
            if isinstance(decode_message(body), Reply):
                keys[hash_conversation(run_id, conversation[:place])] += 1
    return keys


def is_result_of(body: bytes, call_id: str) -> bool:
    """Return whether a message is the result of the call."""
    message = decode_message(body)
    return message.call_id == call_id if isinstance(message, ToolResult) else message is None and call_id in str(body)


def reports_in_doubt(body: bytes) -> bool:
    """Return whether a message reports to the model that the outcome of a call is unknown."""
    return UNKNOWN_OUTCOME.encode() in body


_E = TypeVar("_E", bound=TrialEvent)

#: The run and the call id, without the step.
RunCallKey = tuple[str, str]
#: The run, the step and the call id. For loops other than the native one the step is unknown and zero.
CallKey = tuple[str, int, str]


class StoreSnapshot:
    """The contents of the store after a crash, as the next attempt found them."""

    def __init__(self) -> None:
        self.results: dict[CallKey, bytes] = {}
        #: Recorded replies of the native loop, by the key of the model call.
        self.replies: Counter[str] = Counter()
        #: The number of recorded replies of each run of another loop.
        self.other_loop_replies: dict[str, int] = {}

    def add_native(self, run_id: str, entries: Sequence[Entry], steps: int) -> None:
        self.results |= {(run_id, *call): body for call, body in read_results(entries, steps).items()}
        self.replies += read_replies(run_id, entries)

    def add_other_loop(self, run_id: str, call_results: Sequence[CallResult], replies: int) -> None:
        self.results |= {(run_id, 0, answer.call_id): answer.body for answer in call_results}
        self.other_loop_replies[run_id] = replies


class Timeline:
    """One trial from start to end, over all its attempts."""

    def __init__(self, events: Sequence[AnyEvent]) -> None:
        self.crashes = _select(events, CrashEvent)
        self.tool_starts = _select(events, ToolStartedEvent)
        self.tool_returns = _select(events, ToolReturnedEvent)
        self.reconciliations = _select(events, ReconciledEvent)
        self.model_requests = _select(events, ModelRequestEvent)
        self.other_loop_replies = _select(events, OtherLoopReplyEvent)
        self.outputs = [event.output for event in _select(events, OutputEvent)]
        self.store_left = next(reversed(_select(events, StoreLeftEvent)), None)
        #: How often each attempt found the run parked and unparked it.
        self.park_counts = Counter(event.attempt for event in _select(events, RunParkedEvent))
        self._usage_events = _select(events, UsageEvent)
        #: The effect of each call, where it is known.
        self.effects: dict[RunCallKey, str] = {
            (event.run_id, event.call_id): event.effect
            for event in events
            if isinstance(event, ToolStartedEvent | ToolEffectEvent) and event.effect
        }
        #: The call that started each child run.
        self.parents: dict[str, RunCallKey] = {
            event.run_id: (event.parent_run_id, event.call_id)
            for event in _select(events, RunStartedEvent)
            if event.parent_run_id is not None and event.call_id is not None
        }
        #: The last known journal of each run, also of removed ones.
        self.journals: dict[str, list[Entry]] = {}
        #: The last known journal of each run of another loop.
        self.other_loop_journals: dict[str, StoredJournal] = {}
        #: Descriptions of acknowledged writes that the store lost.
        self.lost_writes: list[str] = []
        #: By the number of the attempt that found it.
        self.snapshots: dict[int, StoreSnapshot] = {}
        self._removed: set[str] = set()
        #: The parent of each child run that was created.
        self._parent_runs: dict[str, str] = {}
        for event in events:
            self._apply(event)
        #: The conversation of each run.
        self.transcripts: dict[str, list[bytes]] = {
            run_id: [answer.body for answer in journal.call_results or ()]
            for run_id, journal in self.other_loop_journals.items()
        } | _collect_transcripts(events)

    def _apply(self, event: AnyEvent) -> None:
        if isinstance(event, WriteAcknowledgedEvent):
            self._apply_acknowledged(event)
        elif isinstance(event, RunClosingEvent):
            self.other_loop_journals[event.journal.run_id] = event.journal
        elif isinstance(event, StoreFoundEvent):
            self._compare_with_store(event)

    def _apply_acknowledged(self, event: WriteAcknowledgedEvent) -> None:
        if event.parent_run_id is not None:
            self._parent_runs[event.run_id] = event.parent_run_id
        if event.removed:
            self._removed.add(event.run_id)
        elif event.rewrite:
            self._removed.discard(event.run_id)
            self.journals[event.run_id] = list(event.entries)
        else:
            self.journals.setdefault(event.run_id, []).extend(event.entries)

    def _compare_with_store(self, event: StoreFoundEvent) -> None:
        found = {journal.run_id: list(journal.entries) for journal in event.journals}
        for run_id, entries in self.journals.items():
            if not self._is_removed(run_id):
                missing = [entry for entry in entries if entry not in found.get(run_id, [])]
                if run_id not in found:
                    self.lost_writes.append(f"run {run_id} was acknowledged and is gone")
                elif missing and not _is_rewritten_after(found[run_id], entries):
                    lost = ", ".join(f"{entry.kind} {entry.seq}" for entry in missing)
                    self.lost_writes.append(f"run {run_id}: the store lost entries it had acknowledged: {lost}")
        self.lost_writes += [f"run {run_id} was removed and is back" for run_id in found if self._is_removed(run_id)]
        self.journals.update(found)
        self.other_loop_journals |= {
            journal.run_id: journal for journal in event.journals if journal.call_results is not None
        }
        steps = {journal.run_id: journal.steps for journal in event.journals}
        snapshot = self.snapshots[event.attempt] = StoreSnapshot()
        for run_id, entries in self.journals.items():
            if run_id in self.other_loop_journals:
                snapshot.add_other_loop(
                    run_id,
                    self.other_loop_journals[run_id].call_results or (),
                    self.other_loop_journals[run_id].replies,
                )
            else:
                snapshot.add_native(run_id, entries, steps.get(run_id, 0))

    def _is_removed(self, run_id: str) -> bool:
        """Return whether the run was removed, by itself or with the run that started it."""
        if run_id in self._removed:
            return True
        return run_id in self._parent_runs and self._is_removed(self._parent_runs[run_id])

    def get_call_key(self, event: ToolStartedEvent | ToolReturnedEvent | ReconciledEvent) -> CallKey:
        """Return the key of the call that an event is about."""
        return event.run_id, 0 if event.run_id in self.other_loop_journals else event.step, event.call_id

    @property
    def reported_in_doubt(self) -> set[RunCallKey]:
        """The calls whose outcome was reported to the model as unknown."""
        calls = {(event.run_id, event.call_id) for event in self.tool_starts}
        calls |= {(run_id, call_id) for snapshot in self.snapshots.values() for run_id, _, call_id in snapshot.results}
        calls |= {
            (run_id, call_id)
            for run_id, entries in self.journals.items()
            if run_id not in self.other_loop_journals
            for _, call_id in read_results(entries)
        }
        calls |= {
            (run, answer.call_id) for run, its in self.other_loop_journals.items() for answer in its.call_results or ()
        }
        return {
            (run_id, call_id)
            for run_id, call_id in calls
            if any(reports_in_doubt(body) and is_result_of(body, call_id) for body in self.transcripts.get(run_id, []))
        }

    def get_final_usage(self, run_id: str) -> UsageEvent | None:
        """Return the last usage event of the run."""
        usage = [event for event in self._usage_events if event.run_id == run_id]
        return msgspec.structs.replace(usage[-1], attempt=0) if usage else None

    def get_depth(self, run_id: str) -> int:
        return 1 + self.get_depth(self.parents[run_id][0]) if run_id in self.parents else 0


def _select(events: Sequence[AnyEvent], kind: type[_E]) -> list[_E]:
    return [event for event in events if isinstance(event, kind)]


def _is_rewritten_after(found: Sequence[Entry], acknowledged: Sequence[Entry]) -> bool:
    """Return whether a rewrite was stored whose acknowledgement the crash lost. Such a journal starts with BEGIN."""
    first = found[0] if found else None
    return first is not None and first.kind is EntryKind.BEGIN and first.seq == acknowledged[-1].seq + 1


def _collect_transcripts(events: Sequence[AnyEvent]) -> dict[str, list[bytes]]:
    """Return the conversation of each native run as its models saw it. The last reply need not be in the store."""
    messages_by_run: dict[str, dict[int, list[bytes]]] = {}
    for event in events:
        if isinstance(event, ModelRequestEvent):
            messages = messages_by_run.setdefault(event.run_id, {}).setdefault(event.phase, [])
            messages[event.start :] = event.messages
        elif isinstance(event, ModelReplyEvent):
            messages_by_run[event.run_id][event.phase].append(event.message)
    return {
        run_id: [message for phase in sorted(phases) for message in phases[phase]]
        for run_id, phases in messages_by_run.items()
    }
