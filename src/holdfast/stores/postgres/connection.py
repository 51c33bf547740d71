"""Any Python string as PostgreSQL text and back.

PostgreSQL refuses two kinds of characters that a Python string may hold, NUL and lone surrogates. They are escaped with
a backslash, and so is the backslash itself; all other text is stored as it is.

What the driver's errors mean to a caller. None of them leaves this package.

Calls on a connection with as little as possible between them and the event loop.

The driver's cursors cost more than the server does. What is here uses the driver's own access to libpq (`psycopg.pq`),
sends and gets values in PostgreSQL's binary form, and does nothing else.
"""

import asyncio
import re
import struct
from collections.abc import Sequence
from typing import cast

import psycopg
from psycopg import errors, pq
from psycopg.pq.abc import PGresult

from holdfast.checkpoint.errors import StoreError, StoreFull, StorePermissionError, StoreUnavailable

_UNSTORABLE = re.compile("[\\\\\0\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|[0-9a-f]{4})")


def escape_text(value: str) -> str:
    return _UNSTORABLE.sub(_escape_match, value) if _UNSTORABLE.search(value) else value


def escape_texts(values: Sequence[str]) -> Sequence[str]:
    """Each of them. Nearly never is there anything to escape, so one look at all of them has to do."""
    return [escape_text(value) for value in values] if _UNSTORABLE.search("".join(values)) else values


def unescape_text(stored: str) -> str:
    return _ESCAPED.sub(_unescape_match, stored) if "\\" in stored else stored


def _escape_match(match: re.Match[str]) -> str:
    return "\\\\" if match[0] == "\\" else f"\\{ord(match[0]):04x}"


def _unescape_match(match: re.Match[str]) -> str:
    return "\\" if match[1] == "\\" else chr(int(match[1], 16))


#: The server gave up this transaction for the sake of others: nothing of it was done, and it may be tried again.
_RETRYABLE = ("40001", "40P01", "55P03")
#: There is no server to talk to right now, or it has no room for another connection, or it is one that only reads: in a
#: failover an address may lead to a standby for a moment, and the connection that was made then is of no use.
_UNAVAILABLE = ("08", "57P01", "57P02", "57P03", "57P05", "53300", "25006")
_DENIED = ("28", "42501")
_FULL = ("53100", "53400")
_TIMED_OUT = ("57014", "25P03", "25P04")
#: The schema is not what this code created.
_SCHEMA_MISSING = ("3F000", "42P01", "42883", "42703")

# libpq tells no code for why it could not connect. Where the server says it in another language, it is waited for.
_AUTH_FAILED = re.compile(r"authentication failed|no password supplied|no pg_hba\.conf entry|role .* does not exist")
_NO_DATABASE = re.compile(r"database .* does not exist")


def is_connection_lost(exc: psycopg.Error) -> bool:
    """Whether the connection is gone: what was under way on it may be done or not."""
    if exc.sqlstate is None:
        permanent = _AUTH_FAILED.search(str(exc)) or _NO_DATABASE.search(str(exc))
        return isinstance(exc, psycopg.OperationalError) and not permanent
    return exc.sqlstate.startswith(_UNAVAILABLE)


def is_transient(exc: psycopg.Error) -> bool:
    """Whether the same statement may well succeed in a moment."""
    return is_connection_lost(exc) or (exc.sqlstate is not None and exc.sqlstate.startswith(_RETRYABLE))


def is_read_only(exc: psycopg.Error) -> bool:
    """Whether the server takes no write at all."""
    return exc.sqlstate == "25006"


def is_statement_error(exc: psycopg.Error) -> bool:
    """Whether it is what was sent that the server refused, rather than the sender or the moment."""
    return exc.sqlstate is not None and exc.sqlstate.startswith(("22", "23", "54", "XX", "P0"))


def map_error(exc: psycopg.Error, label: str) -> StoreError:
    """The error of holdfast's tree for it. `where` names the database, without its password."""
    state, said = exc.sqlstate or "", str(exc).strip() or type(exc).__name__
    if state.startswith(_FULL):
        return StoreFull(f"{label} has no room left: free space and save again ({said})")
    if state.startswith(_DENIED) or _AUTH_FAILED.search(said):
        return StorePermissionError(f"{label} refused: check the user, its password and its rights ({said})")
    if state.startswith(_SCHEMA_MISSING):
        return StoreError(f"{label} lacks what the store created there; was its schema dropped or changed? ({said})")
    if state.startswith(_TIMED_OUT):
        return StoreUnavailable(f"{label} cut the call short by a timeout of its own ({said})")
    if is_transient(exc):
        return StoreUnavailable(f"{label} did not answer: the same call may succeed later ({said})")
    return StoreError(f"{label} failed: {said}")


def from_sqlstate(sqlstate: str | None, message: str) -> psycopg.Error:
    """The driver's error for one that the server reported, or libpq itself, which knows no codes."""
    if sqlstate is None:
        return psycopg.OperationalError(message)
    try:
        return errors.lookup(sqlstate)(message)
    except KeyError:
        return psycopg.DatabaseError(message)


