"""One PostgreSQL connection whose statements end at a deadline, and what the server's errors mean.

The driver's cursors are not used: with them W1 makes 38% fewer steps and W2 13% fewer, and a cancelled statement waits
for a server that may never answer. The driver still connects, encodes parameters and decodes rows.
"""

import asyncio
import enum
import logging
import re
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import capabilities, errors, pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq.abc import PGresult

Rows = list[tuple[Any, ...]]

#: What a statement has at least, in milliseconds. Zero would mean without limit.
_MIN_STATEMENT_MS = 500
#: How long the server has to accept the cancellation of a statement. Later the statement's own timeout ends it.
_CANCEL_TIMEOUT_S = 2.0

_log = logging.getLogger(__name__)
#: The event loop keeps only weak references to tasks.
_CANCELLATIONS: set[asyncio.Task[None]] = set()


class EncodedParams(list[bytes | None]):
    """Parameters in PostgreSQL's binary format. The statement casts each of them to its type."""


# libpq reports no SQLSTATE for a failed connect. A server that says it in another language counts as unreachable.
_AUTH_FAILED = re.compile(r"authentication failed|no password supplied|no pg_hba\.conf entry|role .* does not exist")
_NO_DATABASE = re.compile(r"database .* does not exist")
# These come from the operating system of this host.
_NO_SERVER = re.compile(
    r"connection refused|no such file or directory|could not translate host name|failed to resolve host"
    r"|no route to host|network is unreachable",
    re.IGNORECASE,
)


class DeadlinePassed(psycopg.OperationalError):
    """The server did not answer in time."""

    def __init__(self) -> None:
        super().__init__("there was no answer")


class ErrorKind(enum.Enum):
    """What an error means to the caller. Each value lists prefixes of SQLSTATE; the first kind that matches counts."""

    #: No server, no free connection, or a read-only server: during a failover an address may lead to a standby.
    CONNECTION_LOST = ("08", "57P01", "57P02", "57P03", "57P05", "53300", "25006")
    #: The server rolled this transaction back in favour of others.
    CONFLICT = ("40001", "40P01", "55P03")
    #: The server ended a session that was idle, or a transaction that took too long.
    SESSION_TIMEOUT = ("25P03", "25P04")
    STATEMENT_TIMEOUT = ("57014",)
    DENIED = ("28", "42501")
    FULL = ("53100", "53400")
    NO_RESOURCES = ("53",)
    #: The schema is not the one this code created.
    SCHEMA_MISSING = ("3F000", "42P01", "42883", "42703")
    #: The server refused the data, and would refuse it again.
    BAD_STATEMENT = ("22", "23", "54", "XX", "P0")
    OTHER = ()


def classify(exc: psycopg.Error) -> ErrorKind:
    """Return what the error means."""
    if exc.sqlstate is None:
        if _AUTH_FAILED.search(str(exc)):
            return ErrorKind.DENIED
        if not isinstance(exc, psycopg.OperationalError) or _NO_DATABASE.search(str(exc)):
            return ErrorKind.OTHER
        return ErrorKind.CONNECTION_LOST
    return next(kind for kind in ErrorKind if kind is ErrorKind.OTHER or exc.sqlstate.startswith(kind.value))


def is_connection_lost(exc: psycopg.Error) -> bool:
    """Return whether the connection is unusable. The server may have committed the statement or not."""
    return classify(exc) is ErrorKind.CONNECTION_LOST


def is_transient(exc: psycopg.Error) -> bool:
    """Return whether the same statement may succeed in a moment."""
    return classify(exc) in (ErrorKind.CONNECTION_LOST, ErrorKind.CONFLICT)


def is_read_only(exc: psycopg.Error) -> bool:
    """Return whether the server accepts no write at all."""
    return exc.sqlstate == "25006"


def is_unreachable(exc: psycopg.Error) -> bool:
    """Return whether no server listens at the address, or at any of several addresses."""
    # The driver lists the failure at each of several hosts. A standby among them may soon be the primary.
    _, *failures = str(exc).split("\n- host: ")
    return exc.sqlstate is None and all(_NO_SERVER.search(failure) for failure in failures or [str(exc)])


