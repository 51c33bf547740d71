"""From rows to records and journals, checked on the way."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from holdfast.checkpoint.errors import RunDamaged
from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.pieces import unpacked
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.stores.sqlite.transaction import from_micros

_KEYS = msgspec.json.Decoder(list[int])
_SEQ = itemgetter(0)


def record_from(row: Sequence[Any], alive: bool) -> RunRecord:
    """The record in a row of the columns `{record}`.

    Args:
        alive: whether the worker named in the row is.
    """
    status = Status(row[5])
    return RunRecord(
        run_id=row[1],
        agent_name=row[2],
        caller_id=row[3],
        parent_run_id=row[4],
        status=status,
        created_at=from_micros(row[6]),
        updated_at=from_micros(row[7]),
        owner=row[8],
        owner_alive=alive and status is Status.RUNNING,
        token=row[9],
        strikes=row[10],
        not_before=from_micros(row[11]),
        reason=row[12],
        cancel_requested=bool(row[13]),
        expires_at=None if row[14] is None else from_micros(row[14]),
        next_seq=row[15],
        size=row[16],
        meta=row[17],
        progress=row[18],
    )


def keys_in(names: Iterable[str], run_id: str) -> list[int]:
    """The keys of pieces, from the columns that name many of them.

    Raises:
        RunDamaged: one of those cannot be read.
    """
    keys: list[int] = []
    try:
        for column in names:
            keys += _KEYS.decode(column)
    except msgspec.MsgspecError as exc:
        raise RunDamaged(run_id, f"the way to its entries is lost ({exc})") from exc
    return keys


def journal_from(pieces: list[tuple[Any, ...]], run_id: str, seqs: range) -> tuple[Entry, ...]:
    """The entries numbered `seqs`, from the pieces that hold them, in any order. There may be older pieces with them.

    Raises:
        RunDamaged: an entry is missing, or is not what was written.
    """
    try:
        pieces.sort(key=_SEQ)
        first = bisect_right(pieces, seqs.start, key=_SEQ) - 1
        entries = unpacked(pieces[max(first, 0) :])
    except (ValueError, LookupError) as exc:
        raise RunDamaged(run_id, str(exc)) from exc
    if first < 0:
        raise RunDamaged(run_id, f"entry {seqs.start} is missing")
    if entries[-1].seq != seqs.stop - 1:
        raise RunDamaged(run_id, f"its last entry is {entries[-1].seq}, and not {seqs.stop - 1}")
    return tuple(entries[seqs.start - entries[0].seq :])
