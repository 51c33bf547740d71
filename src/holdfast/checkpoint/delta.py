"""What is new in a run since its last successful save, found without looking at what is old."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from holdfast.checkpoint.codec import FORMAT_VERSION, Begin, Progress, RecordedResult, RunMeta, Step, encode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.run.history import History
from holdfast.run.state import RunState


class Mark:
    """How far the store has come with a run. Moves only when a write has succeeded."""

    __slots__ = ("_history", "_messages", "_phases", "_results", "_rewrites", "iteration", "next_seq", "notes", "size")

    def __init__(self) -> None:
        self.next_seq = 0
        self.size = 0
        self.iteration = 0
        self.notes: dict[str, Any] = {}
        self._history: History | None = None
        self._messages = 0
        self._rewrites = 0
        self._phases = 0
        #: Saved results that are not in the history yet, by identity; holding them keeps the identities theirs.
        self._results: dict[int, tuple[str, Any]] = {}

    @classmethod
    def at(cls, state: RunState, *, next_seq: int, size: int) -> "Mark":
        """The mark of a run all of which is in the store."""
        mark = cls()
        mark.next_seq, mark.size, mark.iteration, mark.notes = next_seq, size, state.iteration, dict(state.notes)
        mark._history, mark._messages, mark._rewrites = state.history, len(state.history), state.history.rewrites
        mark._phases = len(state.phases)
        mark._results = {id(result): (call, result) for call, result in state.results.items()}
        return mark


class Delta:
    """The entries that bring the store from a mark to the state as it is now, and the mark that follows."""

    __slots__ = ("after", "entries", "finished_step", "progress", "replace")

    def __init__(self, mark: Mark, state: RunState, meta: RunMeta, now: datetime) -> None:
        same_history = state.history is mark._history
        #: The history was rewritten, or put in the place of another: the journal is written anew, the old one dropped.
        self.replace = mark._history is not None and (
            state.history.rewrites != mark._rewrites if same_history else len(state.phases) == mark._phases
        )
        since = Mark() if self.replace else mark
        bodies = list(_bodies(since, state, same_history and not self.replace))
        if since._history is None:
            bodies.insert(0, (EntryKind.BEGIN, encode(Begin(version=FORMAT_VERSION, meta=meta))))
        self.finished_step = state.iteration > mark.iteration
        self.progress = encode(Progress.of(state))
        if self.finished_step:
            bodies.append((EntryKind.STEP, encode(Step(at=now, progress=msgspec.Raw(self.progress)))))
        first = mark.next_seq
        self.entries = [Entry(seq=first + number, kind=kind, body=body) for number, (kind, body) in enumerate(bodies)]
        size = (0 if self.replace else mark.size) + sum(len(body) for _, body in bodies)
        self.after = Mark.at(state, next_seq=first + len(bodies), size=size)

    def is_empty(self, mark: Mark) -> bool:
        """Whether there is nothing to write."""
        return not self.entries and not self.finished_step and self.after.notes == mark.notes


def _bodies(mark: Mark, state: RunState, same_history: bool) -> Iterator[tuple[EntryKind, bytes]]:
    for phase in state.phases[mark._phases :]:
        yield EntryKind.PHASE, encode(phase)
    adopted: list[str] = []
    for message in state.history[mark._messages if same_history else 0 :]:
        saved = mark._results.get(id(message)) if mark._results else None
        if saved is not None:
            adopted.append(saved[0])
            continue
        if adopted:
            yield EntryKind.ADOPT, encode(adopted)
            adopted = []
        yield EntryKind.MESSAGE, state.codec.encode(message)
    if adopted:
        yield EntryKind.ADOPT, encode(adopted)
    for call, result in state.results.items():
        if id(result) not in mark._results:
            message = msgspec.Raw(state.codec.encode(result))
            yield EntryKind.RESULT, encode(RecordedResult(call=call, iteration=state.iteration, message=message))
