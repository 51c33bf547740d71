"""Turns of a conversation in a journal: the entries that a delta adds for them, and reading them back."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from holdfast.checkpoint.codec import JournalReader, Progress, decode, encode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.core.message import MessageCodec
from holdfast.core.state import RunState
from holdfast.core.turn import TurnInput, TurnRecord

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
    """Return the ids of the newest turns: `RECENT_TURNS`, and the present one."""
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
        RunDamaged, RecordDecodeError: as `read_checkpoint`.
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
