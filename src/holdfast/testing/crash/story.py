"""What the notes of one trial tell, put in order."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.testing.crash.notes import (
    Acknowledged,
    Answer,
    AnyNote,
    Asked,
    Began,
    Closing,
    Counted,
    Crashed,
    Delivered,
    Effected,
    Found,
    Journal,
    Left,
    Parked,
    Reconciled,
    Replied,
    Returned,
    Said,
    Started,
)
from holdfast.testing.crash.reading import is_answer_to, recorded_replies, recorded_results, tells_doubt

#: A call of a run, whichever the step.
CallOfRun = tuple[str, str]
#: One call: the run, the step, the id. Of other loops than the native one the step is not known; it is zero.
OneCall = tuple[str, int, str]


class Moment:
    """What was in the store when a life had crashed, as the next one found it."""

    def __init__(self) -> None:
        self.results: dict[OneCall, bytes] = {}
        #: Replies of native models, by the keys of what they reply to.
        self.replies: Counter[str] = Counter()
        #: How many replies other loops had recorded of each run.
        self.foreign_replies: dict[str, int] = {}

    def add(self, run_id: str, entries: Sequence[Entry], steps: int) -> None:
        """A run of the native loop."""
        self.results |= {(run_id, *call): body for call, body in recorded_results(entries, steps).items()}
        self.replies += recorded_replies(run_id, entries)

    def add_foreign(self, run_id: str, answers: Sequence[Answer], replies: int) -> None:
        self.results |= {(run_id, 0, answer.call_id): answer.body for answer in answers}
        self.foreign_replies[run_id] = replies


class Story:
    """One run from its beginning to its end, over all its lives."""

    def __init__(self, notes: Sequence[AnyNote]) -> None:
        self.crashes = [note for note in notes if isinstance(note, Crashed)]
        self.starts = [note for note in notes if isinstance(note, Started)]
        self.returns = [note for note in notes if isinstance(note, Returned)]
        self.reconciled = [note for note in notes if isinstance(note, Reconciled)]
        self.asked = [note for note in notes if isinstance(note, Asked)]
        self.said = [note for note in notes if isinstance(note, Said)]
        self.outputs = [note.output for note in notes if isinstance(note, Delivered)]
        self.left = next((note for note in reversed(notes) if isinstance(note, Left)), None)
        #: How often the run was parked in each life, and then went on in the same life.
        self.parkings = Counter(note.life for note in notes if isinstance(note, Parked))
        self._counts = [note for note in notes if isinstance(note, Counted)]
        #: What kind of effect each call has, as far as it is known.
        self.effects: dict[CallOfRun, str] = {
            (note.run_id, note.call_id): note.effect
            for note in notes
            if isinstance(note, Started | Effected) and note.effect
        }
        #: The call that started each child.
        self.parents: dict[str, CallOfRun] = {
            note.run_id: (note.parent_run_id, note.call_id)
            for note in notes
            if isinstance(note, Began) and note.parent_run_id is not None and note.call_id is not None
        }
        #: The journal of each run as it last was, also of those that were removed since.
        self.journals: dict[str, list[Entry]] = {}
        #: Finished calls of runs of other loops, as they last were.
        self.foreign: dict[str, Journal] = {}
        #: What the store had lost of what it had acknowledged, in words.
        self.lost: list[str] = []
        #: By the number of the life that found it.
        self.moments: dict[int, Moment] = {}
        self._removed: set[str] = set()
        for note in notes:
            self._follow(note)
        #: The conversation of each run.
        self.transcripts: dict[str, list[bytes]] = {
            run_id: [answer.body for answer in journal.answers or ()] for run_id, journal in self.foreign.items()
        } | _conversations(notes)

    def _follow(self, note: AnyNote) -> None:
        if isinstance(note, Acknowledged):
            self._acknowledge(note)
        elif isinstance(note, Closing):
            self.foreign[note.journal.run_id] = note.journal
        elif isinstance(note, Found):
            self._compare(note)

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
                elif missing and not _begins_behind(there[run_id], entries):
                    told = ", ".join(f"{entry.kind} {entry.seq}" for entry in missing)
                    self.lost.append(f"of run {run_id} the store has lost what it had acknowledged: {told}")
        self.lost += [f"run {run_id} was removed and is back" for run_id in there if self._is_gone(run_id)]
        self.journals.update(there)
        self.foreign |= {journal.run_id: journal for journal in note.journals if journal.answers is not None}
        steps = {journal.run_id: journal.steps for journal in note.journals}
        moment = self.moments[note.life] = Moment()
        for run_id, entries in self.journals.items():
            if run_id in self.foreign:
                moment.add_foreign(run_id, self.foreign[run_id].answers or (), self.foreign[run_id].replies)
            else:
                moment.add(run_id, entries, steps.get(run_id, 0))

    def _is_gone(self, run_id: str) -> bool:
        """Removed, or removed with the run that started it."""
        if run_id in self._removed:
            return True
        return run_id in self.parents and self._is_gone(self.parents[run_id][0])

    def one(self, note: Started | Returned | Reconciled) -> OneCall:
        """The call that a note is about."""
        return note.run_id, 0 if note.run_id in self.foreign else note.step, note.call_id

    @property
    def told(self) -> set[CallOfRun]:
        """The calls of which the model was told that their outcome is unknown."""
        called = {(note.run_id, note.call_id) for note in self.starts}
        called |= {(run_id, call_id) for moment in self.moments.values() for run_id, _, call_id in moment.results}
        called |= {
            (run_id, call_id)
            for run_id, entries in self.journals.items()
            if run_id not in self.foreign
            for _, call_id in recorded_results(entries)
        }
        called |= {(run, answer.call_id) for run, its in self.foreign.items() for answer in its.answers or ()}
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


def _begins_behind(found: Sequence[Entry], acknowledged: Sequence[Entry]) -> bool:
    """Whether the run's history was rewritten by a write that nobody lived to hear of: such a journal begins anew."""
    first = found[0] if found else None
    return first is not None and first.kind is EntryKind.BEGIN and first.seq == acknowledged[-1].seq + 1


def _conversations(notes: Sequence[AnyNote]) -> dict[str, list[bytes]]:
    """The conversation of each native run, as its models saw it: what a run says last need not be stored."""
    heard: dict[str, dict[int, list[bytes]]] = {}
    for note in notes:
        if isinstance(note, Asked):
            messages = heard.setdefault(note.run_id, {}).setdefault(note.phase, [])
            messages[note.start :] = note.messages
        elif isinstance(note, Replied):
            heard[note.run_id][note.phase].append(note.message)
    return {
        run_id: [message for phase in sorted(phases) for message in phases[phase]] for run_id, phases in heard.items()
    }