class PgConnection:
    """Runs one statement at a time. Nothing is prepared by name and no session state is set, so poolers work.

    A lost connection, a passed deadline and a cancelled caller close it: look at `is_closed` before the next statement.
    """

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        """Take over a connection in autocommit mode."""
        self._connection, self._libpq = connection, connection.pgconn
        # Keeps the encoders it found: a new one for each statement costs 0.1 ms, a tenth of a step of W1.
        self._transformer = Transformer(connection)
        self._loop = asyncio.get_running_loop()
        self._socket = self._libpq.socket
        self._results: list[PGresult] = []
        self._response: asyncio.Future[None] | None = None
        self._closed_by: psycopg.Error | None = None
        self._loop.add_reader(self._socket, self._on_readable)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, the server hung up, or its event loop has ended."""
        return self._closed_by is not None or self._loop.is_closed()

    @property
    def is_standby(self) -> bool:
        """Whether the server is a standby, which may lag behind its primary."""
        return self._libpq.parameter_status(b"in_hot_standby") == b"on"

    def get_parameter(self, name: str) -> str:
        """Return a setting that the server reported when the session began."""
        return self._connection.info.parameter_status(name) or ""

    async def execute(
        self, statement: str, params: Sequence[Any] = (), *, deadline: float, ends_with_caller: bool = False
    ) -> Rows:
        """Run a statement with `$1`, `$2` and so on, and return its rows. Without parameters it may be several.

        Args:
            deadline: when to close the connection, by the event loop's clock.
            ends_with_caller: a cancelled caller also ends the statement on the server. For reads only.

        Raises:
            psycopg.Error: the server refused it; or the connection was lost, and the outcome is unknown.
        """
        if self._closed_by is not None:
            raise self._closed_by
        self._send(statement.encode(), params)
        self._results, self._response = [], self._loop.create_future()
        alarm = self._loop.call_at(deadline, self._abort, DeadlinePassed())
        try:
            self._flush()
            await self._response
        except asyncio.CancelledError:
            if ends_with_caller and capabilities.has_cancel_safe():
                self._cancel_in_background()
            else:
                self.close()
            raise
        finally:
            alarm.cancel()
            self._response = None
        results, self._results = self._results, []
        for result in results:
            if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                raise self._make_error(result)
        return self._load_rows(results[-1])

    def close(self) -> None:
        """Hang up. A statement in progress raises `psycopg.OperationalError`."""
        self._abort(psycopg.OperationalError("the connection was closed"))

    def _cancel_in_background(self) -> None:
        """Ask the server to end the statement, then hang up. Counts as closed from now on."""
        self._detach(psycopg.OperationalError("the caller has given up"))
        task = self._loop.create_task(self._cancel_statement())
        _CANCELLATIONS.add(task)
        task.add_done_callback(_CANCELLATIONS.discard)

    async def _cancel_statement(self) -> None:
        try:
            await self._connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
        except psycopg.Error as exc:
            _log.debug("a statement could not be cancelled, its timeout ends it: %s", exc)
        finally:
            self._libpq.finish()

    def _send(self, statement: bytes, params: Sequence[Any]) -> None:
        if isinstance(params, EncodedParams):
            formats = [pq.Format.BINARY] * len(params)
            self._libpq.send_query_params(statement, params, None, formats, pq.Format.BINARY)
        elif params:
            encode = self._transformer
            values = encode.dump_sequence(params, [PyFormat.BINARY] * len(params))
            self._libpq.send_query_params(statement, values, encode.types, encode.formats, pq.Format.BINARY)
        else:
            self._libpq.send_query(statement)

    def _load_rows(self, result: PGresult) -> Rows:
        if not result.ntuples:
            return []
        self._transformer.set_pgresult(result)
        rows = self._transformer.load_rows(0, result.ntuples, tuple)
        self._transformer.set_pgresult(None)
        return rows

    def _make_error(self, result: PGresult) -> psycopg.Error:
        state, message = result.error_field(pq.DiagnosticField.SQLSTATE), result.get_error_message()
        if state is None:
            error: psycopg.Error = psycopg.OperationalError(message)
        else:
            try:
                error = errors.lookup(state.decode())(message)
            except KeyError:
                error = psycopg.DatabaseError(message)
        if is_connection_lost(error):
            self._abort(error)
        return error

    def _flush(self) -> None:
        """Send as much as the socket accepts now, and the rest when it accepts more."""
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
                pass  # for an earlier client that listened on this session before a pooler handed it to us
            # Check before each result: `get_result` would block until the last one, which comes with the commit.
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
            self._detach(error)
            self._libpq.finish()

    def _detach(self, error: psycopg.Error) -> None:
        """Stop to use the connection. It stays open."""
        self._closed_by = error
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            if self._response is not None and not self._response.done():
                self._response.set_exception(error)


def format_read_timeout(deadline: float, loop: asyncio.AbstractEventLoop) -> str:
    """Return the statement that makes the server end each statement of the transaction before the deadline.

    A little before it, so that the server answers. Not a setting of the session, which a pooler shares.
    """
    left_ms = max(_MIN_STATEMENT_MS, int(900 * (deadline - loop.time())))
    return f"set local statement_timeout = {left_ms}"
