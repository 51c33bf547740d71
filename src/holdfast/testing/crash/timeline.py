"""What a journal tells about the calls that were made.

What the notes of one trial tell, put in order.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.checkpoint.codec import Progress, RecordedResult, Step, decode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.core.execution.steps import UNKNOWN_OUTCOME
from holdfast.core.message import NATIVE_CODEC, Reply, ToolResult
from holdfast.testing.crash.events import (
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
    UsageEvent,
    WriteAcknowledgedEvent,
)
from holdfast.testing.crash.instrument import hash_conversation

#: A call within its run: the step, and the call's id, which a later step may use again.
StepCallKey = tuple[int, str]


def decode_message(body: bytes) -> Any:
    """A message of the native loop; `None` for one of another loop."""
    try:
        return NATIVE_CODEC.decode(body)
    except Exception:  # whatever a foreign message looks like, it is none of ours
        return None


def read_conversations(entries: Sequence[Entry]) -> list[list[bytes]]:
    """The messages of a run in their order, for each of its phases."""
    told: list[list[bytes]] = [[]]
    results: dict[str, bytes] = {}
    for entry in entries:
        if entry.kind is EntryKind.MESSAGE:
            told[-1].append(entry.body)
        elif entry.kind is EntryKind.RESULT:
            recorded = decode(entry.body, RecordedResult)
            results[recorded.call] = bytes(recorded.message)
        elif entry.kind is EntryKind.ADOPT:
            told[-1].extend(results[call] for call in decode(entry.body, list[str]))
        elif entry.kind is EntryKind.PHASE:
            told.append([])
    return told


def read_results(entries: Sequence[Entry], steps: int = 0) -> dict[StepCallKey, bytes]:
    """The results that are in a journal of the native loop.

    Args:
        steps: how many steps are finished, if that is known: a rewritten journal does not tell.
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
            step = decode(bytes(decode(entry.body, Step).progress), Progress).steps
            results.update(_read_group_results(group, step))
            group = []
    results.update(_read_group_results(group, max(step, steps) + 1))
    return results


def _read_group_results(group: Sequence[tuple[Any, bytes]], step: int) -> dict[StepCallKey, bytes]:
    """The results among messages that end with this step: each belongs to the last reply before it."""
    step -= sum(isinstance(message, Reply) for message, _ in group)
    results: dict[StepCallKey, bytes] = {}
    for message, body in group:
        step += isinstance(message, Reply)
        if isinstance(message, ToolResult):
            results[step, message.call_id] = body
    return results


def read_replies(run_id: str, entries: Sequence[Entry]) -> Counter[str]:
    """The model calls of the native loop whose replies are in the journal, by their keys."""
    keys: Counter[str] = Counter()
    for conversation in read_conversations(entries):
        for place, body in enumerate(conversation):
            if isinstance(decode_message(body), Reply):
                keys[hash_conversation(run_id, conversation[:place])] += 1
    return keys


def is_result_of(body: bytes, call_id: str) -> bool:
    """Whether a message holds the result of the call."""
    message = decode_message(body)
    return message.call_id == call_id if isinstance(message, ToolResult) else message is None and call_id in str(body)


def reports_in_doubt(body: bytes) -> bool:
    """Whether a message tells the model that the outcome of a call is unknown."""
    return UNKNOWN_OUTCOME.encode() in body


#: A call of a run, whichever the step.
RunCallKey = tuple[str, str]
#: One call: the run, the step, the id. Of other loops than the native one the step is not known; it is zero.
CallKey = tuple[str, int, str]


class StoreSnapshot:
    """What was in the store when a life had crashed, as the next one found it."""

    def __init__(self) -> None:
        self.results: dict[CallKey, bytes] = {}
        #: Replies of native models, by the keys of what they reply to.
        self.replies: Counter[str] = Counter()
        #: How many replies other loops had recorded of each run.
        self.other_loop_replies: dict[str, int] = {}

    def add_native(self, run_id: str, entries: Sequence[Entry], steps: int) -> None:
        """A run of the native loop."""
        self.results |= {(run_id, *call): body for call, body in read_results(entries, steps).items()}
        self.replies += read_replies(run_id, entries)

    def add_other_loop(self, run_id: str, call_results: Sequence[CallResult], replies: int) -> None:
        self.results |= {(run_id, 0, answer.call_id): answer.body for answer in call_results}
        self.other_loop_replies[run_id] = replies


