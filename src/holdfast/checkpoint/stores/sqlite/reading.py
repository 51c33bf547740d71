"""Threads that read, each on a connection of its own: they never wait for the writer, nor it for them."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import apsw

from holdfast.checkpoint.errors import StoreClosed
from holdfast.checkpoint.stores.sqlite.database import Database
from holdfast.checkpoint.stores.sqlite.failures import store_errors
from holdfast.checkpoint.stores.sqlite.transaction import Execute

T = TypeVar("T")

#: Seconds without an answer after which the second thread helps. Most reads take a tenth of it.
_PATIENCE = 0.005

Asked = tuple[Callable[[Execute], Any], asyncio.Future[Any]]
_Settle = Callable[[asyncio.Future[Any], object, Exception | None], None]


class ReadingThreads:
    """Do one read each at a time, in one transaction. Cheaper by half than an executor, and a load is short.

    One thread does it all, as long as it answers soon: two would take turns for the interpreter, and each would read
    for itself the pages that the other has already. Where a read takes long, be it a large one or a slow disk, the
    second takes what waits behind it.
    """

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._database = database
        self._loop = loop
        self._queue: SimpleQueue[Asked | None] = SimpleQueue()
        #: What the second thread waits for: True to help, False to end.
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._open = True
        self._unanswered = self._answers = 0
        self._watch: asyncio.TimerHandle | None = None
        self._ended = [loop.create_future() for _ in range(2)]
        for work, ended in zip((self._serve, self._help), self._ended, strict=True):
            threading.Thread(target=work, args=(ended,), name="holdfast-sqlite-reader", daemon=True).start()

    def do(self, work: Callable[[Execute], T]) -> asyncio.Future[T]:
        """Have `work` done in a read transaction. It leaves no statement half-read."""
        if not self._open:
            raise StoreClosed("this store is closed: nothing can be read")
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((work, done))
        self._unanswered += 1
        if self._unanswered > 1 and self._watch is None:
            self._watch = self._loop.call_later(_PATIENCE, self._look, self._answers)
        return done

    async def stop(self) -> None:
        """Finish what was asked for, close the connections, end the threads."""
        self._open = False
        self._queue.put(None)
        self._calls.put(False)
        await asyncio.gather(*self._ended)
        if self._watch is not None:
            self._watch.cancel()

    def _look(self, answers: int) -> None:
        """Call the second thread if something waits and there was no answer for a while."""
        self._watch = None
        if self._unanswered > 1:
            if self._answers == answers:
                self._calls.put(True)
            self._watch = self._loop.call_later(_PATIENCE, self._look, self._answers)

    # -- in a thread --------------------------------------------------------------------------------------------------

    def _serve(self, ended: asyncio.Future[None]) -> None:
        connection: apsw.Connection | None = None
        while (asked := self._queue.get()) is not None:
            connection = self._answer(connection, *asked)
            # Not until the next job comes: a whole transcript may hang on them.
            del asked
        self._end(connection, ended)

    def _help(self, ended: asyncio.Future[None]) -> None:
        connection: apsw.Connection | None = None
        while self._calls.get():
            with contextlib.suppress(Empty):
                while (asked := self._queue.get_nowait()) is not None:
                    connection = self._answer(connection, *asked)
                    del asked
                self._queue.put(None)  # the end of the other
        self._end(connection, ended)

    def _end(self, connection: apsw.Connection | None, ended: asyncio.Future[None]) -> None:
        if connection is not None:
            connection.close()
        self._tell(_settle, ended, None, None)

    def _answer(
        self, connection: apsw.Connection | None, work: Callable[[Execute], Any], done: asyncio.Future[Any]
    ) -> apsw.Connection | None:
        """Do the work and say what came of it. Gives the connection, which is opened for the first."""
        try:
            connection = connection or self._database.reader()
            result = self._read(connection, work)
        except Exception as exc:  # whatever it is, it belongs to the one who asked
            self._tell(self._answered, done, None, exc)
        else:
            self._tell(self._answered, done, result, None)
        return connection

    def _read(self, connection: apsw.Connection, work: Callable[[Execute], T]) -> T:
        with store_errors(self._database.path, connection):
            # One cursor for all statements of a read, each of which is read to its end before the next.
            execute = connection.cursor().execute
            execute("BEGIN")
            try:
                result = work(execute)
            except BaseException:
                # After some errors SQLite has ended it by itself. After others it refuses to commit, though nothing
                # was written: that would hide which run is damaged.
                if connection.in_transaction:
                    execute("ROLLBACK")
                raise
            execute("COMMIT")
            return result

    def _tell(self, settle: _Settle, done: asyncio.Future[Any], result: object, error: Exception | None) -> None:
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(settle, done, result, error)

    # -- in the event loop again --------------------------------------------------------------------------------------

    def _answered(self, done: asyncio.Future[Any], result: object, error: Exception | None) -> None:
        self._unanswered -= 1
        self._answers += 1
        _settle(done, result, error)


def _settle(done: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if done.done():
        return  # cancelled meanwhile
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
