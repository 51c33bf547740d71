"""What the notes of one trial tell, put in order."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.checkpoint.codec import RecordedResult, decode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.run.drive import UNKNOWN_OUTCOME
from holdfast.run.message import NATIVE_CODEC, Reply, ToolResult
from holdfast.run.state import PhaseOutput
from holdfast.testing.crash.instrument import conversation_key
from holdfast.testing.crash.notes import (
    Acknowledged,
    AnyNote,
    Asked,
    Began,
    Counted,
    Crashed,
    Delivered,
    Found,
    Left,
    Reconciled,
    Replied,
    Returned,
    Started,
)

#: A call of a run.
CallKey = tuple[str, str]


def transcript(entries: Sequence[Entry]) -> list[bytes]:
    """The messages of a run in their order, over all its phases, and the phases' outputs; without times."""
    told: list[bytes] = []
    results: dict[str, bytes] = {}
    for entry in entries:
        if entry.kind is EntryKind.MESSAGE:
            told.append(entry.body)
        elif entry.kind is EntryKind.RESULT:
            recorded = decode(entry.body, RecordedResult)
            results[recorded.call] = bytes(recorded.message)
        elif entry.kind is EntryKind.ADOPT:
            told.extend(results[call] for call in decode(entry.body, list[str]))
        elif entry.kind is EntryKind.PHASE:
            phase = decode(entry.body, PhaseOutput)
            told.append(f"phase {phase.name}: {phase.output!r}".encode())
    return told


def _message(body: bytes) -> Any:
    """A message of the native loop; `None` for one of another loop."""
    try:
        return NATIVE_CODEC.decode(body)
    except Exception:  # whatever a foreign message looks like, it is none of ours
        return None


def recorded_results(entries: Sequence[Entry]) -> dict[str, bytes]:
    """The results that are in the journal, by their calls."""
    recorded = [decode(entry.body, RecordedResult) for entry in entries if entry.kind is EntryKind.RESULT]
    messages = [(_message(entry.body), entry.body) for entry in entries if entry.kind is EntryKind.MESSAGE]
    return {result.call: bytes(result.message) for result in recorded} | {
        message.call_id: body for message, body in messages if isinstance(message, ToolResult)
    }


def recorded_replies(run_id: str, entries: Sequence[Entry]) -> Counter[str]:
    """The model calls whose replies are in the journal, by their keys."""
    keys: Counter[str] = Counter()
    conversation: list[bytes] = []
    for body in transcript(entries):
        message = _message(body)
        if message is None:
            conversation = []  # a phase has ended; or the messages are another loop's, whose models leave no notes
            continue
        if isinstance(message, Reply):
            keys[conversation_key(run_id, conversation)] += 1
        conversation.append(body)
    return keys


def is_answer_to(body: bytes, call_id: str) -> bool:
    """Whether a message holds the result of the call."""
    message = _message(body)
    return message.call_id == call_id if isinstance(message, ToolResult) else message is None and call_id in str(body)


def tells_doubt(body: bytes) -> bool:
    """Whether a message tells the model that the outcome of a call is unknown."""
    return UNKNOWN_OUTCOME.encode() in body


class Moment:
    """What was in the store when a life had crashed, as the next one found it."""

    def __init__(self, journals: Mapping[str, Sequence[Entry]]) -> None:
        self.results: dict[CallKey, bytes] = {
            (run, call): body for run, entries in journals.items() for call, body in recorded_results(entries).items()
        }
        self.replies: Counter[str] = Counter()
        for run, entries in journals.items():
            self.replies += recorded_replies(run, entries)


