"""Calls on a connection with as little as possible between them and the event loop.

The driver's cursors cost more than the server does. What is here uses the driver's own access to libpq (`psycopg.pq`),
sends and gets values in PostgreSQL's binary form, and does nothing else.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import cast

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult

from holdfast.checkpoint.stores.postgres.trouble import reported

BOOL, BYTEA, BIGINT, TEXT = 16, 17, 20, 25
FLOAT, UUID, JSONB = 701, 2950, 3802
#: The array type of each.
BOOLS, BYTEAS, BIGINTS, TEXTS = 1000, 1001, 1016, 1009

_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">iiiii")
_NULL = _LENGTH.pack(-1)
_BOOLS = (b"\0\0\0\1\0", b"\0\0\0\1\1")


def bigint(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def float8(value: float) -> bytes:
    return struct.pack(">d", value)


def bigints(values: Sequence[int]) -> bytes:
    count = len(values)
    interleaved = [8] * (2 * count)
    interleaved[1::2] = values
    return _header(BIGINT, count) + struct.pack(f">{'iq' * count}", *interleaved)


def bigints_or_null(values: Sequence[int | None]) -> bytes:
    """As `bigints`, where some may be missing."""
    if None not in values:
        return bigints(cast("Sequence[int]", values))
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


def as_int(value: bytes | None) -> int:
    assert value is not None
    return int.from_bytes(value, "big", signed=True)


def as_text(value: bytes | None) -> str:
    assert value is not None
    return value.decode()


class Link:
    """A connection that makes one call at a time. Every call is a transaction of its own, and nothing is prepared.

    When a call raises anything but what the server reported, or is given up, the link is of no use any more: close it.
    """

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        """Takes over the connection; it has to be in autocommit mode."""
        self._connection, self._libpq = connection, connection.pgconn
        self._loop = asyncio.get_running_loop()
        self._socket = self._libpq.socket
        #: Of the call under way.
        self._results: list[PGresult] = []
        self._answer: asyncio.Future[None] | None = None
        #: Why the link is of no use any more.
        self._lost: psycopg.Error | None = None
        self._loop.add_reader(self._socket, self._readable)

    @property
    def is_lost(self) -> bool:
        """Whether the server is known to have hung up."""
        return self._lost is not None

    @property
    def is_to_standby(self) -> bool:
        """Whether the server says that it repeats what another one does, and may be behind it."""
        return self._libpq.parameter_status(b"in_hot_standby") == b"on"

    async def call(
        self, statement: bytes, types: Sequence[int], values: Sequence[bytes | None], *, until: float
    ) -> PGresult:
        """What the statement gives, in binary form.

        Args:
            until: when to give up and hang up, by the event loop's clock.

        Raises:
            psycopg.Error: the server refused it, or the connection was lost and nobody knows what came of it.
        """
        if self._lost is not None:
            raise self._lost
        self._libpq.send_query_params(statement, values, types, [pq.Format.BINARY] * len(values), pq.Format.BINARY)
        self._results, self._answer = [], self._loop.create_future()
        alarm = self._loop.call_at(until, self._hang_up, psycopg.OperationalError("there was no answer"))
        try:
            self._flush()
            await self._answer
        finally:
            alarm.cancel()
            self._answer = None
        results, self._results = self._results, []
        for result in results:
            if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                state = result.error_field(pq.DiagnosticField.SQLSTATE)
                raise reported(None if state is None else state.decode(), result.get_error_message())
        return results[-1]

    async def close(self) -> None:
        self._hang_up(psycopg.OperationalError("the connection was closed"))
        await self._connection.close()

    def _flush(self) -> None:
        """Send what the socket takes now, and the rest when it takes more."""
        try:
            if self._libpq.flush():
                self._loop.add_writer(self._socket, self._flush)
            else:
                self._loop.remove_writer(self._socket)
        except psycopg.Error as exc:
            self._hang_up(exc)

    def _readable(self) -> None:
        try:
            self._libpq.consume_input()
            while self._libpq.notifies() is not None:
                pass  # meant for whoever listened on this session before a pooler gave it to us
            # Asked before each result: the last of them comes with the end of the transaction, and would be waited for.
            while self._answer is not None and not self._libpq.is_busy():
                result = self._libpq.get_result()
                if result is None:
                    if not self._answer.done():
                        self._answer.set_result(None)
                    return
                self._results.append(result)
        except psycopg.Error as exc:
            self._hang_up(exc)

    def _hang_up(self, why: psycopg.Error) -> None:
        if self._lost is None:
            self._lost = why
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(why)
