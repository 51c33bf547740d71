"""Many appends in one statement.

It is a transaction by itself, too: while SQLite does all of the work, the event loop has the interpreter to itself.
"""

from collections.abc import Sequence
from typing import Any

import apsw

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.journal import Write
from holdfast.checkpoint.pieces import packed
from holdfast.checkpoint.stores.sqlite.together import done_together
from holdfast.checkpoint.stores.sqlite.transaction import Head, Known, leap

#: Bindings of one append, without the time, which they share.
_WIDTH = 13


def append_together(appends: Sequence[tuple[Claim, Write]], cursor: apsw.Cursor, known: Known, now_micros: int) -> bool:
    """Do all of `appends`, at most `MOST`. False: nothing was written, and they have to be done one by one.

    That is so if one of them is not as simple as most are: its claim is lost, the journal starts anew, or where it ends
    is not known by heart. Outside of a transaction this is one by itself.
    """
    bindings: list[Any] = [now_micros]
    heads = _bind(appends, known, bindings)
    if heads is None:
        return False
    if not done_together(cursor, "append_together", _WIDTH, len(appends), bindings):
        # A run did not take its append, or another process has used the keys. Whose fault it is shows one by one.
        known.last_key = None
        return False
    known.remember({claim.token: head for (claim, _), head in zip(appends, heads, strict=True)})
    known.last_key = heads[-1].last_piece
    return True


def _bind(appends: Sequence[tuple[Claim, Write]], known: Known, bindings: list[Any]) -> list[Head] | None:
    """Add what is to be written to the bindings. Gives the ends of the journals then; `None`: one is not simple."""
    if known.last_key is None:
        return None
    key, ends, after = known.last_key, known.heads, list[Head]()
    for claim, write in appends:
        head = ends.get(claim.token)
        entries = write.entries
        if head is None or write.replace or not entries:
            return None
        try:
            piece = packed(entries)
        except (TypeError, ValueError):
            return None
        key += 1
        run_key, before, recent = head
        far, passed, recent = leap(recent)
        bindings += (len(entries), write.progress, write.finished_step, claim.token, key, run_key, before, far, passed)
        bindings += piece
        # What `Head(...)` does, without a Python function in between.
        after.append(tuple.__new__(Head, (run_key, key, (*recent, key))))
    return after
