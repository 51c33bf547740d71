"""Drafts: written on a thread of their own, by a connection that does not sync."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import apsw

from holdfast.checkpoint.workers import Claim
from holdfast.clock import Clock
from holdfast.concurrency import JobThread
from holdfast.db.sqlite_file import set_synchronous, transaction
from holdfast.stores.sqlite.database import Database, statement
from holdfast.stores.sqlite.transaction import Execute, to_micros


class DraftWriter:
    """Writes drafts and requests for drafts. Starts its thread with the first one."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._thread = JobThread("holdfast-sqlite-drafts")
        self._connection: apsw.Connection | None = None
        self._stopping = False

    async def put(self, claim: Claim, draft: bytes | None) -> None:
        if draft is None:
            await self._write(partial(_drop_draft, claim))
        else:
            await self._write(partial(_put_draft, claim, draft))

    async def request(self, run_id: str, keep_for: timedelta) -> None:
        now = self._clock.now()
        await self._write(partial(_request_drafts, run_id, to_micros(now), to_micros(now + keep_for)))

    async def stop(self) -> None:
        """Finish the write in progress and close the connection."""
        self._stopping = True
        await self._thread.close(self._disconnect)

    async def _write(self, work: Callable[[Execute], None]) -> None:
        await self._thread.submit(partial(self._commit, work))

    # -- in its thread ------------------------------------------------------------------------------------------------

    def _commit(self, work: Callable[[Execute], None]) -> None:
        if self._connection is None:
            self._connection = self._database.connect_writer(self._may_wait)
            set_synchronous(self._connection, False)
        with self._database.mapped_errors(self._connection), transaction(self._connection):
            work(self._connection.execute)

    def _may_wait(self) -> bool:
        return not self._stopping

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _put_draft(claim: Claim, draft: bytes, execute: Execute) -> None:
    execute(statement("put_draft"), (claim.run_id, claim.token, draft))


def _drop_draft(claim: Claim, execute: Execute) -> None:
    execute(statement("drop_draft"), (claim.run_id, claim.token))


def _request_drafts(run_id: str, now: int, until: int, execute: Execute) -> None:
    execute(statement("forget_draft_requests"), (now,))
    execute(statement("request_drafts"), (run_id, until))


def read_draft(run_id: str, execute: Execute) -> bytes | None:
    """Return the draft of the newest claim."""
    body: bytes | None = execute(statement("read_draft"), (run_id,)).get
    return body