BOOL, BYTEA, BIGINT, TEXT = 16, 17, 20, 25
FLOAT, UUID, JSONB = 701, 2950, 3802
#: The array type of each.
BOOLS, BYTEAS, BIGINTS, TEXTS = 1000, 1001, 1016, 1009

_LENGTH_STRUCT = struct.Struct(">i")
_ARRAY_HEADER = struct.Struct(">iiiii")
_NULL_ELEMENT = _LENGTH_STRUCT.pack(-1)
_BOOL_ELEMENTS = (b"\0\0\0\1\0", b"\0\0\0\1\1")


def encode_bigint(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def encode_float8(value: float) -> bytes:
    return struct.pack(">d", value)


def encode_bigints(values: Sequence[int]) -> bytes:
    count = len(values)
    interleaved = [8] * (2 * count)
    interleaved[1::2] = values
    return _encode_array_header(BIGINT, count) + struct.pack(f">{'iq' * count}", *interleaved)


def encode_nullable_bigints(values: Sequence[int | None]) -> bytes:
    """As `bigints`, where some may be missing."""
    if None not in values:
        return encode_bigints(cast("Sequence[int]", values))
    parts = [_NULL_ELEMENT if value is None else b"\0\0\0\x08" + encode_bigint(value) for value in values]
    return _encode_array_header(BIGINT, len(values)) + b"".join(parts)


def encode_bools(values: Sequence[bool]) -> bytes:
    return _encode_array_header(BOOL, len(values)) + b"".join([_BOOL_ELEMENTS[value] for value in values])


def encode_byteas(values: Sequence[bytes], element: int = BYTEA) -> bytes:
    parts = [b""] * (2 * len(values))
    parts[::2] = [_LENGTH_STRUCT.pack(len(value)) for value in values]
    parts[1::2] = values
    return _encode_array_header(element, len(values)) + b"".join(parts)


def encode_texts(values: Sequence[str]) -> bytes:
    return encode_byteas([value.encode() for value in values], TEXT)


def encode_jsonb(encoded: bytes) -> bytes:
    return b"\1" + encoded


def _encode_array_header(element: int, count: int) -> bytes:
    """Of an array of one dimension, which has none when it is empty; some of its elements may be null."""
    return _ARRAY_HEADER.pack(1, 1, element, count, 1) if count else _ARRAY_HEADER.pack(0, 0, element, 0, 0)[:12]


def decode_int(value: bytes | None) -> int:
    assert value is not None
    return int.from_bytes(value, "big", signed=True)


def decode_text(value: bytes | None) -> str:
    assert value is not None
    return value.decode()


class PgConnection:
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
        self._response: asyncio.Future[None] | None = None
        #: Why the link is of no use any more.
        self._closed_by: psycopg.Error | None = None
        self._loop.add_reader(self._socket, self._on_readable)

    @property
    def is_closed(self) -> bool:
        """Whether the server is known to have hung up."""
        return self._closed_by is not None

    @property
    def is_standby(self) -> bool:
        """Whether the server says that it repeats what another one does, and may be behind it."""
        return self._libpq.parameter_status(b"in_hot_standby") == b"on"

    async def call(
        self, statement: bytes, types: Sequence[int], values: Sequence[bytes | None], *, deadline: float
    ) -> PGresult:
        """What the statement gives, in binary form.

        Args:
            until: when to give up and hang up, by the event loop's clock.

        Raises:
            psycopg.Error: the server refused it, or the connection was lost and nobody knows what came of it.
        """
        if self._closed_by is not None:
            raise self._closed_by
        self._libpq.send_query_params(statement, values, types, [pq.Format.BINARY] * len(values), pq.Format.BINARY)
        self._results, self._response = [], self._loop.create_future()
        alarm = self._loop.call_at(deadline, self._abort, psycopg.OperationalError("there was no answer"))
        try:
            self._flush()
            await self._response
        finally:
            alarm.cancel()
            self._response = None
        results, self._results = self._results, []
        for result in results:
            if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                state = result.error_field(pq.DiagnosticField.SQLSTATE)
                raise from_sqlstate(None if state is None else state.decode(), result.get_error_message())
        return results[-1]

    async def close(self) -> None:
        self._abort(psycopg.OperationalError("the connection was closed"))
        await self._connection.close()

    def _flush(self) -> None:
        """Send what the socket takes now, and the rest when it takes more."""
        try:
            if self._libpq.flush():
                self._loop.add_writer(self._socket, self._flush)
            else:
                self._loop.remove_writer(self._socket)
        except psycopg.Error as exc:
            self._abort(exc)

    def _on_readable(self) -> None:
        try:
            self._libpq.consume_input()
            while self._libpq.notifies() is not None:
                pass  # meant for whoever listened on this session before a pooler gave it to us
            # Asked before each result: the last of them comes with the end of the transaction, and would be waited for.
            while self._response is not None and not self._libpq.is_busy():
                result = self._libpq.get_result()
                if result is None:
                    if not self._response.done():
                        self._response.set_result(None)
                    return
                self._results.append(result)
        except psycopg.Error as exc:
            self._abort(exc)

    def _abort(self, error: psycopg.Error) -> None:
        if self._closed_by is None:
            self._closed_by = error
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            if self._response is not None and not self._response.done():
                self._response.set_exception(error)
