"""What is new in a run since its last successful save, found without looking at what is old."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from holdfast.checkpoint.codec import FORMAT_VERSION, Begin, Progress, RecordedResult, RunMeta, Step, encode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.clock import Clock
from holdfast.run.history import History
from holdfast.run.state import RunState

#: For what is made of plain data only, and cannot be refused.
_encode = msgspec.json.Encoder().encode

#: The kind and the body of an entry to come.
_Body = tuple[EntryKind, bytes]

#: Needed at every step, and an enum takes its time to find a member.
_MESSAGE, _STEP = EntryKind.MESSAGE, EntryKind.STEP

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """How far the store has come with a run: without anything said, it does not know of it."""

    next_seq: int = 0
    size: int = 0
    history: History | None = None
    messages: int = 0
    rewrites: int = 0
    phases: int = 0
    iteration: int = 0
    #: Saved results that are not in the history yet, by call id. Several may be one and the same object.
    results: Mapping[str, Any] = _NOTHING
    notes: Mapping[str, Any] = _NOTHING


def mark_of(state: RunState, next_seq: int, size: int) -> Mark:
    """The mark of a run all of which is in the store."""
    history = state.history
    return Mark(
        next_seq=next_seq,
        size=size,
        history=history,
        messages=len(history),
        rewrites=history.rewrites,
        phases=len(state.phases),
        iteration=state.iteration,
        results=dict(state.results) if state.results else _NOTHING,
        notes=dict(state.notes) if state.notes else _NOTHING,
    )


class Delta:
    """The entries that bring the store from a mark to the state as it is now, and the mark that follows."""

    __slots__ = ("after", "entries", "finished_step", "progress", "replace")

    def __init__(self, mark: Mark, state: RunState, meta: RunMeta, clock: Clock) -> None:
        history = state.history
        same_history = history is mark.history
        #: The history was rewritten, or put in the place of another: the journal is written anew, the old one dropped.
        self.replace = mark.history is not None and (
            history.rewrites != mark.rewrites if same_history else len(state.phases) == mark.phases
        )
        since = Mark() if self.replace else mark
        bodies: list[_Body] = []
        if since.history is None:
            bodies.append((EntryKind.BEGIN, encode(Begin(version=FORMAT_VERSION, meta=meta))))
        if len(state.phases) > since.phases:
            bodies += [(EntryKind.PHASE, encode(phase)) for phase in state.phases[since.phases :]]
        start = since.messages if same_history else 0
        messages = history[start:]
        self.finished_step = state.iteration > mark.iteration
        # Those of the step under way, if the one that is finished was not saved before it was begun.
        later = start + len(messages) - history.finished if self.finished_step else 0
        # What was recorded in a phase that is over went with it.
        saved = since.results if same_history else _NOTHING
        if saved and messages:
            bodies += _adopting(saved, since.iteration, state, messages[: len(messages) - later])
            messages = messages[len(messages) - later :]
        for message in messages:
            bodies.append((_MESSAGE, state.codec.encode(message)))
        progress = Progress.of(state)
        self.progress = _encode(progress)
        if self.finished_step:
            bodies.insert(len(bodies) - later, (_STEP, self._step(progress, state, clock)))
        if state.results:
            bodies += _recorded(saved, since.iteration, state)
        self.entries: list[Entry] = []
        seq, size = mark.next_seq, since.size
        for kind, body in bodies:
            self.entries.append(Entry(seq=seq, kind=kind, body=body))
            seq += 1
            size += len(body)
        self.after = mark_of(state, seq, size)

    def _step(self, progress: Progress, state: RunState, clock: Clock) -> bytes:
        then = progress.at_step_end(state.step_end)
        encoded = self.progress if then is progress else _encode(then)
        return _encode(Step(at=clock.now(), progress=msgspec.Raw(encoded)))

    def is_empty(self, mark: Mark) -> bool:
        """Whether there is nothing to write."""
        return not self.entries and not self.finished_step and self.after.notes == mark.notes


def _adopting(saved: Mapping[str, Any], step: int, state: RunState, messages: Sequence[Any]) -> Iterator[_Body]:
    """The new messages; those that were saved as results of calls are taken up by the names of the calls, each once."""
    free: dict[int, list[str]] = {}
    for call, result in saved.items():
        if not _stays(call, result, step, state):
            free.setdefault(id(result), []).append(call)
    adopted: list[str] = []
    for message in messages:
        if calls := free.get(id(message)):
            adopted.append(calls.pop(0))
            continue
        if adopted:
            yield EntryKind.ADOPT, encode(adopted)
            adopted = []
        yield EntryKind.MESSAGE, state.codec.encode(message)
    if adopted:
        yield EntryKind.ADOPT, encode(adopted)


def _recorded(saved: Mapping[str, Any], step: int, state: RunState) -> Iterator[_Body]:
    """The results that are not in the history yet, nor in the store."""
    for call, result in state.results.items():
        if call not in saved or not _stays(call, saved[call], step, state):
            message = msgspec.Raw(state.codec.encode(result))
            yield EntryKind.RESULT, encode(RecordedResult(call=call, iteration=state.iteration, message=message))


def _stays(call: str, saved: Any, step: int, state: RunState) -> bool:
    """Whether what was saved in `step` as the result of the call is still that, and is not in the history yet."""
    return step == state.iteration and call in state.results and state.results[call] is saved
