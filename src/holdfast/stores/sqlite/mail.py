"""Mail of runs. `post`, `check_mail` and `consume_mail` run in a write transaction."""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from holdfast.checkpoint.errors import RunEnded, RunNotFound, StoreError, UnreadMail
from holdfast.checkpoint.mail import Mail, Receipt
from holdfast.checkpoint.record import TERMINAL_STATUSES
from holdfast.stores.sqlite.database import statement
from holdfast.stores.sqlite.run_row import RunRow, find_run
from holdfast.stores.sqlite.transaction import Execute, Transaction, from_micros


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
    run_id: str, run: RunRow, consumed: Collection[str], wake_on: Collection[str], transaction: Transaction
) -> None:
    """Check that `consumed` is unread mail of the run, and that no other mail of the topics `wake_on` is unread.

    Raises:
        StoreError: a consumed mail is not unread.
        UnreadMail: mail of these topics is left.
    """
    if not consumed and not (wake_on and run.unread):
        return
    unread = {mail.mail_id: mail.topic for mail in read_unread_mail(run.run_key, transaction.execute)}
    if unknown := set(consumed) - set(unread):
        raise StoreError(f"run {run_id}: {sorted(unknown)} is not among its unread mail; nothing was written")
    if any(topic in wake_on for mail_id, topic in unread.items() if mail_id not in consumed):
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
