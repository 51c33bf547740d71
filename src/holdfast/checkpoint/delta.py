"""What is new in a run since its last successful save, found without looking at what is old."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from holdfast.checkpoint.codec import FORMAT_VERSION, Begin, Progress, RecordedResult, RunMeta, Step, encode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.clock import Clock
from holdfast.core.state import History, RunState

#: For what is made of plain data only, and cannot be refused.
_encode = msgspec.json.Encoder().encode

#: The kind and the body of an entry to come.
_EncodedEntry = tuple[EntryKind, bytes]

#: Needed at every step, and an enum takes its time to find a member.
_MESSAGE, _STEP = EntryKind.MESSAGE, EntryKind.STEP

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


class Watermark(msgspec.Struct, frozen=True, kw_only=True):
    """How far the store has come with a run: without anything said, it does not know of it."""

    next_seq: int = 0
    size: int = 0
    history: History | None = None
    messages: int = 0
    rewrites: int = 0
    phases: int = 0
    steps: int = 0
    #: Saved results that are not in the history yet, by call id. Several may be one and the same object.
    results: Mapping[str, Any] = _EMPTY
    annotations: Mapping[str, Any] = _EMPTY


def make_watermark(state: RunState, next_seq: int, size: int) -> Watermark:
    """The mark of a run all of which is in the store."""
    history = state.history
    return Watermark(
        next_seq=next_seq,
        size=size,
        history=history,
        messages=len(history),
        rewrites=history.rewrites,
        phases=len(state.phases),
        steps=state.steps,
        results=dict(state.results) if state.results else _EMPTY,
        annotations=dict(state.annotations) if state.annotations else _EMPTY,
    )


class Delta:
    """The entries that bring the store from a mark to the state as it is now, and the mark that follows."""

    __slots__ = ("entries", "next_watermark", "progress", "rewrite", "step_finished")

    def __init__(self, watermark: Watermark, state: RunState, meta: RunMeta, clock: Clock) -> None:
        history = state.history
        same_history = history is watermark.history
        #: The history was rewritten, or put in the place of another: the journal is written anew, the old one dropped.
        self.rewrite = watermark.history is not None and (
            history.rewrites != watermark.rewrites if same_history else len(state.phases) == watermark.phases
        )
        since = Watermark() if self.rewrite else watermark
        bodies: list[_EncodedEntry] = []
        if since.history is None:
            bodies.append((EntryKind.BEGIN, encode(Begin(version=FORMAT_VERSION, meta=meta))))
        if len(state.phases) > since.phases:
            bodies += [(EntryKind.PHASE, encode(phase)) for phase in state.phases[since.phases :]]
        start = since.messages if same_history else 0
        messages = history[start:]
        self.step_finished = state.steps > watermark.steps
        # Those of the step under way, if the one that is finished was not saved before it was begun.
        later = start + len(messages) - history.finished_count if self.step_finished else 0
        # What was recorded in a phase that is over went with it.
        saved = since.results if same_history else _EMPTY
        if saved and messages:
            bodies += _encode_messages(saved, since.steps, state, messages[: len(messages) - later])
            messages = messages[len(messages) - later :]
        for message in messages:
            bodies.append((_MESSAGE, state.codec.encode(message)))
        progress = Progress.from_state(state)
        self.progress = _encode(progress)
        if self.step_finished:
            bodies.insert(len(bodies) - later, (_STEP, self._encode_step(progress, state, clock)))
        if state.results:
            bodies += _encode_new_results(saved, since.steps, state)
        self.entries: list[Entry] = []
        seq, size = watermark.next_seq, since.size
        for kind, body in bodies:
            self.entries.append(Entry(seq=seq, kind=kind, body=body))
            seq += 1
            size += len(body)
        self.next_watermark = make_watermark(state, seq, size)

    def _encode_step(self, progress: Progress, state: RunState, clock: Clock) -> bytes:
        then = progress.at_step_end(state.step_end)
        encoded = self.progress if then is progress else _encode(then)
        return _encode(Step(at=clock.now(), progress=msgspec.Raw(encoded)))

    def is_empty(self, watermark: Watermark) -> bool:
        """Whether there is nothing to write."""
        return not self.entries and not self.step_finished and self.next_watermark.annotations == watermark.annotations


def _encode_messages(
    saved: Mapping[str, Any], step: int, state: RunState, messages: Sequence[Any]
) -> Iterator[_EncodedEntry]:
    """The new messages; those that were saved as results of calls are taken up by the names of the calls, each once."""
    free: dict[int, list[str]] = {}
    for call, result in saved.items():
        if not _is_pending_result(call, result, step, state):
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


def _encode_new_results(saved: Mapping[str, Any], step: int, state: RunState) -> Iterator[_EncodedEntry]:
    """The results that are not in the history yet, nor in the store."""
    for call, result in state.results.items():
        if call not in saved or not _is_pending_result(call, saved[call], step, state):
            message = msgspec.Raw(state.codec.encode(result))
            yield EntryKind.RESULT, encode(RecordedResult(call=call, steps=state.steps, message=message))


def _is_pending_result(call: str, saved: Any, step: int, state: RunState) -> bool:
    """Whether what was saved in `step` as the result of the call is still that, and is not in the history yet."""
    return step == state.steps and call in state.results and state.results[call] is saved