class Story:
    """One run from its beginning to its end, over all its lives."""

    def __init__(self, notes: Sequence[AnyNote]) -> None:
        self.crashes = [note for note in notes if isinstance(note, Crashed)]
        self.starts = [note for note in notes if isinstance(note, Started)]
        self.returns = [note for note in notes if isinstance(note, Returned)]
        self.reconciled = [note for note in notes if isinstance(note, Reconciled)]
        self.asked = [note for note in notes if isinstance(note, Asked)]
        self._counts = [note for note in notes if isinstance(note, Counted)]
        self.outputs = [note.output for note in notes if isinstance(note, Delivered)]
        self.left = next((note for note in reversed(notes) if isinstance(note, Left)), None)
        #: The call that started each child.
        self.parents: dict[str, CallKey] = {
            note.run_id: (note.parent_run_id, note.call_id)
            for note in notes
            if isinstance(note, Began) and note.parent_run_id is not None and note.call_id is not None
        }
        #: The journal of each run as it last was, also of those that were removed since.
        self.journals: dict[str, list[Entry]] = {}
        #: What the store had lost of what it had acknowledged, in words.
        self.lost: list[str] = []
        #: By the number of the life that found it.
        self.moments: dict[int, Moment] = {}
        self._removed: set[str] = set()
        for note in notes:
            if isinstance(note, Acknowledged):
                self._acknowledge(note)
            elif isinstance(note, Found):
                self._compare(note)
        self.transcripts: dict[str, list[bytes]] = self._heard(notes)

    def _acknowledge(self, note: Acknowledged) -> None:
        if note.removed:
            self._removed.add(note.run_id)
        elif note.replace:
            self._removed.discard(note.run_id)
            self.journals[note.run_id] = list(note.entries)
        else:
            self.journals.setdefault(note.run_id, []).extend(note.entries)

    def _compare(self, note: Found) -> None:
        there = {journal.run_id: list(journal.entries) for journal in note.journals}
        for run_id, entries in self.journals.items():
            if not self._is_gone(run_id):
                missing = [entry for entry in entries if entry not in there.get(run_id, [])]
                if run_id not in there:
                    self.lost.append(f"run {run_id} was acknowledged and is gone")
                elif missing:
                    told = ", ".join(f"{entry.kind} {entry.seq}" for entry in missing)
                    self.lost.append(f"of run {run_id} the store has lost what it had acknowledged: {told}")
        for run_id in there:
            if self._is_gone(run_id):
                self.lost.append(f"run {run_id} was removed and is back")
        self.journals.update(there)
        self.moments[note.life] = Moment(self.journals)

    def _is_gone(self, run_id: str) -> bool:
        """Removed, or removed with the run that started it."""
        if run_id in self._removed:
            return True
        return run_id in self.parents and self._is_gone(self.parents[run_id][0])

    def _heard(self, notes: Sequence[AnyNote]) -> dict[str, list[bytes]]:
        """The conversation of each run as its models saw it; of other loops, as it was stored.

        What a run says last need not be stored: when it is over, nothing is.
        """
        conversations: dict[str, dict[int, list[bytes]]] = {}
        for note in notes:
            if isinstance(note, Asked):
                messages = conversations.setdefault(note.run_id, {}).setdefault(note.phase, [])
                messages[note.start :] = note.messages
            elif isinstance(note, Replied):
                conversations[note.run_id][note.phase].append(note.message)
        stored = {run_id: transcript(entries) for run_id, entries in self.journals.items()}
        return stored | {
            run_id: [message for phase in sorted(phases) for message in phases[phase]]
            for run_id, phases in conversations.items()
        }

    @property
    def told(self) -> set[CallKey]:
        """The calls of which the model was told that their outcome is unknown."""
        called = {(note.run_id, note.call_id) for note in self.starts}
        called |= {(run_id, call) for run_id, entries in self.journals.items() for call in recorded_results(entries)}
        return {
            (run_id, call_id)
            for run_id, call_id in called
            if any(tells_doubt(body) and is_answer_to(body, call_id) for body in self.transcripts.get(run_id, []))
        }

    def usage(self, run_id: str) -> Counted | None:
        """What the run had used in the end."""
        counts = [note for note in self._counts if note.run_id == run_id]
        return msgspec.structs.replace(counts[-1], life=0) if counts else None

    def depth(self, run_id: str) -> int:
        return 1 + self.depth(self.parents[run_id][0]) if run_id in self.parents else 0
