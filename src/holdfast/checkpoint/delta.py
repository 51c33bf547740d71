"""What is new in a run since its last save, turns included."""

import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

import msgspec

from holdfast.checkpoint.codec import JournalReader, RecordedResult, Step, decode, encode, encode_begin
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.progress import AttemptRecord, Progress
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import MessageCodec
from holdfast.core.run.state import History, RunState
from holdfast.core.run.turns import TurnInput, TurnRecord

log: logging.Logger = logging.getLogger("holdfast.checkpoint")

#: The number of ended turns whose place in the journal the progress keeps.
RECENT_TURNS = 8

_NONE: Mapping[str, int] = MappingProxyType({})


class StoredTurns(msgspec.Struct, frozen=True, kw_only=True):
    """The turns that the store holds. The default: none."""

    #: Turns that have ended.
    ended: int = 0
    #: The number of the newest turn that has begun.
    begun: int = 0
    #: By message id: the first entry of its turn.
    recent: Mapping[str, int] = _NONE

    @classmethod
    def from_progress(cls, progress: Progress) -> "StoredTurns":
        begun = progress.turns if progress.turn is None else progress.turn.number
        return cls(ended=progress.turns, begun=begun, recent=progress.recent_turns)


NO_TURNS = StoredTurns()


class TurnDelta:
    """The entries of turns that a delta adds, before and after its messages."""

    __slots__ = ("after", "before", "stored")

    def __init__(self, since: StoredTurns, state: RunState, first_seq: int, *, rewrite: bool) -> None:
        """Compare the turns of `state` with the stored ones.

        Args:
            first_seq: the number of the first entry of `before`.
        """
        self.before: list[tuple[EntryKind, bytes]] = []
        self.after: list[tuple[EntryKind, bytes]] = []
        self.stored: StoredTurns = since
        ended = state.turns[since.ended :]
        newest = state.turn or (state.turns[-1].input if state.turns else None)
        if newest is None:
            return
        recent = dict(since.recent)
        # All but the newest turn have ended: their messages are in the journal, or were compacted.
        for record in ended if state.turn is not None else ended[:-1]:
            seq = first_seq + len(self.before)
            recent |= dict.fromkeys(_list_ids(record.input), seq)
            self.before.append((EntryKind.TURN, encode(record)))
        first = recent.get(newest.turn_id, first_seq + len(self.before))
        if newest.number > since.begun:
            compacted = state.history.turn_start if rewrite else 0
            begin = msgspec.structs.replace(newest, compacted=compacted)
            self.before.append((EntryKind.INPUT, encode(begin)))
        if ended and state.turn is None:
            self.after.append((EntryKind.TURN, encode(ended[-1])))
        recent |= dict.fromkeys(_list_ids(newest), first)
        self.stored = StoredTurns(ended=len(state.turns), begun=newest.number, recent=_keep_recent(recent))


def _keep_recent(first_seqs: dict[str, int]) -> dict[str, int]:
    """Return the ids of the newest turns: `RECENT_TURNS`, and the current one."""
    kept = set(sorted(set(first_seqs.values()))[-RECENT_TURNS - 1 :])
    return {turn_id: seq for turn_id, seq in first_seqs.items() if seq in kept}


def _list_ids(turn: TurnInput) -> list[str]:
    return [turn.turn_id, *turn.joined]


def index_turns(entries: Sequence[Entry], *, first_seq: int) -> dict[str, int]:
    """Return `Progress.recent_turns` for entries that get numbers from `first_seq` on."""
    first: dict[str, int] = {}
    for seq, entry in enumerate(entries, first_seq):
        if entry.kind is EntryKind.INPUT:
            first[decode(entry.body, TurnInput).turn_id] = seq
        elif entry.kind is EntryKind.TURN:
            turn = decode(entry.body, TurnRecord).input
            first |= dict.fromkeys(_list_ids(turn), first.get(turn.turn_id, seq))
    return _keep_recent(first)


class JournaledTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn with its messages."""

    input: TurnInput
    #: `None`: it has not ended.
    record: TurnRecord | None
    #: Empty if a later turn compacted the history.
    messages: Sequence[Any]


def read_turns(run_id: str, entries: Sequence[Entry], codec: MessageCodec) -> list[JournaledTurn]:
    """Return the turns among the entries, which may begin with any turn, in order.

    Raises:
        RunDamaged, RecordDecodeError: as `decode_run`.
    """
    reader = JournalReader(run_id, codec)
    turns: list[JournaledTurn] = []
    for entry in entries:
        reader.read(entry)
        if entry.kind is EntryKind.TURN:
            record = reader.turns[-1]
            turns.append(JournaledTurn(input=record.input, record=record, messages=reader.turn_messages))
    if reader.input is not None:
        turns.append(JournaledTurn(input=reader.input, record=None, messages=reader.turn_messages))
    return turns


#: For bodies that hold only plain data, so that encoding cannot fail.
_encode = msgspec.json.Encoder().encode

#: Kind and body of an entry without its number.
_EncodedEntry = tuple[EntryKind, bytes]

#: Bound once: enum member lookup is slow, and every step needs both.
_MESSAGE, _STEP = EntryKind.MESSAGE, EntryKind.STEP

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


class Watermark(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a run that the store holds. The default: nothing."""

    next_seq: int = 0
    size: int = 0
    history: History | None = None
    messages: int = 0
    rewrites: int = 0
    phases: int = 0
    steps: int = 0
    #: Saved results that are not in the history yet, by call id. Several calls may share one object.
    results: Mapping[str, Any] = _EMPTY
    #: The parts of the state that are only in the progress, compared by identity.
    data: tuple[Any, ...] = ()
    turns: StoredTurns = NO_TURNS


def make_watermark(state: RunState, next_seq: int, size: int, turns: StoredTurns = NO_TURNS) -> Watermark:
    """Return the watermark of a run that is stored completely."""
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
        data=(state.calls, state.retry, state.faults, state.nudges, state.port_data, state.loop_data),
        turns=turns,
    )


def is_rewritten(watermark: Watermark, state: RunState) -> bool:
    """Whether the history was rewritten or replaced since the watermark: a new journal replaces the stored one."""
    history = state.history
    if history is watermark.history:
        return history.rewrites != watermark.rewrites
    return watermark.history is not None and len(state.phases) == watermark.phases


class Delta:
    """The write that brings the store from a watermark to the current state, and the next watermark."""

    __slots__ = ("event_count", "next_watermark", "write")

    def __init__(
        self,
        watermark: Watermark,
        state: RunState,
        info: RunInfo,
        now: datetime,
        attempts: tuple[AttemptRecord, ...],
    ) -> None:
        history = state.history
        same_history = history is watermark.history
        rewrite = is_rewritten(watermark, state)
        since = Watermark() if rewrite else watermark
        bodies: list[_EncodedEntry] = []
        if since.history is None:
            repeated = history.rewritten_count if rewrite else 0
            bodies.append((EntryKind.BEGIN, encode_begin(info, repeated)))
        if len(state.phases) > since.phases:
            bodies += [(EntryKind.PHASE, encode(phase)) for phase in state.phases[since.phases :]]
        turns: TurnDelta | None = None
        if state.turn is not None or state.turns:
            turns = TurnDelta(since.turns, state, watermark.next_seq + len(bodies), rewrite=rewrite)
            bodies += turns.before
        start = since.messages if same_history else 0
        messages = history[start:]
        step_finished = state.steps > watermark.steps
        # Messages of the current step, if the finished one was not saved before the current one began.
        later = start + len(messages) - history.finished_count if step_finished else 0
        # A finished phase drops its recorded results.
        saved = since.results if same_history else _EMPTY
        self.event_count: int = len(state.recorded_events)
        if state.recorded_events:
            bodies += [(EntryKind.EVENT, body) for before, body in state.recorded_events if before <= start]
        if saved and messages:
            bodies += _encode_messages(saved, since.steps, state, messages[: len(messages) - later])
            messages = messages[len(messages) - later :]
        for message in messages:
            bodies.append((_MESSAGE, state.codec.encode(message)))
        recent = dict(turns.stored.recent) if turns is not None else {}
        progress = _encode(Progress.from_state(state, recent, attempts))
        if step_finished:
            bodies.insert(len(bodies) - later, (_STEP, _encode_step(state, now)))
        if state.recorded_events:
            bodies += [(EntryKind.EVENT, body) for before, body in state.recorded_events if before > start]
        if state.results:
            bodies += _encode_new_results(saved, since.steps, state)
        if turns is not None:
            bodies += turns.after
        entries: list[Entry] = []
        size = since.size
        for seq, (kind, body) in enumerate(bodies, watermark.next_seq):
            entries.append(Entry(seq=seq, kind=kind, body=body))
            size += len(body)
        stored_turns = turns.stored if turns is not None else NO_TURNS
        next_seq = watermark.next_seq + len(entries)
        self.next_watermark: Watermark = make_watermark(state, next_seq, size, stored_turns)
        consumed = tuple(state.consumed)
        self.write: Append = Append(
            entries=entries,
            progress=progress,
            rewrite=rewrite,
            step_finished=step_finished,
            consumed=consumed,
            unless_mail=state.unless_mail,
        )

    def has_other_changes(self, watermark: Watermark) -> bool:
        """Whether a delta without entries consumes mail, or changes what is only in the progress."""
        known = all(map(operator.is_, self.next_watermark.data, watermark.data))
        return bool(self.write.consumed) or not known


