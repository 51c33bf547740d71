"""Writes to one run: create, append, release, mail, remove."""

import contextvars
import inspect
import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import apsw
import msgspec

from holdfast.checkpoint.errors import ClaimLost, RunBusy, RunEnded, RunExists, RunNotFound, StoreError, UnreadMail
from holdfast.checkpoint.journal import Append, Entry, Segment, pack_segment
from holdfast.checkpoint.record import TERMINAL_STATUSES, Mail, NewRun, Receipt, Release, RunStatus
from holdfast.checkpoint.workers import Claim, backoff, list_limit_names
from holdfast.core.errors import DefinitionError, RunError
from holdfast.stores.sqlite.claiming import has_slot
from holdfast.stores.sqlite.database import statement
from holdfast.stores.sqlite.liveness import Liveness
from holdfast.stores.sqlite.transaction import (
    Execute,
    RolledBack,
    RunRow,
    SqliteConnection,
    Transaction,
    WriteRequest,
    find_run,
    from_micros,
    to_micros,
)


def post(run_id: str, mail: Mail, transaction: Transaction) -> Receipt:
    run = find_run(run_id, transaction)
    if run is None:
        raise RunNotFound(run_id)
    known = transaction.fetch_one(statement("find_mail"), (run.run_key, mail.mail_id))
    if known is not None:
        *columns, consumed = known
        return Receipt(is_new=False, mail=_make_mail(columns), consumed=bool(consumed))
    if run.status in TERMINAL_STATUSES:
        raise RunEnded(run_id, run.status.value)
    now = transaction.now_micros
    transaction.execute(statement("post_mail"), (run.run_key, mail.mail_id, mail.topic, mail.body, now))
    transaction.execute(statement("count_unread"), (run.run_key, 1))
    if run.waits_for(mail.topic):
        transaction.execute(statement("wake_run"), (run.run_key, now))
    transaction.notify = True
    return Receipt(is_new=True, mail=msgspec.structs.replace(mail, posted_at=from_micros(now)))


def read_unread_mail(run_key: int, execute: Execute) -> tuple[Mail, ...]:
    """Return the unread mail of a run, in the order of arrival."""
    return tuple(_make_mail(row) for row in execute(statement("unread_mail"), (run_key,)).fetchall())


def check_mail(
    run_id: str, run: RunRow, consumed: Collection[str], topics: Collection[str], transaction: Transaction
) -> None:
    """Check that `consumed` is unread mail of the run, and that no other mail of the topics is unread.

    Raises:
        StoreError: a consumed mail is not unread.
        UnreadMail: mail of these topics is left.
    """
    if not consumed and not (topics and run.unread):
        return
    unread = {mail.mail_id: mail.topic for mail in read_unread_mail(run.run_key, transaction.execute)}
    if unknown := set(consumed) - set(unread):
        raise StoreError(f"run {run_id}: {sorted(unknown)} is not among its unread mail; nothing was written")
    if any(topic in topics for mail_id, topic in unread.items() if mail_id not in consumed):
        raise UnreadMail(run_id)


def consume_mail(run: RunRow, mail_ids: Collection[str], transaction: Transaction) -> None:
    """Mark mail as read, after `check_mail`."""
    consumed = set(mail_ids)
    for mail_id in consumed:
        transaction.execute(statement("consume_mail"), (run.run_key, mail_id))
    if consumed:
        transaction.execute(statement("count_unread"), (run.run_key, -len(consumed)))


def _make_mail(row: Sequence[Any]) -> Mail:
    mail_id, topic, body, posted_at = row
    return Mail(mail_id=mail_id, topic=topic, body=body, posted_at=from_micros(posted_at))


#: Appends in one statement. SQLite does not cache longer statements.
MAX_BULK_APPENDS = 512
#: Bindings of one append in `append_bulk`, beside the time, which all share.
_BULK_COLUMNS = 9


def create(run: NewRun, worker_id: str | None, liveness: Liveness, transaction: Transaction) -> Claim | None:
    if transaction.fetch_one(statement("run_exists"), (run.run_id,)):
        raise RunExists(run.run_id)
    segment = _pack_entries(run.run_id, run.entries)
    if segment is not None and segment.seq != 0:
        raise _make_order_error(run.run_id, segment.seq, 0)
    run_key = transaction.next_token()
    last_segment = 0 if segment is None else transaction.insert_segment(run_key, 0, segment)
    claim = None
    names = list_limit_names(run.agent_name, run.concurrency_key, shares_parent_slot=run.shares_parent_slot)
    if worker_id is not None and not has_slot(names, liveness, transaction):
        worker_id = None
    if worker_id is not None:
        claim = Claim(run_id=run.run_id, worker_id=worker_id, token=transaction.next_token(), strikes=1)
    status = RunStatus.QUEUED if claim is None else RunStatus.RUNNING
    due_at = run.not_before or transaction.now
    not_before = due_at if claim is None else transaction.now + backoff(claim.strikes)
    transaction.execute(
        statement("insert_run"),
        (
            *(run_key, run.run_id, run.agent_name, run.caller_id, run.parent_run_id),
            status.value,
            *(transaction.now_micros, worker_id),
            *((0, 0) if claim is None else (claim.token, claim.strikes)),
            to_micros(not_before),
            *(len(run.entries), 0 if segment is None else len(segment.body), last_segment),
            *(run.info, run.progress, json.dumps(dict(run.labels)) if run.labels else "{}"),
            *(run.priority, run.concurrency_key, run.tenant, run.background),
        ),
    )
    for name, value in run.labels.items():
        row = (run_key, name, value, status.value, transaction.now_micros)
        transaction.execute(statement("insert_label"), row)
    if claim is None:
        transaction.notify = True
    return claim


