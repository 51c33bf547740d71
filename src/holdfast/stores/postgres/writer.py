"""The group commit: all waiting requests go to the server in one round trip and are committed together."""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from holdfast.checkpoint.errors import StoreClosed, StoreError
from holdfast.concurrency import run_in_background
from holdfast.db.postgres_connection import EncodedParams, ErrorKind, PgConnection, classify, is_connection_lost
from holdfast.ids import make_uuid
from holdfast.stores.postgres.database import Database
from holdfast.stores.postgres.late_commits import LateCommits
from holdfast.stores.postgres.write_requests import (
    WRITE_BATCH,
    AppendRequest,
    Command,
    PagePacker,
    Response,
    WriteRequest,
    encode_arguments,
    encode_bigint,
    encode_bool,
    encode_uuid,
)

log = logging.getLogger("holdfast.stores.postgres")

#: Limits of one batch. A larger one is no faster: all its runs would wait for it and none would work meanwhile. The
#: server also holds all of it in memory.
MAX_BATCH_REQUESTS, MAX_BATCH_BYTES = 500, 8 * 1024 * 1024

#: Futures resolved in one turn of the event loop.
_RESOLVE_BATCH = 32

#: Pause between two attempts to learn the outcome of a batch that was given up, while no request waits. It grows,
#: because an attempt that meets a lock keeps waiting at the server.
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.5, 15.0

#: These grant fencing tokens. A crashed server must not grant one twice, so their commit always waits for its disk.
_CLAIMING_KINDS = frozenset({"create", "claim", "take"})


