"""The server a store talks to: how to connect to it, and how long to wait when it does not answer."""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq.abc import PGresult

from holdfast.checkpoint.errors import StoreError, StoreUnavailable
from holdfast.checkpoint.stores.postgres.scripts import Scripts
from holdfast.checkpoint.stores.postgres.trouble import connection_is_lost, only_reads, passes, translated
from holdfast.checkpoint.stores.postgres.wire import Link

_T = TypeVar("_T")

#: What the URL may override. A peer that vanished without a word is noticed within a minute; nothing here is a setting
#: of the server's session, so that a pooler may give every transaction to another one.
_DEFAULTS = {
    "fallback_application_name": "holdfast",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "45000",
}

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_A_TRY = 1.0


class Database:
    """A PostgreSQL database, as one store uses it."""

    def __init__(self, url: str, scripts: Scripts, patience: timedelta) -> None:
        """Raises `StoreError` for a URL that names no database."""
        try:
            parts = conninfo_to_dict(url)
        except psycopg.Error as exc:
            # What libpq quotes may be the password.
            said = re.split("[\"'«„“:]", str(exc))[0].strip()
            raise StoreError(f"this is no URL of a PostgreSQL database: {said}") from None
        self.conninfo = make_conninfo("", **(_DEFAULTS | parts))
        self.scripts = scripts
        self.patience = patience.total_seconds()
        #: For messages; says nothing secret.
        self.where = f"PostgreSQL ({parts.get('dbname', 'default')} at {parts.get('host', 'localhost')})"

    async def connect(self) -> psycopg.AsyncConnection:
        """A connection on which every statement is a transaction, and nothing is prepared.

        Raises:
            psycopg.Error: there is none to be had.
        """
        return await psycopg.AsyncConnection.connect(self.conninfo, autocommit=True, prepare_threshold=None)

    async def persist(self, attempt: Callable[[], Awaitable[_T]], *, since: float | None = None) -> _T:
        """What `attempt` gives, made again while the server is away, for as long as the store's patience lasts.

        Args:
            since: when the waiting began, by the event loop's clock; now, unless it is given.

        Raises:
            StoreUnavailable: it did not come back in time.
            StoreError: it refused. The driver's error is the cause.
        """
        loop = asyncio.get_running_loop()
        deadline = self.deadline(since)
        pause, last = _FIRST_PAUSE, psycopg.Error("it was not heard from")
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await attempt()
            except TimeoutError as exc:
                raise self._given_up(last) from exc
            except psycopg.Error as exc:
                if not passes(exc):
                    raise translated(exc, self.where) from exc
                last = exc
                # A port that refuses at once never lets the timeout come through.
                if loop.time() >= deadline:
                    raise self._given_up(last) from exc
            await asyncio.sleep(min(pause * random.uniform(0.5, 1), max(0, deadline - loop.time())))  # noqa: S311
            pause = min(2 * pause, _LONGEST_PAUSE)

    def deadline(self, since: float | None = None) -> float:
        """When patience ends that began then, or now. Whatever waited long for others still gets its own try."""
        now = asyncio.get_running_loop().time()
        return max((since or now) + self.patience, now + min(self.patience, _A_TRY))

    def _given_up(self, last: psycopg.Error) -> StoreUnavailable:
        said = str(last).strip()
        if only_reads(last):
            refused = f"{self.where} took no write within {self.patience:g} s: it is a standby, or was made read-only"
            return StoreUnavailable(f"{refused} ({said})")
        return StoreUnavailable(f"{self.where} did not answer within {self.patience:g} s: {said}")


class Readers:
    """A few connections for all that is not the group commit. Each call is one statement, and may be repeated."""

    def __init__(self, database: Database, size: int) -> None:
        self._database = database
        self._free = asyncio.Semaphore(size)
        self._idle: list[Link] = []
        self._closed = False

    async def call(self, statement: bytes, types: Sequence[int] = (), values: Sequence[bytes | None] = ()) -> PGresult:
        """What the statement gives, in binary form.

        Raises:
            StoreError: the server refused it, or was away for too long.
        """
        since = asyncio.get_running_loop().time()

        async def attempt() -> PGresult:
            link = self._idle.pop() if self._idle else Link(await self._database.connect())
            try:
                result = await link.call(statement, types, values, until=self._database.deadline(since))
            except BaseException as exc:
                # Gone, or given up in the middle of an answer, or still good.
                await self._put_back(link, usable=isinstance(exc, psycopg.Error) and not connection_is_lost(exc))
                raise
            await self._put_back(link, usable=True)
            return result

        async with self._free:
            # Nearly always there is a connection, and it works. If it is lost, the others are likely to be so as well.
            for _ in range(len(self._idle)):
                try:
                    return await attempt()
                except psycopg.Error as exc:
                    if not passes(exc):
                        raise translated(exc, self._database.where) from exc
            return await self._database.persist(attempt, since=since)

    async def close(self) -> None:
        """Calls under way are finished, and let go of their connections then."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()

    async def _put_back(self, link: Link, *, usable: bool) -> None:
        if usable and not self._closed and not link.is_to_standby:
            self._idle.append(link)
        else:
            await link.close()
