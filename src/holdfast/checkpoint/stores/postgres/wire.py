"""One call on a connection with as little as possible between it and the event loop.

The driver's cursors cost as much as the server does when a batch is small. What is here uses the driver's own access to
libpq (`psycopg.pq`), sends arguments in PostgreSQL's binary form, and does nothing else.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence

import psycopg
from psycopg import pq

from holdfast.checkpoint.stores.postgres.trouble import reported

BOOL, BYTEA, BIGINT, TEXT = 16, 17, 20, 25
UUID, JSONB = 2950, 3802
#: The array type of each.
BOOLS, BYTEAS, BIGINTS, TEXTS = 1000, 1001, 1016, 1009

_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">iiiii")
_NULL = _LENGTH.pack(-1)
_BOOLS = (b"\0\0\0\1\0", b"\0\0\0\1\1")


def bigint(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def bigints(values: Sequence[int]) -> bytes:
    count = len(values)
    interleaved = [8] * (2 * count)
    interleaved[1::2] = values
    return _header(BIGINT, count) + struct.pack(f">{'iq' * count}", *interleaved)


def bigints_or_null(values: Sequence[int | None]) -> bytes:
    """As `bigints`, where some may be missing."""
    parts = [_NULL if value is None else b"\0\0\0\x08" + bigint(value) for value in values]
    return _header(BIGINT, len(values)) + b"".join(parts)


def bools(values: Sequence[bool]) -> bytes:
    return _header(BOOL, len(values)) + b"".join([_BOOLS[value] for value in values])


def byteas(values: Sequence[bytes], element: int = BYTEA) -> bytes:
    parts = [b""] * (2 * len(values))
    parts[::2] = [_LENGTH.pack(len(value)) for value in values]
    parts[1::2] = values
    return _header(element, len(values)) + b"".join(parts)


def texts(values: Sequence[str]) -> bytes:
    return byteas([value.encode() for value in values], TEXT)


def jsonb(encoded: bytes) -> bytes:
    return b"\1" + encoded


def _header(element: int, count: int) -> bytes:
    """Of an array of one dimension, which has none when it is empty; some of its elements may be null."""
    return _HEADER.pack(1, 1, element, count, 1) if count else _HEADER.pack(0, 0, element, 0, 0)[:12]


async def call(
    connection: psycopg.AsyncConnection, statement: bytes, types: Sequence[int], values: Sequence[bytes | None]
) -> bytes | None:
    """The only column of the only row that `statement` gives, in binary form. A transaction of its own.

    Raises:
        psycopg.Error: the server refused it, or the connection was lost and nobody knows.
    """
    libpq = connection.pgconn
    libpq.send_query_params(statement, values, types, [pq.Format.BINARY] * len(values), pq.Format.BINARY)
    loop, socket = asyncio.get_running_loop(), libpq.socket
    while libpq.flush():
        # The server may have to be heard before it takes more.
        await _ready(loop, socket, writing=True)
        libpq.consume_input()
    while libpq.is_busy():
        await _ready(loop, socket)
        libpq.consume_input()
    result: bytes | None = None
    failure: psycopg.Error | None = None
    while (answer := libpq.get_result()) is not None:
        if answer.status == pq.ExecStatus.TUPLES_OK:
            result = answer.get_value(0, 0)
        else:
            state = answer.error_field(pq.DiagnosticField.SQLSTATE)
            failure = reported(None if state is None else state.decode(), answer.get_error_message())
    if failure is not None:
        raise failure
    return result


async def _ready(loop: asyncio.AbstractEventLoop, socket: int, *, writing: bool = False) -> None:
    """Wait until the socket can be read, or written if that is wanted too."""
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    undo: list[Callable[[int], bool]] = [loop.remove_reader]
    loop.add_reader(socket, wake)
    if writing:
        loop.add_writer(socket, wake)
        undo.append(loop.remove_writer)
    try:
        await ready
    finally:
        for remove in undo:
            remove(socket)
