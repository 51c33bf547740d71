"""What a group commit is made of, and how a batch of it goes to the server."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.checkpoint.journal import Entry, Write
from holdfast.checkpoint.pieces import packed
from holdfast.checkpoint.stores.postgres import wire
from holdfast.checkpoint.stores.postgres.pages import Pages
from holdfast.checkpoint.stores.postgres.text import to_text, to_texts

#: What the server says of an operation beyond that it was done.
Answer = dict[str, Any]


class Operation:
    """One write, waiting for its commit."""

    __slots__ = ("answer", "asked_at", "entries", "first", "run_id", "size", "token")

    #: Set when it is handed in: the time by the event loop's clock, and where its answer will be.
    asked_at: float
    answer: asyncio.Future[Answer | None]
    #: `None` if it names no run beforehand.
    run_id: str | None
    token: int | None
    #: Those to be added, the number of the first, and how many bytes are in them.
    entries: Sequence[Entry]
    first: int | None
    size: int


class Append(Operation):
    """What `append` hands in."""

    __slots__ = ("finished_step", "progress", "replace", "rewind", "rewound_size")

    def __init__(self, run_id: str, token: int, write: Write, size: int) -> None:
        entries = write.entries
        self.run_id, self.token, self.entries, self.size = run_id, token, entries, size
        self.first = entries[0].seq if entries else None
        self.progress, self.finished_step, self.replace = write.progress, write.finished_step, write.replace
        #: Where the journal ends now, if an earlier write of this claim got further than its caller was told.
        self.rewind: int | None = None
        #: And by how many bytes.
        self.rewound_size = 0


class Other(Operation):
    """Any other operation: `create`, `settle`, `remove`, `claim`, `take`, `cancel` or `purge`. See `apply.sql`."""

    __slots__ = ("about", "ahead", "do")

    def __init__(
        self,
        do: str,
        run_id: str | None,
        about: dict[str, Any],
        *,
        token: int | None = None,
        entries: Sequence[Entry] = (),
        size: int = 0,
    ) -> None:
        """`about` goes as JSON to that function. Strings in it are escaped as text already."""
        self.run_id, self.token, self.entries, self.size = run_id, token, entries, size
        self.first = entries[0].seq if entries else None
        self.do, self.about = do, about
        #: Goes before it in the same batch.
        self.ahead: Append | None = None

    def append_ahead(self, *, rewind: int, rewound_size: int, progress: bytes) -> None:
        """Let an append of its own add the entries, which has to rewind; `progress` unless this says another."""
        assert self.run_id is not None
        assert self.token is not None
        own = self.about["progress"]
        write = Write(entries=self.entries, progress=progress if own is None else own)
        self.ahead = Append(self.run_id, self.token, write, self.size)
        self.ahead.rewind, self.ahead.rewound_size = rewind, rewound_size
        # It stands only where the append ended, and so only if that was accepted.
        self.first, self.entries, self.size = self.entries[-1].seq + 1, (), 0

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
    rewinds = [append.rewind for append in appends]
    return [
        wire.texts(to_texts([append.run_id or "" for append in appends])),
        wire.bigints([append.token or 0 for append in appends]),
        wire.bigints_or_null([append.first for append in appends]),
        wire.bigints([len(append.entries) for append in appends]),
        wire.bigints([append.size - append.rewound_size for append in appends]),
        wire.byteas([append.progress for append in appends]),
        wire.bools([append.finished_step for append in appends]),
        wire.bools([append.replace for append in appends]),
        wire.bigints_or_null(rewinds) if any(rewinds) else None,
        wire.jsonb(msgspec.json.encode([other.encoded() for other in others])) if others else None,
        *_pieces((*appends, *others), pages),
    ]


def _pieces(operations: Sequence[Operation], pages: Pages) -> list[bytes]:
    """The entries of all operations: the item, number, layout, checksum and body of each piece."""
    items: list[int] = []
    seqs: list[int] = []
    layouts: list[str] = []
    checksums: list[int] = []
    bodies: list[bytes] = []
    for item, operation in enumerate(operations, 1):
        if not operation.entries:
            continue
        # Not before: what is packed now is still at hand when it is put together for the wire.
        seq, layout, checksum, body = packed(operation.entries)
        cut = pages.cut(len(layout), len(body))
        if cut:
            items.append(item)
            seqs.append(seq)
            layouts.append("+" + layout)
            checksums.append(checksum)
            bodies.append(body[:cut])
            layout, checksum, body = "", 0, body[cut:]
        items.append(item)
        seqs.append(seq)
        layouts.append(layout)
        checksums.append(checksum)
        bodies.append(body)
    return [
        wire.bigints(items), wire.bigints(seqs), wire.texts(layouts), wire.bigints(checksums), wire.byteas(bodies)
    ]  # fmt: skip


#: Of a batch in which everything was done, and there is no more to say.
NOTHING = wire.jsonb(b"{}")


def decoded(answers: bytes) -> dict[int, Answer]:
    """The answers that `write_batch` gave, by item."""
    return msgspec.json.decode(answers[1:], type=dict[int, Answer])
