"""What a group commit is made of, and how a batch of it goes to the server."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.journal import Entry, Write
from holdfast.checkpoint.pieces import Piece, packed
from holdfast.checkpoint.stores.postgres import wire
from holdfast.checkpoint.stores.postgres.pages import Pages
from holdfast.checkpoint.stores.postgres.text import to_text

#: What the server says of an operation beyond that it was done.
Answer = dict[str, Any]


class Operation:
    """One write, waiting for its commit."""

    __slots__ = ("answer", "asked_at", "entries", "first", "piece", "run_id", "size", "token")

    #: Set when it is handed in: the time by the event loop's clock, and where its answer will be.
    asked_at: float
    answer: asyncio.Future[Answer | None]

    def __init__(self, run_id: str | None, token: int | None = None, entries: Sequence[Entry] = ()) -> None:
        """`run_id` is `None` if it names no run beforehand."""
        self.run_id, self.token, self.entries = run_id, token, entries
        self.piece = packed(entries) if entries else None
        #: The number of its first entry.
        self.first = None if self.piece is None else self.piece.seq
        self.size = 0 if self.piece is None else len(self.piece.body)


class Append(Operation):
    """What `append` hands in."""

    __slots__ = ("finished_step", "progress", "replace", "rewind", "rewound_size")

    def __init__(self, claim: Claim, write: Write) -> None:
        super().__init__(claim.run_id, claim.token, write.entries)
        self.progress, self.finished_step, self.replace = write.progress, write.finished_step, write.replace
        #: Where the journal ends now, if an earlier write of this claim got further than its caller was told.
        self.rewind: int | None = None
        #: And by how many bytes.
        self.rewound_size = 0


class Other(Operation):
    """Any other operation: `create`, `settle`, `remove`, `claim`, `take`, `cancel` or `purge`. See `apply.sql`."""

    __slots__ = ("about", "do")

    def __init__(
        self,
        do: str,
        run_id: str | None,
        about: dict[str, Any],
        *,
        token: int | None = None,
        entries: Sequence[Entry] = (),
    ) -> None:
        """`about` goes as JSON to that function. Strings in it are escaped as text already."""
        super().__init__(run_id, token, entries)
        self.do, self.about = do, about

    def encoded(self) -> dict[str, Any]:
        run_id = None if self.run_id is None else to_text(self.run_id)
        counts = {"first": self.first, "count": len(self.entries), "size": self.size}
        return {"do": self.do, "run_id": run_id, "token": self.token} | counts | self.about


STATEMENT = (
    "select holdfast.write_batch("
    "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"
)  # fmt: skip

TYPES = (
    *(wire.UUID, wire.BIGINT, wire.BOOL),
    *(wire.TEXTS, wire.BIGINTS, wire.BIGINTS, wire.BIGINTS, wire.BIGINTS, wire.BYTEAS),
    *(wire.BOOLS, wire.BOOLS, wire.BIGINTS),
    wire.JSONB,
    *(wire.BIGINTS, wire.BIGINTS, wire.TEXTS, wire.BIGINTS, wire.BYTEAS),
)


def arguments(appends: Sequence[Append], others: Sequence[Other], pages: Pages) -> list[bytes | None]:
    """Of `write_batch`, from the fourth on. The appends are its items from 1 on, the others follow."""
    items: list[int] = []
    pieces: list[Piece] = []
    for item, operation in enumerate((*appends, *others), 1):
        piece = operation.piece
        if piece is None:
            continue
        cut = pages.cut(len(piece.layout), len(piece.body))
        if cut:
            items.append(item)
            pieces.append(piece._replace(layout="+" + piece.layout, body=piece.body[:cut]))
            piece = Piece(piece.seq, "", 0, piece.body[cut:])
        items.append(item)
        pieces.append(piece)
    rewinds = [append.rewind for append in appends]
    return [
        wire.texts([to_text(append.run_id or "") for append in appends]),
        wire.bigints([append.token or 0 for append in appends]),
        wire.bigints_or_null([append.first for append in appends]),
        wire.bigints([len(append.entries) for append in appends]),
        wire.bigints([append.size - append.rewound_size for append in appends]),
        wire.byteas([append.progress for append in appends]),
        wire.bools([append.finished_step for append in appends]),
        wire.bools([append.replace for append in appends]),
        wire.bigints_or_null(rewinds) if any(rewinds) else None,
        wire.jsonb(msgspec.json.encode([other.encoded() for other in others])) if others else None,
        wire.bigints(items),
        wire.bigints([piece.seq for piece in pieces]),
        wire.texts([piece.layout for piece in pieces]),
        wire.bigints([piece.checksum for piece in pieces]),
        wire.byteas([piece.body for piece in pieces]),
    ]


#: Of a batch in which everything was done, and there is no more to say.
NOTHING = wire.jsonb(b"{}")


def decoded(answers: bytes) -> dict[int, Answer]:
    """The answers that `write_batch` gave, by item."""
    return msgspec.json.decode(answers[1:], type=dict[int, Answer])