class Writer:
    """Commits requests in batches on one connection, each batch exactly once.

    Every batch has a number, which the server stores with the responses in the same transaction. After a lost
    connection the writer resends the same batch: if the server has committed it, it returns the stored responses.
    """

    def __init__(self, database: Database, *, durable: bool) -> None:
        self._database, self._durable = database, durable
        self._loop = asyncio.get_running_loop()
        self._write_batch_sql = database.sql.with_schema(WRITE_BATCH)
        self._resolve_batch_sql = database.sql.with_schema("select holdfast.resolve_batch($1::uuid, $2::bigint)")
        self._writer_id = make_uuid()
        self._batch_number = 0
        self._connection: PgConnection | None = None
        self._queue: deque[WriteRequest] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        #: The batch whose outcome is unknown: its number and requests.
        self._unknown_batch: tuple[int, Sequence[WriteRequest]] | None = None
        #: Committed requests whose futures are not resolved yet, and the responses to some of them.
        self._completed: deque[WriteRequest] = deque()
        self._responses: dict[WriteRequest, Response] = {}
        self._late_commits = LateCommits()
        self._backoff_s = _MIN_BACKOFF_S
        self._packer = PagePacker()
        self._task = run_in_background(self._run(), name="holdfast-postgres-writer")

    def submit(self, request: WriteRequest) -> asyncio.Future[Response | None]:
        """Return a future of the server's response. It is done when the request is committed, or refused.

        Raises:
            StoreError: in the future; nothing was written.
        """
        if self._closing:
            raise StoreClosed("this PostgreSQL store is closed; nothing was written")
        request.submitted_at = self._loop.time()
        request.future = future = self._loop.create_future()
        self._queue.append(request)
        if len(self._queue) >= len(self._completed) and not self._wake.is_set():
            self._wake.set()
        return future

    async def close(self) -> None:
        """Commit the waiting requests, then disconnect."""
        self._closing = True
        self._wake.set()
        await asyncio.wait([self._task])
        while self._completed:
            self._resolve_some()
        if self._connection is not None:
            self._connection.close()

    async def _run(self) -> None:
        while self._queue or not self._closing:
            # A run that learns of its commit soon writes again, so wait for half of them: a small batch costs as much
            # of this process's time as a large one. Not for all, so that the server works while futures are resolved.
            if self._queue and len(self._queue) >= len(self._completed):
                batch = self._next_batch()
                if batch:
                    await self._commit_batch(batch)
            else:
                self._wake.clear()
                if self._has_unknown_batch:
                    await self._reconcile()
                await self._wake.wait()
        if self._has_unknown_batch:
            await self._reconcile()

    @property
    def _has_unknown_batch(self) -> bool:
        """Whether the server may have committed a batch that was given up, or did and it has to be compensated."""
        return self._unknown_batch is not None or bool(self._late_commits.compensations)

    async def _reconcile(self) -> None:
        """Try once to learn the outcome of a batch that was given up, and to release the claims it took."""
        try:
            await self._resolve_unknown_batch(self._loop.time() - self._database.timeout_s)
            self._backoff_s = _MIN_BACKOFF_S
        except Exception as exc:  # of any kind: the next batch meets it too
            log.info("the outcome of a write that was given up is not known yet: %s", exc)
            self._loop.call_later(self._backoff_s, self._wake.set)
            self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)

    def _next_batch(self) -> list[WriteRequest]:
        """Return waiting requests in order, but only one of each run: the next one depends on its outcome."""
        batch: list[WriteRequest] = []
        deferred: list[WriteRequest] = []
        runs: set[str] = set()
        size = 0
        while self._queue and len(batch) < MAX_BATCH_REQUESTS and size < MAX_BATCH_BYTES:
            request = self._queue.popleft()
            if request.future.done():
                continue  # its caller was cancelled before it was sent
            if request.run_id is not None:
                if request.run_id in runs:
                    deferred.append(request)
                    continue
                runs.add(request.run_id)
            batch.append(request)
            size += request.size
        self._queue.extendleft(reversed(deferred))
        return batch

    async def _commit_batch(self, batch: Sequence[WriteRequest]) -> None:
        """Write the batch and resolve its futures."""
        since = min([request.submitted_at for request in batch])
        try:
            if self._has_unknown_batch:
                await self._resolve_unknown_batch(since)
            remaining = batch
            if self._late_commits:
                remaining = [request for request in batch if not self._late_commits.rewrite_request(request)]
            responses = await self._write(remaining, since)
        except StoreError as exc:
            if len(batch) > 1 and _is_statement_error(exc):
                # One request is bad: write each alone.
                for request in batch:
                    await self._commit_batch([request])
            else:
                _fail_batch(batch, exc)
        except BaseException as exc:  # of any kind: no future may stay unresolved
            failure = StoreError(f"{self._database.label}: the writer failed: {exc!r}")
            failure.__cause__ = exc
            _fail_batch(batch, failure)
            if not isinstance(exc, Exception):
                raise
        else:
            if self._late_commits:
                self._late_commits.acknowledge(batch, responses)
            self._complete(batch, responses)

    def _complete(self, batch: Sequence[WriteRequest], responses: Mapping[WriteRequest, Response]) -> None:
        """Resolve the futures, a few in each turn of the event loop.

        Between them the loop sends the next batch, of which a socket takes only a part at once. So the server works on
        one batch while this process works for the runs of another.
        """
        resolving = bool(self._completed)
        self._completed += batch
        self._responses.update(responses)
        if not resolving:
            self._resolve_some()

    def _resolve_some(self) -> None:
        for _ in range(min(len(self._completed), _RESOLVE_BATCH)):
            request = self._completed.popleft()
            response = self._responses.pop(request, None) if self._responses else None
            if not request.future.done():
                request.future.set_result(response)
        if self._completed:
            self._loop.call_soon(self._resolve_some)
        if self._queue and len(self._queue) >= len(self._completed):
            self._wake.set()

    async def _write(self, batch: Sequence[WriteRequest], since: float) -> dict[WriteRequest, Response]:
        """Commit the batch, also across lost connections. Return the responses that say more than success."""
        appends = [each for each in batch if isinstance(each, AppendRequest) and not each.depends_on_mail]
        others = [each for each in batch if not isinstance(each, AppendRequest) or each.depends_on_mail]
        items: list[WriteRequest] = [*appends, *others]
        if not items:
            return {}
        # Every second number: the one after it marks a batch that was given up.
        self._batch_number += 2
        number = self._batch_number
        durable = self._durable or any(map(_is_claim, others))
        params = EncodedParams([encode_uuid(self._writer_id), encode_bigint(number), encode_bool(durable)])
        params += encode_arguments(appends, others, self._packer)

        async def attempt(deadline: float) -> dict[str, Response] | None:
            self._unknown_batch = (number, items)
            try:
                responses = await self._call(self._write_batch_sql, params, deadline)
            except psycopg.Error as exc:
                if exc.sqlstate is not None and not is_connection_lost(exc):
                    self._unknown_batch = None  # the server refused all of it
                raise
            self._unknown_batch = None
            return responses

        responses = await self._database.run(attempt, since=since)
        if responses is None:
            raise StoreError(f"{self._database.label}: batch {number} was sent after a later one")
        return {items[int(item) - 1]: response for item, response in responses.items()}

    async def _resolve_unknown_batch(self, since: float) -> None:
        """Learn the outcome of a batch that was given up, and compensate what its callers do not know of."""
        if self._unknown_batch is not None:
            number, items = self._unknown_batch

            async def attempt(deadline: float) -> dict[str, Response] | None:
                return await self._call(self._resolve_batch_sql, (self._writer_id, number), deadline)

            responses = await self._database.run(attempt, since=since)
            self._unknown_batch = None
            if responses is not None:
                self._late_commits.record(items, {int(item): response for item, response in responses.items()})
        if self._late_commits.compensations:
            await self._write(self._late_commits.compensations, since)
            self._late_commits.compensations = []

    async def _call(self, statement: str, params: Sequence[Any], deadline: float) -> dict[str, Response] | None:
        """Return the responses by item; `None` if the batch was not committed."""
        if self._connection is None or self._connection.is_closed:
            self._connection = await self._database.connect(deadline=deadline)
        [(responses,)] = await self._connection.execute(statement, params, deadline=deadline)
        found: dict[str, Response] | None = responses
        return found


def _is_claim(request: WriteRequest) -> bool:
    return isinstance(request, Command) and request.kind in _CLAIMING_KINDS


def _is_statement_error(exc: StoreError) -> bool:
    return isinstance(exc.__cause__, psycopg.Error) and classify(exc.__cause__) is ErrorKind.BAD_STATEMENT


def _fail_batch(batch: Sequence[WriteRequest], exc: StoreError) -> None:
    for request in batch:
        if not request.future.done():
            # A copy for each caller that raises it.
            copy = type(exc)(*exc.args)
            copy.__cause__ = exc.__cause__
            request.future.set_exception(copy)
