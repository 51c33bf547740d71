"""The group commit: everything that is waiting goes to the server in one round trip and is committed together."""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

import psycopg

from holdfast.checkpoint.errors import StoreClosed, StoreError
from holdfast.stores.postgres import connection
from holdfast.stores.postgres.connection import (
    PgConnection,
    is_connection_lost,
    is_statement_error,
    is_transient,
    map_error,
)
from holdfast.stores.postgres.database import Database
from holdfast.stores.postgres.late_commits import LateCommits
from holdfast.stores.postgres.requests import (
    NO_RESPONSES,
    WRITE_BATCH,
    WRITE_BATCH_TYPES,
    AppendRequest,
    Command,
    PagePacker,
    Response,
    WriteRequest,
    decode_responses,
    encode_arguments,
)

log = logging.getLogger("holdfast.stores.postgres")

#: Of one batch. A larger one is no faster: runs that begin together would all wait for it, and nobody would work
#: meanwhile. And the server has to hold all of it in memory.
MAX_BATCH_REQUESTS, MAX_BATCH_BYTES = 500, 8 * 1024 * 1024

#: So many are told at once what came of their writes.
_RESOLVE_BATCH = 32

#: Between two looks at what came of a batch that was given up, while nobody asks for anything. It grows: a look that
#: has to wait for somebody's lock goes on waiting at the server.
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.5, 15.0

#: These grant tokens. A server that forgot one in a crash would grant it again: they are always committed to its disk.
_CLAIMING_KINDS = frozenset({"create", "claim", "take"})


