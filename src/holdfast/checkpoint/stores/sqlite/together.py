"""One statement for many jobs of one kind.

The interpreter is let go for every statement, and to get it back takes long while the event loop is busy: with a few
statements for each run, a commit for many runs would wait as many times. So jobs of one kind are put into a view as
rows, and what is put there is done by its trigger.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import apsw

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.stores.sqlite.statements import statement
from holdfast.checkpoint.stores.sqlite.transaction import Transaction

#: So many share a statement at most. SQLite does not keep longer texts by heart.
MOST = 512


def done_together(cursor: apsw.Cursor, name: str, width: int, count: int, bindings: list[Any]) -> bool:
    """Do `count` jobs in one statement. False: nothing was written, because one of them is not as simple as most are.

    Args:
        bindings: one that they share, then `width` of each. More are added to it.
    """
    rows = _padded(count)
    bindings += (None,) * (width * (rows - count))
    try:
        cursor.execute(_statement(name, width, rows), bindings)
    except apsw.ConstraintError:
        return False
    return True


def _padded(count: int) -> int:
    """A size not much larger; rows without a run are left out. Few sizes, so that SQLite knows all of them by heart."""
    coarse = 1 << max(0, count.bit_length() - 4)
    return -(-count // coarse) * coarse


@cache
def _statement(name: str, width: int, rows: int) -> str:
    row = f"(?1{',?' * width})"
    return statement(name).replace("{rows}", ",".join([row] * rows))


def remove_together(removals: Sequence[tuple[str, Claim]], transaction: Transaction) -> bool:
    """Remove all of these runs, at most `MOST`. False: nothing was removed, and they have to be removed one by one.

    That is so if a claim is lost, or a run has started others.
    """
    bindings: list[Any] = [None]
    for run_id, claim in removals:
        bindings += (run_id, claim.token)
    if not done_together(transaction.cursor, "remove_together", 2, len(removals), bindings):
        return False
    transaction.littered += len(removals)
    transaction.signals = True
    return True
