"""Signs that another process changed something."""

import asyncio
import contextlib
import logging
import uuid
from datetime import timedelta

import psycopg

from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.stores.postgres import wire
from holdfast.checkpoint.stores.postgres.database import Database, Readers

log = logging.getLogger("holdfast.checkpoint.postgres")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0


class Signs:
    """Hears of changes by LISTEN, on a connection of its own. Where that is not to be had, every wait is a short one.

    A transaction pooler takes a LISTEN without complaint, and no notification ever comes through. So a connection
    counts as listening only once it has heard a notification that was sent on another.
    """

    def __init__(self, database: Database, readers: Readers, *, poll: timedelta) -> None:
        """`database` is where to listen: the server itself, when `readers` talk to a pooler."""
        self._database, self._readers = database, readers
        self._channel = database.scripts.schema
        self._poll = poll.total_seconds()
        self._probe = uuid.uuid4().hex
        self._hears = asyncio.Event()
        self._next_sign = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def hears(self) -> bool:
        """Whether notifications come through."""
        return self._hears.is_set()

    async def start(self, wait: timedelta) -> None:
        """Begin to listen. Returns once the first notification came through, or after `wait`."""
        self._task = asyncio.create_task(self._listen_for_ever(), name="holdfast-postgres-signs")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait.total_seconds()):
                await self._hears.wait()

    async def close(self) -> None:
        """Whoever waits is woken."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.give()

    def give(self) -> None:
        """Wake everybody who waits."""
        self._next_sign.set()
        self._next_sign = asyncio.Event()

    async def wait(self, within: timedelta) -> bool:
        """Whether there was a sign, or might have been one that cannot be heard."""
        deaf = not self._hears.is_set() and self._poll < within.total_seconds()
        try:
            async with asyncio.timeout(self._poll if deaf else within.total_seconds()):
                await self._next_sign.wait()
        except TimeoutError:
            return deaf
        return True

    async def _listen_for_ever(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                async with await self._database.connect() as connection:
                    await self._listen(connection)
            except psycopg.Error as exc:
                log.info("%s: the connection that listens is lost: %s", self._database.where, exc)
            if self._hears.is_set():
                pause = _FIRST_PAUSE
            self._hears.clear()
            self.give()  # there may have been signs that nobody heard
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _listen(self, connection: psycopg.AsyncConnection) -> None:
        await connection.execute(f'listen "{self._channel}"'.encode())
        probing = asyncio.create_task(self._send_probe())
        try:
            async for notification in connection.notifies():
                if notification.payload == self._probe:
                    self._hears.set()
                elif not notification.payload:
                    self.give()
        finally:
            probing.cancel()
            await asyncio.wait([probing])

    async def _send_probe(self) -> None:
        with contextlib.suppress(StoreError):
            values = (self._channel.encode(), self._probe.encode())
            await self._readers.call(b"select pg_notify($1, $2)", (wire.TEXT, wire.TEXT), values)