class Writer:
    """Commits what it is given in batches, on one connection, each batch exactly once.

    Every batch carries a number, which the server keeps with the answers in the same transaction. When the connection
    is lost and nobody knows what came of a batch, the same batch is sent again: if it was committed, the server gives
    the answers of then and does nothing.
    """

    def __init__(self, database: Database, *, durable: bool) -> None:
        self._database, self._durable = database, durable
        self._loop = asyncio.get_running_loop()
        self._write_batch_sql = database.sql.with_schema(WRITE_BATCH).encode()
        self._resolve_batch_sql = database.sql.with_schema("select holdfast.resolve_batch($1, $2)").encode()
        self._writer_id = uuid.uuid4().bytes
        self._batch_number = 0
        self._connection: PgConnection | None = None
        self._queue: deque[WriteRequest] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        #: A batch that was sent and not answered yet: its number, and what was in it.
        self._unknown_batch: tuple[int, Sequence[WriteRequest]] | None = None
        #: Committed, but those who wait do not know yet; and the answers to some of them.
        self._completed: deque[WriteRequest] = deque()
        self._responses: dict[WriteRequest, Response] = {}
        self._late_commits = LateCommits()
        self._backoff_s = _MIN_BACKOFF_S
        self._packer = PagePacker()
        self._task = asyncio.create_task(self._run(), name="holdfast-postgres-writer")

    def submit(self, request: WriteRequest) -> asyncio.Future[Response | None]:
        """Done once the operation is committed, with what the server has to say of it. A refusal is an answer too.

        Raises:
            StoreError: in the future; nothing was written.
        """
        if self._closing:
            raise StoreClosed("this PostgreSQL store is closed; nothing was written")
        loop, waiting = self._loop, self._queue
        request.submitted_at = loop.time()
        request.future = answer = loop.create_future()
        waiting.append(request)
        if len(waiting) >= len(self._completed) and not self._wake.is_set():
            self._wake.set()
        return answer

    async def close(self) -> None:
        """Commit what is waiting, then let go of the connection."""
        self._closing = True
        self._wake.set()
        await asyncio.wait([self._task])
        while self._completed:
            self._resolve_some()
        await self._drop_connection()

    # -- within -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self._queue or not self._closing:
            # Who is told goes on and writes again soon. Until then the others wait: a small batch costs as much of this
            # process's time as a large one. Nor does it wait for all of them, so that the server has something to do
            # while the rest are told.
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
        """Whether something may have been committed that has to be undone, or was."""
        return self._unknown_batch is not None or bool(self._late_commits.compensations)

    async def _reconcile(self) -> None:
        """One try to find out what came of what was given up, and to give back what nobody knows to be his."""
        try:
            await self._resolve_unknown_batch(self._loop.time() - self._database.timeout_s)
            self._backoff_s = _MIN_BACKOFF_S
        except Exception as exc:  # of whatever kind: whoever writes next meets it too
            log.info("it is not known yet what came of a write that was given up: %s", exc)
            self._loop.call_later(self._backoff_s, self._wake.set)
            self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)

    def _next_batch(self) -> list[WriteRequest]:
        """What is waiting, in order, but of each run one operation only: the next has to see what came of it."""
        batch: list[WriteRequest] = []
        not_yet: list[WriteRequest] = []
        runs: set[str] = set()
        size = 0
        while self._queue and len(batch) < MAX_BATCH_REQUESTS and size < MAX_BATCH_BYTES:
            operation = self._queue.popleft()
            if operation.future.done():
                continue  # who asked was cancelled before it was sent
            if operation.run_id is not None:
                if operation.run_id in runs:
                    not_yet.append(operation)
                    continue
                runs.add(operation.run_id)
            batch.append(operation)
            size += operation.size
        self._queue.extendleft(reversed(not_yet))
        return batch

    async def _commit_batch(self, batch: Sequence[WriteRequest]) -> None:
        """Write the batch and tell everybody who waits for it."""
        since = min([operation.submitted_at for operation in batch])
        try:
            if self._has_unknown_batch:
                await self._resolve_unknown_batch(since)
            left = (
                [operation for operation in batch if not self._late_commits.rewrite_request(operation)]
                if self._late_commits
                else batch
            )
            answers = await self._write(left, since)
        except StoreError as exc:
            if len(batch) > 1 and isinstance(exc.__cause__, psycopg.Error) and is_statement_error(exc.__cause__):
                for operation in batch:
                    await self._commit_batch([operation])
            else:
                _fail_batch(batch, exc)
        except BaseException as exc:  # whatever it is, nobody may be left waiting for ever
            failure = StoreError(f"{self._database.label}: the writer broke down: {exc!r}")
            failure.__cause__ = exc
            _fail_batch(batch, failure)
            if not isinstance(exc, Exception):
                raise
        else:
            if self._late_commits:
                self._late_commits.acknowledge(batch, answers)
            self._complete(batch, answers)

    def _complete(self, batch: Sequence[WriteRequest], responses: Mapping[WriteRequest, Response]) -> None:
        """Let everybody go on, a few at a time, and between them whatever else the event loop has to do.

        That is above all to send the next batch, of which a socket takes only a part at once, and to hear of its end:
        so the server works on one batch while this process works for the runs of another.
        """
        telling = bool(self._completed)
        self._completed += batch
        self._responses.update(responses)
        if not telling:
            self._resolve_some()

    def _resolve_some(self) -> None:
        for _ in range(min(len(self._completed), _RESOLVE_BATCH)):
            operation = self._completed.popleft()
            answer = self._responses.pop(operation, None) if self._responses else None
            if not operation.future.done():
                operation.future.set_result(answer)
        if self._completed:
            self._loop.call_soon(self._resolve_some)
        if self._queue and len(self._queue) >= len(self._completed):
            self._wake.set()

    async def _write(self, batch: Sequence[WriteRequest], since: float) -> dict[WriteRequest, Response]:
        """Commit the batch, whatever happens to the connection meanwhile. Gives the answers there are."""
        others = [operation for operation in batch if isinstance(operation, Command)]
        appends = [operation for operation in batch if isinstance(operation, AppendRequest)]
        appends += [other.prepended_append for other in others if other.prepended_append is not None]
        items: list[WriteRequest] = [*appends, *others]
        if not items:
            return {}
        # Every second number: the one after it marks a batch that was given up.
        self._batch_number += 2
        number = self._batch_number
        durable = self._durable or any(other.kind in _CLAIMING_KINDS for other in others)
        values = [
            self._writer_id,
            connection.encode_bigint(number),
            b"\1" if durable else b"\0",
            *encode_arguments(appends, others, self._packer),
        ]

        async def attempt() -> bytes | None:
            self._unknown_batch = (number, items)
            try:
                answers = await self._call(self._write_batch_sql, WRITE_BATCH_TYPES, values, since)
            except psycopg.Error as exc:
                if exc.sqlstate is not None and not is_connection_lost(exc):
                    self._unknown_batch = None  # the server says so: refused as a whole
                raise
            self._unknown_batch = None
            return answers

        answers = await self._retry(attempt, since)
        assert answers is not None, "a batch is never sent after a later one"
        return (
            {items[item - 1]: answer for item, answer in decode_responses(answers).items()}
            if answers != NO_RESPONSES
            else {}
        )

    async def _resolve_unknown_batch(self, since: float) -> None:
        """Find out what came of a batch that was given up, and put right what its callers do not know of."""
        if self._unknown_batch is not None:
            number, items = self._unknown_batch

            async def attempt() -> bytes | None:
                types, values = (
                    (connection.UUID, connection.BIGINT),
                    (self._writer_id, connection.encode_bigint(number)),
                )
                return await self._call(self._resolve_batch_sql, types, values, since)

            answers = await self._retry(attempt, since)
            self._unknown_batch = None
            if answers is not None:
                self._late_commits.record(items, decode_responses(answers))
        if self._late_commits.compensations:
            await self._write(self._late_commits.compensations, since)
            self._late_commits.compensations = []

    async def _retry(self, attempt: Callable[[], Awaitable[bytes | None]], since: float) -> bytes | None:
        """What the attempt gives, made again while the server is away."""
        if self._connection is not None and not self._connection.is_closed:
            # Nearly always there is a connection, and it works: that goes without all the care that follows.
            try:
                return await attempt()
            except psycopg.Error as exc:
                if not is_transient(exc):
                    raise map_error(exc, self._database.label) from exc
        return await self._database.retry(attempt, since=since)

    async def _call(
        self, statement: bytes, types: Sequence[int], values: Sequence[bytes | None], since: float
    ) -> bytes | None:
        link = (
            self._connection
            if self._connection is not None and not self._connection.is_closed
            else await self._get_connection()
        )
        try:
            result = await link.call(statement, types, values, deadline=self._database.deadline(since))
        except BaseException as exc:
            # Gone, or given up in the middle of an answer: of no use any more.
            if not isinstance(exc, psycopg.Error) or is_connection_lost(exc):
                await self._drop_connection()
            raise
        return result.get_value(0, 0)

    async def _get_connection(self) -> PgConnection:
        if self._connection is not None and self._connection.is_closed:
            await self._drop_connection()
        if self._connection is None:
            self._connection = PgConnection(await self._database.connect())
        return self._connection

    async def _drop_connection(self) -> None:
        link, self._connection = self._connection, None
        if link is not None:
            await link.close()


def _fail_batch(batch: Sequence[WriteRequest], exc: StoreError) -> None:
    for operation in batch:
        if not operation.future.done():
            # Each its own: it is raised in as many places.
            own = type(exc)(*exc.args)
            own.__cause__ = exc.__cause__
            operation.future.set_exception(own)
