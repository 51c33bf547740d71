"""The group commit: everything that is waiting goes to the server in one round trip and is committed together."""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

import psycopg

from holdfast.checkpoint.errors import StoreClosed, StoreError
from holdfast.checkpoint.stores.postgres import wire
from holdfast.checkpoint.stores.postgres.database import Database
from holdfast.checkpoint.stores.postgres.doubt import LateCommits
from holdfast.checkpoint.stores.postgres.operations import (
    NOTHING,
    STATEMENT,
    TYPES,
    Answer,
    Append,
    Operation,
    Other,
    arguments,
    decoded,
)
from holdfast.checkpoint.stores.postgres.pages import Pages
from holdfast.checkpoint.stores.postgres.trouble import connection_is_lost, is_about_one_item, passes, translated
from holdfast.checkpoint.stores.postgres.wire import Link

log = logging.getLogger("holdfast.checkpoint.postgres")

#: Of one batch. A larger one is no faster: runs that begin together would all wait for it, and nobody would work
#: meanwhile. And the server has to hold all of it in memory.
MOST_OPERATIONS, MOST_BYTES = 500, 8 * 1024 * 1024

#: So many are told at once what came of their writes.
_AT_ONCE = 32

#: Between two looks at what came of a batch that was given up, while nobody asks for anything. It grows: a look that
#: has to wait for somebody's lock goes on waiting at the server.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0

#: These grant tokens. A server that forgot one in a crash would grant it again: they are always committed to its disk.
_GRANTS = frozenset({"create", "claim", "take"})


