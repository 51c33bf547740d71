"""One statement for many jobs of one kind.

The interpreter is let go for every statement, and to get it back takes long while the event loop is busy: with a few
statements for each run, a commit for many runs would wait as many times. So jobs of one kind are put into a view as
rows, and what is put there is done by its trigger.

Many appends in one statement.

It is a transaction by itself, too: while SQLite does all of the work, the event loop has the interpreter to itself.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import apsw

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.journal import Append, pack_segment
from holdfast.stores.sqlite.database import statement
from holdfast.stores.sqlite.transaction import JournalTail, Transaction, WriteCache, make_skip_pointer

#: So many share a statement at most. SQLite does not keep longer texts by heart.
MAX_ROWS = 512


def execute_bulk(cursor: apsw.Cursor, name: str, columns: int, count: int, bindings: list[Any]) -> bool:
    """Do `count` jobs in one statement. False: nothing was written, because one of them is not as simple as most are.

    Args:
        bindings: one that they share, then `width` of each. More are added to it.
    """
    rows = _pad_count(count)
    bindings += (None,) * (columns * (rows - count))
    try:
        cursor.execute(_build_statement(name, columns, rows), bindings)
    except apsw.ConstraintError:
        return False
    return True


def _pad_count(count: int) -> int:
    """A size not much larger; rows without a run are left out. Few sizes, so that SQLite knows all of them by heart."""
    coarse = 1 << max(0, count.bit_length() - 4)
    return -(-count // coarse) * coarse


@cache
def _build_statement(name: str, columns: int, rows: int) -> str:
    row = f"(?1{',?' * columns})"
    return statement(name).replace("{rows}", ",".join([row] * rows))


def remove_bulk(removals: Sequence[tuple[str, Claim]], transaction: Transaction) -> bool:
    """Remove all of these runs, at most `MOST`. False: nothing was removed, and they have to be removed one by one.

    That is so if a claim is lost, or a run has started others.
    """
    bindings: list[Any] = [None]
    for run_id, claim in removals:
        bindings += (run_id, claim.token)
    if not execute_bulk(transaction.cursor, "remove_bulk", 2, len(removals), bindings):
        return False
    transaction.garbage_journals += len(removals)
    transaction.notify = True
    return True


#: Bindings of one append, without the time, which they share.
_APPEND_COLUMNS = 13


def append_bulk(
    appends: Sequence[tuple[Claim, Append]], cursor: apsw.Cursor, cache: WriteCache, now_micros: int
) -> bool:
    """Do all of `appends`, at most `MOST`. False: nothing was written, and they have to be done one by one.

    That is so if one of them is not as simple as most are: its claim is lost, the journal starts anew, or where it ends
    is not known by heart. Outside of a transaction this is one by itself.
    """
    bindings: list[Any] = [now_micros]
    heads = _bind_appends(appends, cache, bindings)
    if heads is None:
        return False
    if not execute_bulk(cursor, "append_bulk", _APPEND_COLUMNS, len(appends), bindings):
        # A run did not take its append, or another process has used the keys. Whose fault it is shows one by one.
        cache.last_key = None
        return False
    cache.store_tails({claim.token: head for (claim, _), head in zip(appends, heads, strict=True)})
    cache.last_key = heads[-1].last_segment
    return True


def _bind_appends(
    appends: Sequence[tuple[Claim, Append]], cache: WriteCache, bindings: list[Any]
) -> list[JournalTail] | None:
    """Add what is to be written to the bindings. Gives the ends of the journals then; `None`: one is not simple."""
    if cache.last_key is None:
        return None
    key, ends, after = cache.last_key, cache.tails, list[JournalTail]()
    for claim, write in appends:
        head = ends.get(claim.token)
        entries = write.entries
        if head is None or write.rewrite or not entries:
            return None
        try:
            piece = pack_segment(entries)
        except (TypeError, ValueError):
            return None
        key += 1
        run_key, before, recent = head
        far, passed, recent = make_skip_pointer(recent)
        bindings += (len(entries), write.progress, write.step_finished, claim.token, key, run_key, before, far, passed)
        bindings += piece
        # What `Head(...)` does, without a Python function in between.
        after.append(tuple.__new__(JournalTail, (run_key, key, (*recent, key))))
    return after
