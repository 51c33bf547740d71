"""What a group commit is made of, and how a batch of it goes to the server."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.stores.postgres import wire
from holdfast.checkpoint.stores.postgres.text import to_text

#: What the server says of an operation beyond that it was done.
Answer = dict[str, Any]


@dataclass(slots=True, eq=False, kw_only=True)
class Operation:
    """One write, waiting for its commit."""

    #: `None`: it names no run beforehand.
    run_id: str | None
    token: int | None = None
    entries: Sequence[Entry] = ()
    size: int = field(init=False)
    #: When it was handed in, by the event loop's clock.
    asked_at: float = 0.0
    answer: asyncio.Future[Answer | None] = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum([len(entry.body) for entry in self.entries])

    @property
    def first(self) -> int | None:
        """The number of its first entry."""
        return self.entries[0].seq if self.entries else None


@dataclass(slots=True, eq=False, kw_only=True)
class Append(Operation):
    progress: bytes
    finished_step: bool
    replace: bool
    #: Where the journal ends now, if an earlier write of this claim got further than its caller was told.
    rewind: int | None = None
    #: And by how many bytes.
    rewound_size: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Other(Operation):
    #: `create`, `settle`, `remove`, `claim`, `take`, `cancel` or `purge`: see `apply.sql`.
    do: str
    #: As JSON to that function. Strings in it are escaped as text already.
    about: dict[str, Any]

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


def arguments(appends: Sequence[Append], others: Sequence[Other]) -> list[bytes | None]:
    """Of `write_batch`, from the fourth on. The appends are its items from 1 on, the others follow."""
    items: list[int] = []
    entries: list[Entry] = []
    for item, operation in enumerate((*appends, *others), 1):
        entries.extend(operation.entries)
        items.extend([item] * len(operation.entries))
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
        wire.bigints([entry.seq for entry in entries]),
        wire.texts([entry.kind.value for entry in entries]),
        wire.bigints([entry.checksum() for entry in entries]),
        wire.byteas([entry.body for entry in entries]),
    ]


def decoded(answers: bytes) -> dict[int, Answer]:
    """The answers that `write_batch` gave, by item."""
    return msgspec.json.decode(answers[1:], type=dict[int, Answer])