class Writer:
    """Commits what it is given in batches, on one connection, each batch exactly once.

    Every batch carries a number, which the server keeps with the answers in the same transaction. When the connection
    is lost and nobody knows what came of a batch, the same batch is sent again: if it was committed, the server gives
    the answers of then and does nothing.
    """

    def __init__(self, database: Database, *, durable: bool) -> None:
        self._database, self._durable = database, durable
        self._loop = asyncio.get_running_loop()
        self._write_batch = database.scripts.inline(STATEMENT).encode()
        self._resolve_batch = database.scripts.inline("select holdfast.resolve_batch($1, $2)").encode()
        self._id = uuid.uuid4().bytes
        self._number = 0
        self._link: Link | None = None
        self._waiting: deque[Operation] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        #: A batch that was sent and not answered yet: its number, and what was in it.
        self._unanswered: tuple[int, Sequence[Operation]] | None = None
        #: Committed, but those who wait do not know yet; and the answers to some of them.
        self._untold: deque[Operation] = deque()
        self._said: dict[Operation, Answer] = {}
        self._late = LateCommits()
        self._pause = _FIRST_PAUSE
        self._pages = Pages()
        self._task = asyncio.create_task(self._work(), name="holdfast-postgres-writer")

    def commit(self, operation: Operation) -> asyncio.Future[Answer | None]:
        """Done once the operation is committed, with what the server has to say of it. A refusal is an answer too.

        Raises:
            StoreError: in the future; nothing was written.
        """
        if self._closing:
            raise StoreClosed("this PostgreSQL store is closed; nothing was written")
        loop, waiting = self._loop, self._waiting
        operation.asked_at = loop.time()
        operation.answer = answer = loop.create_future()
        waiting.append(operation)
        if len(waiting) >= len(self._untold) and not self._wake.is_set():
            self._wake.set()
        return answer

    async def close(self) -> None:
        """Commit what is waiting, then let go of the connection."""
        self._closing = True
        self._wake.set()
        await asyncio.wait([self._task])
        while self._untold:
            self._tell_some()
        await self._drop_link()

    # -- within -------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while self._waiting or not self._closing:
            # Who is told goes on and writes again soon. Until then the others wait: a small batch costs as much of this
            # process's time as a large one. Nor does it wait for all of them, so that the server has something to do
            # while the rest are told.
            if self._waiting and len(self._waiting) >= len(self._untold):
                batch = self._next_batch()
                if batch:
                    await self._settle(batch)
            else:
                self._wake.clear()
                if self._in_doubt:
                    await self._put_right()
                await self._wake.wait()
        if self._in_doubt:
            await self._put_right()

    @property
    def _in_doubt(self) -> bool:
        """Whether something may have been committed that has to be undone, or was."""
        return self._unanswered is not None or bool(self._late.undoing)

    async def _put_right(self) -> None:
        """One try to find out what came of what was given up, and to give back what nobody knows to be his."""
        try:
            await self._resolve(self._loop.time() - self._database.patience)
            self._pause = _FIRST_PAUSE
        except Exception as exc:  # of whatever kind: whoever writes next meets it too
            log.info("it is not known yet what came of a write that was given up: %s", exc)
            self._loop.call_later(self._pause, self._wake.set)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _next_batch(self) -> list[Operation]:
        """What is waiting, in order, but of each run one operation only: the next has to see what came of it."""
        batch: list[Operation] = []
        not_yet: list[Operation] = []
        runs: set[str] = set()
        size = 0
        while self._waiting and len(batch) < MOST_OPERATIONS and size < MOST_BYTES:
            operation = self._waiting.popleft()
            if operation.answer.done():
                continue  # who asked was cancelled before it was sent
            if operation.run_id is not None:
                if operation.run_id in runs:
                    not_yet.append(operation)
                    continue
                runs.add(operation.run_id)
            batch.append(operation)
            size += operation.size
        self._waiting.extendleft(reversed(not_yet))
        return batch

    async def _settle(self, batch: Sequence[Operation]) -> None:
        """Write the batch and tell everybody who waits for it."""
        since = min([operation.asked_at for operation in batch])
        try:
            if self._in_doubt:
                await self._resolve(since)
            left = [operation for operation in batch if not self._late.adapt(operation)] if self._late else batch
            answers = await self._write(left, since)
        except StoreError as exc:
            if len(batch) > 1 and isinstance(exc.__cause__, psycopg.Error) and is_about_one_item(exc.__cause__):
                for operation in batch:
                    await self._settle([operation])
            else:
                _fail(batch, exc)
        except BaseException as exc:  # whatever it is, nobody may be left waiting for ever
            failure = StoreError(f"{self._database.where}: the writer broke down: {exc!r}")
            failure.__cause__ = exc
            _fail(batch, failure)
            if not isinstance(exc, Exception):
                raise
        else:
            if self._late:
                self._late.conclude(batch, answers)
            self._tell(batch, answers)

    def _tell(self, batch: Sequence[Operation], answers: Mapping[Operation, Answer]) -> None:
        """Let everybody go on, a few at a time, and between them whatever else the event loop has to do.

        That is above all to send the next batch, of which a socket takes only a part at once, and to hear of its end:
        so the server works on one batch while this process works for the runs of another.
        """
        telling = bool(self._untold)
        self._untold += batch
        self._said.update(answers)
        if not telling:
            self._tell_some()

    def _tell_some(self) -> None:
        for _ in range(min(len(self._untold), _AT_ONCE)):
            operation = self._untold.popleft()
            answer = self._said.pop(operation, None) if self._said else None
            if not operation.answer.done():
                operation.answer.set_result(answer)
        if self._untold:
            self._loop.call_soon(self._tell_some)
        if self._waiting and len(self._waiting) >= len(self._untold):
            self._wake.set()

    async def _write(self, batch: Sequence[Operation], since: float) -> dict[Operation, Answer]:
        """Commit the batch, whatever happens to the connection meanwhile. Gives the answers there are."""
        others = [operation for operation in batch if isinstance(operation, Other)]
        appends = [operation for operation in batch if isinstance(operation, Append)]
        appends += [other.ahead for other in others if other.ahead is not None]
        items: list[Operation] = [*appends, *others]
        if not items:
            return {}
        # Every second number: the one after it marks a batch that was given up.
        self._number += 2
        number = self._number
        durable = self._durable or any(other.do in _GRANTS for other in others)
        values = [self._id, wire.bigint(number), b"\1" if durable else b"\0", *arguments(appends, others, self._pages)]

        async def attempt() -> bytes | None:
            self._unanswered = (number, items)
            try:
                answers = await self._call(self._write_batch, TYPES, values, since)
            except psycopg.Error as exc:
                if exc.sqlstate is not None and not connection_is_lost(exc):
                    self._unanswered = None  # the server says so: refused as a whole
                raise
            self._unanswered = None
            return answers

        answers = await self._tried(attempt, since)
        assert answers is not None, "a batch is never sent after a later one"
        return {items[item - 1]: answer for item, answer in decoded(answers).items()} if answers != NOTHING else {}

    async def _resolve(self, since: float) -> None:
        """Find out what came of a batch that was given up, and put right what its callers do not know of."""
        if self._unanswered is not None:
            number, items = self._unanswered

            async def attempt() -> bytes | None:
                types, values = (wire.UUID, wire.BIGINT), (self._id, wire.bigint(number))
                return await self._call(self._resolve_batch, types, values, since)

            answers = await self._tried(attempt, since)
            self._unanswered = None
            if answers is not None:
                self._late.learn(items, decoded(answers))
        if self._late.undoing:
            await self._write(self._late.undoing, since)
            self._late.undoing = []

    async def _tried(self, attempt: Callable[[], Awaitable[bytes | None]], since: float) -> bytes | None:
        """What the attempt gives, made again while the server is away."""
        if self._link is not None and not self._link.is_lost:
            # Nearly always there is a connection, and it works: that goes without all the care that follows.
            try:
                return await attempt()
            except psycopg.Error as exc:
                if not passes(exc):
                    raise translated(exc, self._database.where) from exc
        return await self._database.persist(attempt, since=since)

    async def _call(
        self, statement: bytes, types: Sequence[int], values: Sequence[bytes | None], since: float
    ) -> bytes | None:
        link = self._link if self._link is not None and not self._link.is_lost else await self._linked()
        try:
            result = await link.call(statement, types, values, until=self._database.deadline(since))
        except BaseException as exc:
            # Gone, or given up in the middle of an answer: of no use any more.
            if not isinstance(exc, psycopg.Error) or connection_is_lost(exc):
                await self._drop_link()
            raise
        return result.get_value(0, 0)

    async def _linked(self) -> Link:
        if self._link is not None and self._link.is_lost:
            await self._drop_link()
        if self._link is None:
            self._link = Link(await self._database.connect())
        return self._link

    async def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()


def _fail(batch: Sequence[Operation], exc: StoreError) -> None:
    for operation in batch:
        if not operation.answer.done():
            # Each its own: it is raised in as many places.
            own = type(exc)(*exc.args)
            own.__cause__ = exc.__cause__
            operation.answer.set_exception(own)
