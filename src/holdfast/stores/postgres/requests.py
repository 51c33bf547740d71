"""Cuts pieces where a page of the server's table ends.

A row that has no room in what is left of a page goes to the next one, and what is left stays empty: an eighth of the
table with rows of a third of a page. So such a row is cut, and its rest is a row of its own.

Where pages end only the server knows. It is enough to count what is sent, and to cut as if a page ended every so many
bytes: sooner or later the server begins a page with such a rest, and then both agree, until somebody else writes on the
same page. Who counts wrongly wastes room, nothing else.

What a group commit is made of, and how a batch of it goes to the server.

What the server's refusals mean to a caller.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from holdfast.checkpoint.errors import (
    CheckpointError,
    ClaimLost,
    RunBusy,
    RunExists,
    RunNotClaimable,
    RunNotFound,
    StoreError,
)
from holdfast.checkpoint.journal import Append, Entry, pack_segment
from holdfast.stores.postgres import connection
from holdfast.stores.postgres.connection import escape_text, escape_texts, unescape_text

#: Of a page, without its own header.
_PAGE_BYTES = 8192 - 24
#: Longer rows go aside, and leave a pointer of so many bytes.
_MAX_ROW_BYTES, _TOAST_POINTER_BYTES = 8160, 18
#: Less than this is left empty: a row more costs about a hundred bytes, and work.
_MIN_SPLIT_BYTES = 256
#: Of a row, before its layout; and of a number; and of the length before a body.
_ROW_HEADER_BYTES, _CHECKSUM_BYTES, _BODY_LENGTH_BYTES = 24 + 8 + 8 + 1, 8, 4
#: A row's place in its page.
_LINE_POINTER_BYTES = 4


class PagePacker:
    """How full the page is that is written now."""

    def __init__(self) -> None:
        self._free_bytes = _PAGE_BYTES

    def split_at(self, layout: int, body: int) -> int:
        """How many bytes of a body fit on this page, if the rest should go to the next; else zero.

        Both are given as lengths. A layout becomes longer by one if this is not zero, and that of a rest is empty.
        """
        before_body = (_ROW_HEADER_BYTES + layout + 7 & -8) + _CHECKSUM_BYTES + _BODY_LENGTH_BYTES
        row = before_body + body + 7 & -8
        if row > _MAX_ROW_BYTES:
            row = before_body + _TOAST_POINTER_BYTES + 7 & -8
        left = self._free_bytes - row - _LINE_POINTER_BYTES
        if left >= 0:
            self._free_bytes = left
            return 0
        if self._free_bytes < _MIN_SPLIT_BYTES or row <= _MIN_SPLIT_BYTES:
            self._free_bytes = _PAGE_BYTES - row - _LINE_POINTER_BYTES
            return 0
        before_body = (_ROW_HEADER_BYTES + layout + 1 + 7 & -8) + _CHECKSUM_BYTES + _BODY_LENGTH_BYTES
        here = (self._free_bytes - _LINE_POINTER_BYTES & -8) - before_body
        rest = (_ROW_HEADER_BYTES + 7 & -8) + _CHECKSUM_BYTES + _BODY_LENGTH_BYTES + body - here
        self._free_bytes = _PAGE_BYTES - (rest + 7 & -8) - _LINE_POINTER_BYTES
        return here


#: What the server says of an operation beyond that it was done.
Response = dict[str, Any]


class WriteRequest:
    """One write, waiting for its commit."""

    __slots__ = ("entries", "first_seq", "future", "run_id", "size", "submitted_at", "token")

    #: Set when it is handed in: the time by the event loop's clock, and where its answer will be.
    submitted_at: float
    future: asyncio.Future[Response | None]
    #: `None` if it names no run beforehand.
    run_id: str | None
    token: int | None
    #: Those to be added, the number of the first, and how many bytes are in them.
    entries: Sequence[Entry]
    first_seq: int | None
    size: int


class AppendRequest(WriteRequest):
    """What `append` hands in."""

    __slots__ = ("overwrite_to", "overwritten_bytes", "progress", "rewrite", "step_finished")

    def __init__(self, run_id: str, token: int, write: Append, size: int) -> None:
        entries = write.entries
        self.run_id, self.token, self.entries, self.size = run_id, token, entries, size
        self.first_seq = entries[0].seq if entries else None
        self.progress, self.step_finished, self.rewrite = write.progress, write.step_finished, write.rewrite
        #: Where the journal ends now, if an earlier write of this claim got further than its caller was told.
        self.overwrite_to: int | None = None
        #: And by how many bytes.
        self.overwritten_bytes = 0


class Command(WriteRequest):
    """Any other operation: `create`, `settle`, `remove`, `claim`, `take`, `cancel` or `purge`. See `apply.sql`."""

    __slots__ = ("kind", "parameters", "prepended_append")

    def __init__(
        self,
        kind: str,
        run_id: str | None,
        parameters: dict[str, Any],
        *,
        token: int | None = None,
        entries: Sequence[Entry] = (),
        size: int = 0,
    ) -> None:
        """`about` goes as JSON to that function. Strings in it are escaped as text already."""
        self.run_id, self.token, self.entries, self.size = run_id, token, entries, size
        self.first_seq = entries[0].seq if entries else None
        self.kind, self.parameters = kind, parameters
        #: Goes before it in the same batch.
        self.prepended_append: AppendRequest | None = None

    def prepend_append(self, *, overwrite_to: int, overwritten_bytes: int, progress: bytes) -> None:
        """Let an append of its own add the entries, which has to rewind; `progress` unless this says another."""
        assert self.run_id is not None
        assert self.token is not None
        own = self.parameters["progress"]
        write = Append(entries=self.entries, progress=progress if own is None else own)
        self.prepended_append = AppendRequest(self.run_id, self.token, write, self.size)
        self.prepended_append.overwrite_to, self.prepended_append.overwritten_bytes = overwrite_to, overwritten_bytes
        # It stands only where the append ended, and so only if that was accepted.
        self.first_seq, self.entries, self.size = self.entries[-1].seq + 1, (), 0

    def encode(self) -> dict[str, Any]:
        run_id = None if self.run_id is None else escape_text(self.run_id)
        counts = {"first": self.first_seq, "count": len(self.entries), "size": self.size}
        return {"do": self.kind, "run_id": run_id, "token": self.token} | counts | self.parameters


WRITE_BATCH = (
    "select holdfast.write_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"
)

WRITE_BATCH_TYPES = (
    *(connection.UUID, connection.BIGINT, connection.BOOL),
    *(
        connection.TEXTS,
        connection.BIGINTS,
        connection.BIGINTS,
        connection.BIGINTS,
        connection.BIGINTS,
        connection.BYTEAS,
    ),
    *(connection.BOOLS, connection.BOOLS, connection.BIGINTS),
    connection.JSONB,
    *(connection.BIGINTS, connection.BIGINTS, connection.TEXTS, connection.BIGINTS, connection.BYTEAS),
)


def encode_arguments(
    appends: Sequence[AppendRequest], commands: Sequence[Command], packer: PagePacker
) -> list[bytes | None]:
    """Of `write_batch`, from the fourth on. The appends are its items from 1 on, the others follow."""
    rewinds = [append.overwrite_to for append in appends]
    return [
        connection.encode_texts(escape_texts([append.run_id or "" for append in appends])),
        connection.encode_bigints([append.token or 0 for append in appends]),
        connection.encode_nullable_bigints([append.first_seq for append in appends]),
        connection.encode_bigints([len(append.entries) for append in appends]),
        connection.encode_bigints([append.size - append.overwritten_bytes for append in appends]),
        connection.encode_byteas([append.progress for append in appends]),
        connection.encode_bools([append.step_finished for append in appends]),
        connection.encode_bools([append.rewrite for append in appends]),
        connection.encode_nullable_bigints(rewinds) if any(rewinds) else None,
        connection.encode_jsonb(msgspec.json.encode([other.encode() for other in commands])) if commands else None,
        *_encode_segments((*appends, *commands), packer),
    ]


def _encode_segments(requests: Sequence[WriteRequest], packer: PagePacker) -> list[bytes]:
    """The entries of all operations: the item, number, layout, checksum and body of each piece."""
    items: list[int] = []
    seqs: list[int] = []
    layouts: list[str] = []
    checksums: list[int] = []
    bodies: list[bytes] = []
    for item, operation in enumerate(requests, 1):
        if not operation.entries:
            continue
        # Not before: what is packed now is still at hand when it is put together for the wire.
        seq, layout, checksum, body = pack_segment(operation.entries)
        cut = packer.split_at(len(layout), len(body))
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
        connection.encode_bigints(items),
        connection.encode_bigints(seqs),
        connection.encode_texts(layouts),
        connection.encode_bigints(checksums),
        connection.encode_byteas(bodies),
    ]


#: Of a batch in which everything was done, and there is no more to say.
NO_RESPONSES = connection.encode_jsonb(b"{}")


def decode_responses(encoded: bytes) -> dict[int, Response]:
    """The answers that `write_batch` gave, by item."""
    return msgspec.json.decode(encoded[1:], type=dict[int, Response])


def raise_refusal(request: WriteRequest, response: Response) -> NoReturn:
    """Raise what the answer says. Nothing was written."""
    raise _map_refusal(request, request.run_id or "", response)


def _map_refusal(request: WriteRequest, run_id: str, response: Response) -> CheckpointError:
    match response["error"]:
        case "lost":
            return ClaimLost(run_id, request.token or 0, response["token"])
        case "order":
            return make_order_error(run_id, request.first_seq, response["due"])
        case "exists":
            return RunExists(run_id)
        case "missing":
            return RunNotFound(run_id)
        case "busy":
            return RunBusy(run_id, unescape_text(response["owner"]))
        case "status":
            return RunNotClaimable(run_id, response["status"], unescape_text(response["reason"]))
        case unknown:
            return StoreError(f"run {run_id}: the server refused for a reason this holdfast does not know: {unknown}")


def measure_entries(run_id: str, entries: Sequence[Entry], first_seq: int | None = None) -> int:
    """How many bytes are in the entries.

    Raises:
        StoreError: they do not count up by one, from `first` if that is given.
    """
    if not entries:
        return 0
    size, due = 0, entries[0].seq if first_seq is None else first_seq
    for entry in entries:
        if entry.seq != due:
            raise make_order_error(run_id, entry.seq, due)
        due += 1
        size += len(entry.body)
    return size


def make_order_error(run_id: str, seq: int | None, due: int) -> StoreError:
    return StoreError(f"run {run_id}: entry {seq} came where {due} is due; nothing was written")
