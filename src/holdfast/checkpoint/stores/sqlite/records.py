"""From rows to records and journals, checked on the way."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.checkpoint.errors import RunDamaged
from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.pieces import unpacked
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.stores.sqlite.transaction import from_micros


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


def keys_on(way: Iterable[tuple[int, str | None]], run_id: str) -> list[int]:
    """The keys of the pieces on a way backwards through a journal: each step, and those that it passed over.

    Raises:
        RunDamaged: what a step says about those cannot be read.
    """
    keys: list[int] = []
    for key, passed in way:
        keys.append(key)
        if passed is not None:
            try:
                keys += reversed(msgspec.json.decode(passed, type=list[int]))
            except msgspec.MsgspecError as exc:
                raise RunDamaged(run_id, f"the way to its entries is lost ({exc})") from exc
    return keys


def journal_from(rows: Iterable[Sequence[Any]], run_id: str, seqs: range) -> tuple[Entry, ...]:
    """The entries numbered `seqs`, from the rows of their pieces, newest first. The oldest may hold earlier ones.

    Raises:
        RunDamaged: one is missing, or is not what was written.
    """
    pieces: list[list[Entry]] = []
    due = seqs.stop
    for row in rows:
        if due <= seqs.start:
            break  # the way there passed over more than was asked for
        try:
            piece = unpacked(*row)
        except (ValueError, LookupError, AttributeError) as exc:
            raise RunDamaged(run_id, f"what is before entry {due} is not what was written") from exc
        if piece[-1].seq != due - 1:
            raise RunDamaged(run_id, f"something else is in the place of entry {due - 1}")
        due = piece[0].seq
        pieces.append(piece)
    if due > seqs.start:
        raise RunDamaged(run_id, f"entry {due - 1} is missing")
    entries = [entry for piece in reversed(pieces) for entry in piece]
    return tuple(entries[seqs.start - due :])