def append(claim: Claim, write: Append, transaction: Transaction) -> None:
    run, segment = _check_write(claim, write.entries, transaction)
    check_mail(claim.run_id, run, write.consumed, write.unless_mail, transaction)
    consume_mail(run, write.consumed, transaction)
    _write(run, segment, write, transaction)


def append_after_mail(claim: Claim, write: Append, transaction: Transaction) -> None:
    """Append as `append` does, but never in bulk: the write depends on the run's mail."""
    append(claim, write, transaction)


def append_bulk(appends: Sequence[tuple[Claim, Append]], transaction: Transaction) -> bool:
    """Make up to `MAX_BULK_APPENDS` appends in one statement. Return False if nothing was written: call `append` then.

    That happens if one of them is refused, rewrites the journal, depends on mail, or has no entries.

    apsw releases the GIL for each statement, and waits up to 5 ms to get it back from a busy event loop. So N appends
    are one INSERT into a view, whose INSTEAD OF trigger applies them: 23% more steps per second with 128 runs at once,
    17% with 1,000.
    """
    bindings: list[Any] = [transaction.now_micros]
    for claim, write in appends:
        if write.rewrite or write.consumed or write.unless_mail or not write.entries:
            return False
        try:
            segment = pack_segment(write.entries)
        except (TypeError, ValueError):
            return False
        bindings += (claim.run_id, claim.token, len(write.entries), write.progress, write.step_finished, *segment)
    rows = _round_up(len(appends))
    bindings += (None,) * (_BULK_COLUMNS * (rows - len(appends)))
    try:
        transaction.execute(_build_bulk_statement(rows), bindings)
    except apsw.ConstraintError:
        return False
    return True


