"""What is written to one run. Each function is a job of the writer: it checks first, then writes."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from holdfast.checkpoint.claim import Claim, backoff
from holdfast.checkpoint.errors import ClaimLost, RunBusy, RunExists, RunNotFound, StoreError
from holdfast.checkpoint.journal import Append, Entry, Segment, pack_segment
from holdfast.checkpoint.record import TERMINAL_STATUSES, NewRun, Release, RunStatus
from holdfast.stores.sqlite.database import statement
from holdfast.stores.sqlite.heartbeat import Liveness
from holdfast.stores.sqlite.transaction import JournalTail, Transaction, next_row, to_micros

_UPDATE_RUN = statement("update_run")
_FIND_TAIL = statement("journal_tail")


class RunRow(NamedTuple):
    """Where a run stands, as far as writes depend on it."""

    run_key: int
    token: int
    status: RunStatus
    next_seq: int
    owner: str | None
    strikes: int
    reason: str


def find_run(run_id: str, transaction: Transaction) -> RunRow | None:
    row = transaction.fetch_one(statement("run_row"), (run_id,))
    if row is None:
        return None
    run_key, token, status, *rest = row
    return RunRow(run_key, token, RunStatus(status), *rest)


def create(run: NewRun, worker_id: str | None, transaction: Transaction) -> Claim | None:
    if transaction.fetch_one(statement("run_exists"), (run.run_id,)):
        raise RunExists(run.run_id)
    piece = _pack_entries(run.run_id, run.entries)
    if piece is not None and piece.seq != 0:
        raise _make_order_error(run.run_id, f"entry {piece.seq} came where 0 is due")
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
            (RunStatus.QUEUED if claim is None else RunStatus.RUNNING).value,
            *(transaction.now_micros, worker_id),
            *((0, 0) if claim is None else (claim.token, claim.strikes)),
            to_micros(transaction.now + wait),
            *(len(run.entries), 0 if piece is None else len(piece.body), key),
            *(run.meta, run.progress),
        ),
    )
    head = JournalTail(run_key, 0, ())
    if piece is not None:
        row, head = next_row(head, key, piece)
        transaction.insert_segment(row)
    if claim is None:
        transaction.notify = True
    else:
        transaction.cache.store_tails({claim.token: head})
    return claim


def append(claim: Claim, write: Append, transaction: Transaction) -> None:
    _write(claim, write.entries, write.progress, write.rewrite, write.step_finished, transaction)


def release(claim: Claim, release: Release, transaction: Transaction) -> None:
    run_key = _write(claim, release.entries, release.progress, False, False, transaction)
    expires_at = None if release.retention is None else to_micros(transaction.now + release.retention)
    not_before = to_micros(transaction.now + release.delay)
    over = release.status in TERMINAL_STATUSES
    transaction.execute(
        statement("release_run"),
        (
            *(run_key, release.status.value, release.reason, release.strikes),
            *(not_before, expires_at, transaction.now_micros, over),
        ),
    )
    transaction.notify = True


def remove(run_id: str, claim: Claim | None, lease_timeout: timedelta, transaction: Transaction) -> None:
    stands = find_run(run_id, transaction)
    if claim is not None and (stands is None or stands.token != claim.token):
        raise ClaimLost(run_id, claim.token, None if stands is None else stands.token)
    if stands is None:
        return
    liveness = Liveness(transaction.execute, transaction.now, lease_timeout)
    if claim is None and stands.status is RunStatus.RUNNING and stands.owner and liveness.is_alive(stands.owner):
        raise RunBusy(run_id, stands.owner)
    _delete_tree(run_id, transaction)


def purge(limit: int, transaction: Transaction) -> int:
    rows = transaction.execute(statement("expired_runs"), (transaction.now_micros, limit)).fetchall()
    for (run_id,) in rows:
        _delete_tree(run_id, transaction)
    return len(rows)


def request_cancel(run_id: str, transaction: Transaction) -> None:
    stands = find_run(run_id, transaction)
    if stands is None:
        raise RunNotFound(run_id)
    transaction.execute(statement("request_cancel"), (stands.run_key,))
    transaction.notify = True


def _write(
    claim: Claim,
    entries: Sequence[Entry],
    progress: bytes | None,
    rewrite: bool,
    step_finished: bool,
    transaction: Transaction,
) -> int:
    """Write under the claim, if it holds and the entries are the next ones. Gives the run's key."""
    piece = _pack_entries(claim.run_id, entries)
    size, first_seq, key = (0, None, 0) if piece is None else (len(piece.body), piece.seq, transaction.next_key())
    last_piece = key or (0 if rewrite else None)
    change = (
        *(len(entries), size, transaction.now_micros, progress, rewrite, step_finished, last_piece),
        *(claim.token, first_seq),
    )
    head = transaction.cache.tails.get(claim.token)
    if head is None or not transaction.execute_update(_UPDATE_RUN, (*change, head.run_key, head.last_segment)):
        row = transaction.fetch_one(_FIND_TAIL, (claim.run_id, claim.token))
        head = JournalTail(row[0], row[1], (row[1],) if row[1] else ()) if row else None
        if head is None or not transaction.execute_update(_UPDATE_RUN, (*change, head.run_key, head.last_segment)):
            raise _make_refusal(claim, first_seq, transaction)
    if rewrite:
        transaction.discard_journal(head.run_key, head.last_segment)
        head = JournalTail(head.run_key, 0, ())
    if piece is not None:
        behind, head = next_row(head, key, piece)
        transaction.insert_segment(behind)
    transaction.cache.store_tails({claim.token: head})
    return head.run_key


def _pack_entries(run_id: str, entries: Sequence[Entry]) -> Segment | None:
    try:
        return pack_segment(entries) if entries else None
    except ValueError as exc:
        raise _make_order_error(run_id, str(exc)) from None


def _make_refusal(claim: Claim, first_seq: int | None, transaction: Transaction) -> StoreError:
    """Why the run took no write: the claim is not valid any more, or the entries are not the next ones."""
    stands = find_run(claim.run_id, transaction)
    if stands is None or stands.token != claim.token:
        return ClaimLost(claim.run_id, claim.token, None if stands is None else stands.token)
    if stands.status is not RunStatus.RUNNING:
        return ClaimLost(claim.run_id, claim.token, None)
    return _make_order_error(claim.run_id, f"entry {first_seq} came where {stands.next_seq} is due")


def _make_order_error(run_id: str, message: str) -> StoreError:
    return StoreError(f"run {run_id}: {message}; nothing was written")


def _delete_tree(run_id: str, transaction: Transaction) -> None:
    """Remove the run and all it started. Their journals are deleted later: from here on nothing leads to them."""
    for run_key, last_piece in transaction.execute(statement("run_tree"), (run_id,)).fetchall():
        transaction.execute(statement("delete_run"), (run_key,))
        transaction.discard_journal(run_key, last_piece)
    transaction.notify = True