class Timeline:
    """One run from its beginning to its end, over all its lives."""

    def __init__(self, events: Sequence[AnyEvent]) -> None:
        self.crashes = [note for note in events if isinstance(note, CrashEvent)]
        self.tool_starts = [note for note in events if isinstance(note, ToolStartedEvent)]
        self.tool_returns = [note for note in events if isinstance(note, ToolReturnedEvent)]
        self.reconciliations = [note for note in events if isinstance(note, ReconciledEvent)]
        self.model_requests = [note for note in events if isinstance(note, ModelRequestEvent)]
        self.other_loop_replies = [note for note in events if isinstance(note, OtherLoopReplyEvent)]
        self.outputs = [note.output for note in events if isinstance(note, OutputEvent)]
        self.store_left = next((note for note in reversed(events) if isinstance(note, StoreLeftEvent)), None)
        #: How often the run was parked in each life, and then went on in the same life.
        self.park_counts = Counter(note.attempt for note in events if isinstance(note, RunParkedEvent))
        self._usage_events = [note for note in events if isinstance(note, UsageEvent)]
        #: What kind of effect each call has, as far as it is known.
        self.effects: dict[RunCallKey, str] = {
            (note.run_id, note.call_id): note.effect
            for note in events
            if isinstance(note, ToolStartedEvent | ToolEffectEvent) and note.effect
        }
        #: The call that started each child.
        self.parents: dict[str, RunCallKey] = {
            note.run_id: (note.parent_run_id, note.call_id)
            for note in events
            if isinstance(note, RunStartedEvent) and note.parent_run_id is not None and note.call_id is not None
        }
        #: The journal of each run as it last was, also of those that were removed since.
        self.journals: dict[str, list[Entry]] = {}
        #: Finished calls of runs of other loops, as they last were.
        self.other_loop_journals: dict[str, StoredJournal] = {}
        #: What the store had lost of what it had acknowledged, in words.
        self.lost_writes: list[str] = []
        #: By the number of the life that found it.
        self.snapshots: dict[int, StoreSnapshot] = {}
        self._removed: set[str] = set()
        for note in events:
            self._apply(note)
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
        if event.removed:
            self._removed.add(event.run_id)
        elif event.rewrite:
            self._removed.discard(event.run_id)
            self.journals[event.run_id] = list(event.entries)
        else:
            self.journals.setdefault(event.run_id, []).extend(event.entries)

    def _compare_with_store(self, event: StoreFoundEvent) -> None:
        there = {journal.run_id: list(journal.entries) for journal in event.journals}
        for run_id, entries in self.journals.items():
            if not self._is_removed(run_id):
                missing = [entry for entry in entries if entry not in there.get(run_id, [])]
                if run_id not in there:
                    self.lost_writes.append(f"run {run_id} was acknowledged and is gone")
                elif missing and not _is_rewritten_after(there[run_id], entries):
                    told = ", ".join(f"{entry.kind} {entry.seq}" for entry in missing)
                    self.lost_writes.append(f"of run {run_id} the store has lost what it had acknowledged: {told}")
        self.lost_writes += [f"run {run_id} was removed and is back" for run_id in there if self._is_removed(run_id)]
        self.journals.update(there)
        self.other_loop_journals |= {
            journal.run_id: journal for journal in event.journals if journal.call_results is not None
        }
        steps = {journal.run_id: journal.steps for journal in event.journals}
        moment = self.snapshots[event.attempt] = StoreSnapshot()
        for run_id, entries in self.journals.items():
            if run_id in self.other_loop_journals:
                moment.add_other_loop(
                    run_id,
                    self.other_loop_journals[run_id].call_results or (),
                    self.other_loop_journals[run_id].replies,
                )
            else:
                moment.add_native(run_id, entries, steps.get(run_id, 0))

    def _is_removed(self, run_id: str) -> bool:
        """Removed, or removed with the run that started it."""
        if run_id in self._removed:
            return True
        return run_id in self.parents and self._is_removed(self.parents[run_id][0])

    def get_call_key(self, event: ToolStartedEvent | ToolReturnedEvent | ReconciledEvent) -> CallKey:
        """The call that a note is about."""
        return event.run_id, 0 if event.run_id in self.other_loop_journals else event.step, event.call_id

    @property
    def reported_in_doubt(self) -> set[RunCallKey]:
        """The calls of which the model was told that their outcome is unknown."""
        called = {(note.run_id, note.call_id) for note in self.tool_starts}
        called |= {(run_id, call_id) for moment in self.snapshots.values() for run_id, _, call_id in moment.results}
        called |= {
            (run_id, call_id)
            for run_id, entries in self.journals.items()
            if run_id not in self.other_loop_journals
            for _, call_id in read_results(entries)
        }
        called |= {
            (run, answer.call_id) for run, its in self.other_loop_journals.items() for answer in its.call_results or ()
        }
        return {
            (run_id, call_id)
            for run_id, call_id in called
            if any(reports_in_doubt(body) and is_result_of(body, call_id) for body in self.transcripts.get(run_id, []))
        }

    def get_final_usage(self, run_id: str) -> UsageEvent | None:
        """What the run had used in the end."""
        counts = [note for note in self._usage_events if note.run_id == run_id]
        return msgspec.structs.replace(counts[-1], attempt=0) if counts else None

    def get_depth(self, run_id: str) -> int:
        return 1 + self.get_depth(self.parents[run_id][0]) if run_id in self.parents else 0


def _is_rewritten_after(found: Sequence[Entry], acknowledged: Sequence[Entry]) -> bool:
    """Whether the run's history was rewritten by a write that nobody lived to hear of: such a journal begins anew."""
    first = found[0] if found else None
    return first is not None and first.kind is EntryKind.BEGIN and first.seq == acknowledged[-1].seq + 1


def _collect_transcripts(events: Sequence[AnyEvent]) -> dict[str, list[bytes]]:
    """The conversation of each native run, as its models saw it: what a run says last need not be stored."""
    heard: dict[str, dict[int, list[bytes]]] = {}
    for note in events:
        if isinstance(note, ModelRequestEvent):
            messages = heard.setdefault(note.run_id, {}).setdefault(note.phase, [])
            messages[note.start :] = note.messages
        elif isinstance(note, ModelReplyEvent):
            heard[note.run_id][note.phase].append(note.message)
    return {
        run_id: [message for phase in sorted(phases) for message in phases[phase]] for run_id, phases in heard.items()
    }