def _round_up(count: int) -> int:
    """Round to one of few sizes, so that SQLite's statement cache has them all. The trigger ignores empty rows."""
    coarse = 1 << max(0, count.bit_length() - 4)
    return -(-count // coarse) * coarse


@cache
def _build_bulk_statement(rows: int) -> str:
    row = f"(?1{',?' * _BULK_COLUMNS})"
    return statement("append_bulk").replace("{rows}", ",".join([row] * rows))


def apply_appends(requests: list[WriteRequest], transaction: Transaction) -> list[WriteRequest]:
    """Make the appends in bulk, as far as that is possible. Return the remaining requests."""
    appends = [request for request in requests if request.work is append]
    if len(appends) < 2:
        return requests
    remaining = [request for request in requests if request.work is not append]
    for start in range(0, len(appends), MAX_BULK_APPENDS):
        batch = appends[start : start + MAX_BULK_APPENDS]
        if not append_bulk([request.arguments for request in batch], transaction):
            remaining += batch
    return remaining


class UserTransaction:
    """A function of the user, and an append with what it returned: committed together, or not at all."""

    def __init__(self, claim: Claim, function: Callable[[Any], Any], make_write: Callable[[Any], Append]) -> None:
        """For the arguments see `RunStore.transact`."""
        self._claim, self._function, self._make_write = claim, function, make_write
        self._context = contextvars.copy_context()
        #: The function has returned, and its caller has made the append. Changed in the event loop's thread only.
        self.is_committing = False
        #: The caller has left before that.
        self.is_abandoned = False

    def run(self, call_in_loop: Callable[[Callable[[], Append]], Append], transaction: Transaction) -> Any:
        """Do all of it, in the writer's thread. The writer commits."""
        try:
            _check_write(self._claim, (), transaction)
            value = self._call(transaction)
            append(self._claim, call_in_loop(partial(self._begin_commit, value)), transaction)
        except StopIteration as exc:  # asyncio refuses it as the exception of a future
            raise RolledBack(RuntimeError("the function of a transaction raised StopIteration")) from exc
        except _DATABASE_ERRORS:
            raise
        except BaseException as exc:  # of any kind: it is raised to the caller, and does not end this thread
            raise RolledBack(exc) from exc
        return value

    def _call(self, transaction: Transaction) -> Any:
        connection = SqliteConnection(transaction.connection)
        try:
            value = self._context.run(self._function, connection)
        finally:
            connection.close()
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise DefinitionError("a transaction holds the only write lock of SQLite: its function must not be async")
        return value

    def _begin_commit(self, value: Any) -> Append:
        if self.is_abandoned:
            raise RunError(f"run {self._claim.run_id}: the call has ended: its writes are rolled back")
        write = self._make_write(value)
        self.is_committing = True
        return write


#: Errors of the database and not of the user's function: it may succeed when it is called again.
_DATABASE_ERRORS = (
    *(apsw.BusyError, apsw.LockedError, apsw.ProtocolError, apsw.FullError, apsw.IOError, apsw.ReadOnlyError),
    *(apsw.CantOpenError, apsw.CorruptError, apsw.NotADBError, apsw.NoMemError),
)


def release(claim: Claim, release: Release, transaction: Transaction) -> None:
    run, segment = _check_write(claim, release.entries, transaction)
    check_mail(claim.run_id, run, release.consumed, release.wake_on, transaction)
    if release.status is RunStatus.DONE and run.cancel_requested:
        raise UnreadMail(claim.run_id)
    consume_mail(run, release.consumed, transaction)
    _write(run, segment, release, transaction)
    expires_at = None if release.retention is None else to_micros(transaction.now + release.retention)
    not_before = to_micros(transaction.now + release.delay)
    waits = release.status is RunStatus.WAITING
    transaction.execute(
        statement("release_run"),
        (
            *(run.run_key, release.status.value, release.reason, release.strikes),
            *(not_before, expires_at, transaction.now_micros, release.status in TERMINAL_STATUSES),
            None if release.wake_at is None else to_micros(release.wake_at),
            json.dumps(list(release.wake_on)) if waits and release.wake_on else "[]",
            release.yields_to_cancel,
        ),
    )
    if (notice := release.notify) is not None:
        with suppress(RunNotFound, RunEnded):  # there is no run to notify
            post(notice.run_id, notice.mail, transaction)
    transaction.notify = True


def remove(run_id: str, claim: Claim | None, liveness: Liveness, transaction: Transaction) -> None:
    run = find_run(run_id, transaction)
    if claim is not None and (run is None or run.token != claim.token):
        raise ClaimLost(run_id, claim.token, None if run is None else run.token)
    if run is None:
        return
    is_running = run.status is RunStatus.RUNNING
    if claim is None and is_running and run.owner and liveness.is_alive(run.owner, transaction.execute):
        raise RunBusy(run_id, run.owner)
    _delete_tree(run_id, transaction)


def list_garbage(transaction: Transaction) -> frozenset[int]:
    """Return the keys of the runs that have removed journals, which the vacuum has not deleted yet."""
    return frozenset(run_key for (run_key,) in transaction.execute(statement("list_garbage")).fetchall())


def purge(limit: int, transaction: Transaction) -> int:
    rows = transaction.execute(statement("expired_runs"), (transaction.now_micros, limit)).fetchall()
    for (run_id,) in rows:
        _delete_tree(run_id, transaction)
    return len(rows)


def request_cancel(run_id: str, transaction: Transaction) -> None:
    run = find_run(run_id, transaction)
    if run is None:
        raise RunNotFound(run_id)
    transaction.execute(statement("request_cancel"), (run.run_key,))
    transaction.notify = True


def _check_write(claim: Claim, entries: Sequence[Entry], transaction: Transaction) -> tuple[RunRow, Segment | None]:
    """Check that the claim is valid and that the entries are the next ones. Return the run and the new segment."""
    segment = _pack_entries(claim.run_id, entries)
    run = find_run(claim.run_id, transaction)
    if run is None or run.token != claim.token:
        raise ClaimLost(claim.run_id, claim.token, None if run is None else run.token)
    if run.status is not RunStatus.RUNNING:
        raise ClaimLost(claim.run_id, claim.token, None)
    if segment is not None and segment.seq != run.next_seq:
        raise _make_order_error(claim.run_id, segment.seq, run.next_seq)
    return run, segment


def _write(run: RunRow, segment: Segment | None, write: Append | Release, transaction: Transaction) -> None:
    """Write the entries and the progress."""
    rewrite, step_finished = (write.rewrite, write.step_finished) if isinstance(write, Append) else (False, False)
    last_segment = run.last_segment
    if rewrite:
        transaction.discard_journal(run.run_key, last_segment)
        last_segment = 0
    if segment is not None:
        last_segment = transaction.insert_segment(run.run_key, last_segment, segment)
    size = 0 if segment is None else len(segment.body)
    change = (len(write.entries), size, transaction.now_micros, write.progress, rewrite, step_finished, last_segment)
    transaction.execute(statement("update_run"), (run.run_key, *change))


def _pack_entries(run_id: str, entries: Sequence[Entry]) -> Segment | None:
    try:
        return pack_segment(entries) if entries else None
    except ValueError as exc:
        raise StoreError(f"run {run_id}: {exc}; nothing was written") from None


def _make_order_error(run_id: str, found: int, expected: int) -> StoreError:
    return StoreError(f"run {run_id}: entry {found} came where {expected} is due; nothing was written")


def _delete_tree(run_id: str, transaction: Transaction) -> None:
    """Remove the run and its descendants. The garbage collection deletes their journals later."""
    for run_key, last_segment in transaction.execute(statement("run_tree"), (run_id,)).fetchall():
        transaction.execute(statement("delete_run"), (run_key,))
        transaction.discard_journal(run_key, last_segment)
    transaction.notify = True
