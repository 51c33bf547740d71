"""Notifications that another process changed a run."""

import asyncio
import contextlib
import logging
from datetime import timedelta

import psycopg

from holdfast.checkpoint.errors import StoreError
from holdfast.ids import make_id
from holdfast.stores.postgres.database import Database, ReaderPool

log = logging.getLogger("holdfast.stores.postgres")

_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.05, 5.0


class ChangeNotifier:
    """Listens for changes on a connection of its own. While that does not work, every wait is short: it polls.

    A transaction pooler accepts LISTEN, but no notification comes through. So a connection counts as listening only
    after it has received a notification that another connection sent.
    """

    def __init__(self, database: Database, readers: ReaderPool, *, poll_interval: timedelta) -> None:
        """`database` is where to listen: the server itself, when `readers` talk to a pooler."""
        self._database, self._readers = database, readers
        self._channel = database.sql.schema
        self._poll_interval_s = poll_interval.total_seconds()
        self._probe = make_id(16)
        self._listening = asyncio.Event()
        self._next_change = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_listening(self) -> bool:
        """Whether notifications come through."""
        return self._listening.is_set()

    async def start(self, timeout: timedelta) -> None:
        """Begin to listen. Return when the first notification came through, or after `timeout`: it may come later."""
        self._task = asyncio.create_task(self._listen_forever(), name="holdfast-postgres-notify")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout.total_seconds()):
                await self._listening.wait()

    async def close(self) -> None:
        """Stop listening, and wake all waiters."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.notify_all()

    def notify_all(self) -> None:
        """Wake all waiters."""
        self._next_change.set()
        self._next_change = asyncio.Event()

    async def wait_for_change(self, timeout: timedelta) -> bool:
        """Return whether there was a change, or may have been one that could not be noticed."""
        polling = not self._listening.is_set() and self._poll_interval_s < timeout.total_seconds()
        try:
            async with asyncio.timeout(self._poll_interval_s if polling else timeout.total_seconds()):
                await self._next_change.wait()
        except TimeoutError:
            return polling
        return True

    async def _listen_forever(self) -> None:
        pause = _MIN_BACKOFF_S
        while True:
            try:
                async with await self._database.connect_driver() as connection:
                    await self._listen(connection)
            except psycopg.Error as exc:
                log.info("%s: the connection that listens is lost: %s", self._database.label, exc)
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    return  # psycopg raises an error of the connection instead of a cancel during a query
            if self._listening.is_set():
                pause = _MIN_BACKOFF_S
            self._listening.clear()
            self.notify_all()  # a notification may have been missed
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_BACKOFF_S)

    async def _listen(self, connection: psycopg.AsyncConnection) -> None:
        await connection.execute(f'listen "{self._channel}"'.encode())
        probing = asyncio.create_task(self._send_probe())
        try:
            async for notification in connection.notifies():
                if notification.payload == self._probe:
                    self._listening.set()
                elif not notification.payload:
                    self.notify_all()
        finally:
            probing.cancel()
            await asyncio.wait([probing])

    async def _send_probe(self) -> None:
        with contextlib.suppress(StoreError):
            await self._readers.execute("select pg_notify($1, $2)", (self._channel, self._probe))
