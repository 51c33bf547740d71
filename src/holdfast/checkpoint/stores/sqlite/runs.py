"""What is written to one run. Each function is a job of the writer: it checks first, then writes."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from holdfast.checkpoint.claim import Claim, backoff
from holdfast.checkpoint.errors import ClaimLost, RunBusy, RunExists, RunNotFound, StoreError
from holdfast.checkpoint.journal import Entry, Write
from holdfast.checkpoint.lifecycle import OVER, Status
from holdfast.checkpoint.pieces import Piece, packed
from holdfast.checkpoint.record import Ending, NewRun
from holdfast.checkpoint.stores.sqlite.statements import statement
from holdfast.checkpoint.stores.sqlite.transaction import Head, Transaction, row_behind, to_micros
from holdfast.checkpoint.stores.sqlite.workers import Liveness

_WRITE = statement("write")
_HEAD = statement("head")


class Standing(NamedTuple):
    """Where a run stands, as far as writes depend on it."""

    run_key: int
    token: int
    status: Status
    next_seq: int
    owner: str | None
    strikes: int
    reason: str


def standing(run_id: str, transaction: Transaction) -> Standing | None:
    row = transaction.one(statement("standing"), (run_id,))
    if row is None:
        return None
    run_key, token, status, *rest = row
    return Standing(run_key, token, Status(status), *rest)


def create(run: NewRun, worker_id: str | None, transaction: Transaction) -> Claim | None:
    if transaction.one(statement("run_exists"), (run.run_id,)):
        raise RunExists(run.run_id)
    piece = _piece(run.run_id, run.entries)
    if piece is not None and piece.seq != 0:
        raise _out_of_order(run.run_id, f"entry {piece.seq} came where 0 is due")
    run_key = transaction.next_token()
    key = 0 if piece is None else transaction.next_key()
    claim = None
    if worker_id is not None:
        claim = Claim(run_id=run.run_id, worker_id=worker_id, token=transaction.next_token(), strikes=1)
    wait = timedelta(0) if claim is None else backoff(claim.strikes)
    transaction.execute(
        statement("insert_run"),
        (
            *(run_key, run.run_id, run.agent_name, run.caller_id, run.parent_run_id),
            (Status.QUEUED if claim is None else Status.RUNNING).value,
            *(transaction.now_micros, worker_id),
            *((0, 0) if claim is None else (claim.token, claim.strikes)),
            to_micros(transaction.now + wait),
            *(len(run.entries), 0 if piece is None else len(piece.body), key),
            *(run.meta, run.progress),
        ),
    )
    head = Head(run_key, 0, ())
    if piece is not None:
        row, head = row_behind(head, key, piece)
        transaction.insert_piece(row)
    if claim is None:
        transaction.signals = True
    else:
        transaction.known.remember({claim.token: head})
    return claim


def append(claim: Claim, write: Write, transaction: Transaction) -> None:
    _write(claim, write.entries, write.progress, write.replace, write.finished_step, transaction)


def settle(claim: Claim, ending: Ending, transaction: Transaction) -> None:
    run_key = _write(claim, ending.entries, ending.progress, False, False, transaction)
    expires_at = None if ending.keep is None else to_micros(transaction.now + ending.keep)
    not_before = to_micros(transaction.now + ending.delay)
    over = ending.status in OVER
    transaction.execute(
        statement("settle"),
        (
            *(run_key, ending.status.value, ending.reason, ending.strikes),
            *(not_before, expires_at, transaction.now_micros, over),
        ),
    )
    transaction.signals = True


def remove(run_id: str, claim: Claim | None, dead_after: timedelta, transaction: Transaction) -> None:
    stands = standing(run_id, transaction)
    if claim is not None and (stands is None or stands.token != claim.token):
        raise ClaimLost(run_id, claim.token, None if stands is None else stands.token)
    if stands is None:
        return
    liveness = Liveness(transaction.execute, transaction.now, dead_after)
    if claim is None and stands.status is Status.RUNNING and stands.owner and liveness.alive(stands.owner):
        raise RunBusy(run_id, stands.owner)
    _drop(run_id, transaction)


def purge(limit: int, transaction: Transaction) -> int:
    rows = transaction.execute(statement("expired"), (transaction.now_micros, limit)).fetchall()
    for (run_id,) in rows:
        _drop(run_id, transaction)
    return len(rows)


def request_cancel(run_id: str, transaction: Transaction) -> None:
    stands = standing(run_id, transaction)
    if stands is None:
        raise RunNotFound(run_id)
    transaction.execute(statement("request_cancel"), (stands.run_key,))
    transaction.signals = True


def _write(
    claim: Claim,
    entries: Sequence[Entry],
    progress: bytes | None,
    replace: bool,
    finished_step: bool,
    transaction: Transaction,
) -> int:
    """Write under the claim, if it holds and the entries are the next ones. Gives the run's key."""
    piece = _piece(claim.run_id, entries)
    size, first_seq, key = (0, None, 0) if piece is None else (len(piece.body), piece.seq, transaction.next_key())
    last_piece = key or (0 if replace else None)
    change = (
        *(len(entries), size, transaction.now_micros, progress, replace, finished_step, last_piece),
        *(claim.token, first_seq),
    )
    head = transaction.known.heads.get(claim.token)
    if head is None or not transaction.changes(_WRITE, (*change, head.run_key, head.last_piece)):
        row = transaction.one(_HEAD, (claim.run_id, claim.token))
        head = Head(row[0], row[1], (row[1],) if row[1] else ()) if row else None
        if head is None or not transaction.changes(_WRITE, (*change, head.run_key, head.last_piece)):
            raise _refusal(claim, first_seq, transaction)
    if replace:
        transaction.discard_journal(head.run_key, head.last_piece)
        head = Head(head.run_key, 0, ())
    if piece is not None:
        behind, head = row_behind(head, key, piece)
        transaction.insert_piece(behind)
    transaction.known.remember({claim.token: head})
    return head.run_key


def _piece(run_id: str, entries: Sequence[Entry]) -> Piece | None:
    try:
        return packed(entries) if entries else None
    except ValueError as exc:
        raise _out_of_order(run_id, str(exc)) from None


def _refusal(claim: Claim, first_seq: int | None, transaction: Transaction) -> StoreError:
    """Why the run took no write: the claim is not valid any more, or the entries are not the next ones."""
    stands = standing(claim.run_id, transaction)
    if stands is None or stands.token != claim.token:
        return ClaimLost(claim.run_id, claim.token, None if stands is None else stands.token)
    if stands.status is not Status.RUNNING:
        return ClaimLost(claim.run_id, claim.token, None)
    return _out_of_order(claim.run_id, f"entry {first_seq} came where {stands.next_seq} is due")


def _out_of_order(run_id: str, what: str) -> StoreError:
    return StoreError(f"run {run_id}: {what}; nothing was written")


def _drop(run_id: str, transaction: Transaction) -> None:
    """Remove the run and all it started. Their journals are deleted later: from here on nothing leads to them."""
    for run_key, last_piece in transaction.execute(statement("family"), (run_id,)).fetchall():
        transaction.execute(statement("delete_run"), (run_key,))
        transaction.discard_journal(run_key, last_piece)
    transaction.signals = True
