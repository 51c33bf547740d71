"""Many appends in few statements.

The interpreter is let go for every statement, and to get it back takes long while the event loop is busy: with two
statements for each run, a commit for many runs would wait as many times. So the appends of a batch share theirs.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.journal import Write
from holdfast.checkpoint.pieces import packed
from holdfast.checkpoint.stores.sqlite.statements import statement
from holdfast.checkpoint.stores.sqlite.transaction import Head, Transaction, row_behind

#: How many share a statement. Few sizes, so that SQLite knows the statements by heart.
_SIZES = (64, 16, 4)

#: Bindings of one append, as the statements count them.
_IN_UPDATE, _IN_INSERT = 10, 9


def append_many(appends: Sequence[tuple[Claim, Write]], transaction: Transaction) -> int:
    """Do the first so many of `appends`, all of them or none; gives their number.

    Left out are the last few that fill no statement, and all of them if one is not as simple as most are: its claim is
    lost, or where its journal ends is not known by heart. They have to be done one by one.
    """
    count = len(appends) - len(appends) % _SIZES[-1]
    rows = _rows(appends[:count], transaction)
    if not rows:
        return 0
    transaction.execute("SAVEPOINT appends")
    start = 0
    for size in _SIZES:
        while count - start >= size:
            if not _write(rows[start : start + size], transaction):
                transaction.execute("ROLLBACK TO appends")
                transaction.execute("RELEASE appends")
                return 0
            start += size
    transaction.execute("RELEASE appends")
    for _, _, token, head in rows:
        transaction.remember(token, head)
    return count


#: Bindings of the update and of the insert, the claim's token, and the end of the journal afterwards.
_Row = tuple[tuple[Any, ...], tuple[Any, ...], int, Head]


def _rows(appends: Sequence[tuple[Claim, Write]], transaction: Transaction) -> list[_Row]:
    """What is to be written; nothing, if one of them is not simple."""
    rows: list[_Row] = []
    for claim, write in appends:
        head = transaction.heads.get(claim.token)
        if head is None or write.replace or not write.entries:
            return []
        try:
            piece = packed(write.entries)
        except (TypeError, ValueError):
            return []  # which one is at fault, and how, is said when they are done one by one
        insert, after = row_behind(head, transaction.next_key(), piece)
        update = (
            *(len(write.entries), len(piece.body), transaction.now_micros, write.progress, write.finished_step),
            *(after.last_piece, claim.token, piece.seq, head.run_key, head.last_piece),
        )
        rows.append((update, insert, claim.token, after))
    return rows


def _write(rows: Sequence[_Row], transaction: Transaction) -> bool:
    """Whether every run took its append."""
    updates = [binding for update, *_ in rows for binding in update]
    if transaction.changes(_repeated("write_many", _IN_UPDATE, len(rows)), updates) < len(rows):
        return False
    transaction.changes(
        _repeated("insert_pieces", _IN_INSERT, len(rows)), [binding for _, insert, *_ in rows for binding in insert]
    )
    return True


@cache
def _repeated(name: str, width: int, count: int) -> str:
    """The statement with `count` rows of `width` bindings in place of its `{rows}`."""
    row = f"({', '.join('?' * width)})"
    return statement(name).replace("{rows}", ", ".join([row] * count))
