"""Copies the first turns of a conversation into a new one."""

from collections.abc import Sequence

import msgspec

from holdfast.checkpoint.codec import Begin, Step, decode
from holdfast.checkpoint.delta import index_turns
from holdfast.checkpoint.errors import CheckpointError, RunConflict, RunExists
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.core.run.info import RunInfo
from holdfast.core.run.turns import TurnInput, TurnRecord
from holdfast.runtime.operations.run_client import RunClient, make_queued_run


async def copy_turns(client: RunClient, source: str, info: RunInfo, at_turn: int, *, include: bool) -> str:
    """Queue a new conversation with the turns of `source` up to `at_turn`. Return the id of that turn.

    Does nothing if it was made before.

    Args:
        info: of the new conversation.
        include: copy `at_turn` too, not only the turns before it.

    Raises:
        CheckpointError: the journal has no such turn, or it was compacted.
        RunConflict: there is another run with the id of the new one.
    """
    stored = await client.store.load(source)
    turn_id, entries = _cut(source, stored.entries, at_turn, include=include)
    old = decode(stored.entries[0].body, Begin).info
    labels = {**old.labels, **info.labels}
    info = msgspec.structs.replace(info, labels=labels, forked_from=source, forked_at=at_turn)
    try:
        await client.store.create(make_queued_run(info, _make_progress(entries), entries))
    except RunExists:
        known = decode((await client.get_record(info.run_id)).info, RunInfo)
        if (known.forked_from, known.forked_at) != (source, at_turn):
            raise RunConflict(info.run_id, known.agent_name) from None
    return turn_id


def _cut(run_id: str, entries: Sequence[Entry], at_turn: int, *, include: bool) -> tuple[str, list[Entry]]:
    """Return the id of the turn, and the entries up to its end or its beginning, without the first one."""
    begun: set[int] = set()
    for position, entry in enumerate(entries):
        if entry.kind is EntryKind.INPUT:
            turn = decode(entry.body, TurnInput)
            begun.add(turn.number)
            if turn.number == at_turn and not include and not turn.compacted:
                return turn.turn_id, list(entries[1:position])
        elif entry.kind is EntryKind.TURN:
            turn = decode(entry.body, TurnRecord).input
            if turn.number == at_turn and include and at_turn in begun:
                return turn.turn_id, list(entries[1 : position + 1])
    known = ", ".join(map(str, sorted(begun))) or "none"
    raise CheckpointError(f"conversation {run_id} cannot be forked at turn {at_turn}: its journal has {known}")


def _make_progress(entries: Sequence[Entry]) -> Progress:
    """Return the progress of a conversation with these entries."""
    steps = [entry.body for entry in entries if entry.kind is EntryKind.STEP]
    progress = decode(steps[-1], Step).progress if steps else Progress()
    turns = sum(entry.kind is EntryKind.TURN for entry in entries)
    return msgspec.structs.replace(progress, turns=turns, turn=None, recent_turns=index_turns(entries, first_seq=1))