def make_last_delta(
    watermark: Watermark,
    state: RunState,
    info: RunInfo,
    now: datetime,
    attempts: tuple[AttemptRecord, ...],
    *,
    max_size: int | None,
) -> Delta | None:
    """Return what is new since the watermark, for the end of an attempt; `None` if it cannot be appended."""
    try:
        delta = Delta(watermark, state, info, now, attempts)
    except Exception as exc:  # an adapter's codec may raise anything; the claim is released anyway
        log.warning("run %s: the progress since its last save is lost: %s", info.run_id, exc)
        return None
    is_too_large = max_size is not None and delta.next_watermark.size > max_size
    # The result of a turn may exceed the limit: the next turn is refused.
    if delta.write.rewrite or (is_too_large and not info.conversation):
        return None
    return delta


def _encode_step(state: RunState, now: datetime) -> bytes:
    end = state.step_end
    progress = Progress.at_step_end(state, end)
    return _encode(Step(at=now, progress=progress, decisions=end.decisions, times=end.times, traces=end.traces))


def _encode_messages(
    saved: Mapping[str, Any], step: int, state: RunState, messages: Sequence[Any]
) -> Iterator[_EncodedEntry]:
    """Encode new messages. Results that are in the journal already are adopted by call id, each once."""
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
    """Encode results that are neither in the history nor in the store."""
    for call, result in state.results.items():
        if call not in saved or not _is_pending_result(call, saved[call], step, state):
            message = msgspec.Raw(state.codec.encode(result))
            yield EntryKind.RESULT, encode(RecordedResult(call=call, steps=state.steps, message=message))


def _is_pending_result(call: str, saved: Any, step: int, state: RunState) -> bool:
    """Whether the result saved in `step` is still the result of the call, and is not in the history yet."""
    return step == state.steps and call in state.results and state.results[call] is saved


def forget_consumed(state: RunState, mail_ids: Sequence[str]) -> None:
    """Forget mail that the store has consumed. More may have been taken during the write."""
    state.consumed[:] = [mail_id for mail_id in state.consumed if mail_id not in mail_ids]


class RecordedInTransaction:
    """The save that is part of a transaction, made when the user's function has returned."""

    def __init__(self, record: Callable[[Any], Callable[[], None]], make_delta: Callable[[], Delta | None]) -> None:
        """For the arguments see `Checkpointer.transact`."""
        self._record, self._make_delta = record, make_delta
        self._remove: Callable[[], None] | None = None
        self._delta: Delta | None = None

    @property
    def delta(self) -> Delta:
        assert self._delta is not None, "a transaction is committed after make_write"
        return self._delta

    def make_write(self, value: Any) -> Append:
        """Record what the function returned, and return the write that saves it."""
        self._remove = self._record(value)
        self._delta = self._make_delta()
        return self.delta.write

    def remove(self) -> None:
        """Remove the recorded result from the state: the transaction was rolled back."""
        if self._remove is not None:
            self._remove()
