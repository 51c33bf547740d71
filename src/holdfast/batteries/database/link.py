"""A connection to a PostgreSQL server that does not have to be waited for."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from holdfast.batteries.database.tables import check_text


class Link:
    """Used by one thread. Another may cut it: then the statement under way fails at once, as if the server had gone."""

    def __init__(self, conninfo: str) -> None:
        """Raises `psycopg.Error` if there is none to be had."""
        # A pooler may give each transaction another server connection: nothing may be prepared on one of them.
        self._connection: psycopg.Connection[Any] = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
        try:
            #: Of our own, so that it is still the same one when the driver has closed its own in the meantime.
            self._socket = socket.socket(fileno=os.dup(self._connection.fileno()))
        except OSError as exc:
            self._connection.close()
            raise psycopg.OperationalError(f"a connection was made, but it cannot be used: {exc}") from exc
        self._guard = threading.Lock()
        self._asked_at: float | None = None

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """Run a statement, with `?` where a parameter goes, and return its rows, if it has any."""
        check_text(parameters)
        self._asked_at = time.monotonic()
        try:
            cursor = self._connection.execute(sql.replace("?", "%s").encode(), parameters or None)
            return cursor.fetchall() if cursor.description is not None else ()
        finally:
            self._asked_at = None

    @property
    def is_lost(self) -> bool:
        return self._connection.closed

    @property
    def silent_for(self) -> float:
        """For how many seconds the server has owed an answer."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def cut(self) -> None:
        """From any thread."""
        with self._guard, contextlib.suppress(OSError):  # the other side may have been quicker
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._guard:
            self._socket.close()
        self._connection.close()
