"""Stores that break the contract of notifications, of opening and closing, and of isolation."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
from tests.stores.broken.broken_store import BrokenStore

from holdfast.checkpoint.errors import StoreClosed
from holdfast.checkpoint.record import NewRun, Pending, Release, RunStatus, StoredRun
from holdfast.checkpoint.workers import Claim
from holdfast.db.sqlite_tables import MemoryTables
from holdfast.db.tables import Cursor, Schema, Tables


class ReportsCancelsToAllWorkers(BrokenStore):
    red = ("test_a_cancel_reaches_the_worker_that_holds_the_run",)

    async def pending(self, worker_id: str) -> Pending:
        return msgspec.structs.replace(await super().pending(worker_id), cancels=list(self._cancel_requested))


class DropsTheCancelRequestAtARelease(BrokenStore):
    red = ("test_a_cancel_request_outlasts_its_owners",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, release)
        self._runs[claim.run_id].cancel_requested = False
        self._cancel_requested.pop(claim.run_id, None)


class KeepsTheCancelRequest(BrokenStore):
    red = ("test_a_cancel_request_ends_with_the_run",)

    async def release(self, claim: Claim, release: Release) -> None:
        asked = claim.run_id in self._cancel_requested
        await super().release(claim, release)
        if asked:
            self._runs[claim.run_id].cancel_requested = True
            self._cancel_requested[claim.run_id] = None


class ReleasesRunsToBeCancelled(BrokenStore):
    red = ("test_a_cancel_request_changes_nothing_else",)

    async def request_cancel(self, run_id: str) -> None:
        await super().request_cancel(run_id)
        self._runs[run_id].status = RunStatus.INTERRUPTED


class CancelsUnknownRuns(BrokenStore):
    red = ("test_an_unknown_run_cannot_be_cancelled",)

    async def request_cancel(self, run_id: str) -> None:
        self._check_open()
        if run_id in self._runs:
            await super().request_cancel(run_id)


class NeverNotifies(BrokenStore):
    red = ("test_a_change_ends_the_wait",)

    async def wait_for_change(self, timeout: timedelta) -> bool:
        self._check_open()
        await asyncio.sleep(min(0.01, timeout.total_seconds()))
        return False


class NotifiesOneWaiter(BrokenStore):
    red = ("test_a_change_ends_all_waits",)

    _busy = False

    async def wait_for_change(self, timeout: timedelta) -> bool:
        if self._busy:
            await asyncio.sleep(timeout.total_seconds())
            return False
        self._busy = True
        try:
            return await super().wait_for_change(timeout)
        finally:
            self._busy = False


class AlwaysNotifies(BrokenStore):
    red = ("test_a_wait_without_a_change_times_out",)

    async def wait_for_change(self, timeout: timedelta) -> bool:
        await asyncio.sleep(0)
        return True


class NeverNotifiesAfterACancelledWait(BrokenStore):
    red = ("test_a_cancelled_wait_affects_no_other",)

    _deaf = False

    async def wait_for_change(self, timeout: timedelta) -> bool:
        try:
            return False if self._deaf else await super().wait_for_change(timeout)
        except asyncio.CancelledError:
            self._deaf = True
            raise


class WorksWhenClosed(BrokenStore):
    red = ("test_a_closed_store_refuses_every_call", "test_a_store_that_was_never_opened_refuses_every_call")

    def _check_open(self) -> None:
        pass


class ClosesOnce(BrokenStore):
    red = ("test_a_store_may_be_closed_again",)

    _closed = False

    async def close(self) -> None:
        if self._closed:
            raise StoreClosed("closed already")
        self._closed = True
        await super().close()


class ClosesOnlyWhatWasOpened(BrokenStore):
    red = ("test_a_store_that_was_never_opened_may_be_closed",)

    _opened = False

    async def open(self) -> None:
        self._opened = True
        await super().open()

    async def close(self) -> None:
        if not self._opened:
            raise StoreClosed("never opened")
        await super().close()


class KeepsWaitersAfterClose(BrokenStore):
    red = ("test_closing_ends_the_waits_for_a_change",)

    async def close(self) -> None:
        self._is_open = False


class LeavesAThread(BrokenStore):
    red = ("test_no_thread_is_left_after_close",)

    async def open(self) -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        await super().open()


class KeepsTheCallersList(BrokenStore):
    red = ("test_changing_an_argument_afterwards_changes_nothing",)

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        claim = await super().create(run, worker_id=worker_id)
        assert isinstance(run.entries, list)
        self._runs[run.run_id].journal = run.entries
        return claim


class ReturnsItsOwnJournal(BrokenStore):
    red = (
        "test_changing_a_result_changes_nothing",
        "test_a_result_does_not_change_afterwards",
    )

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id, after=after)
        return msgspec.structs.replace(stored, entries=self._runs[run_id].journal)


class ReturnsMutableBodies(BrokenStore):
    red = ("test_records_and_entries_are_immutable",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id, after=after)
        entries = [msgspec.structs.replace(entry, body=bytearray(entry.body)) for entry in stored.entries]
        return msgspec.structs.replace(stored, entries=entries)


class FoldsCase(BrokenStore):
    """As a file system does that takes `Run` and `run` for one name."""

    red = ("test_every_legal_id_is_a_run_of_its_own",)

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        return await super().create(msgspec.structs.replace(run, run_id=run.run_id.lower()), worker_id=worker_id)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        return await super().load(run_id.lower(), after=after)


T = TypeVar("T")


class MakesNewTablesAtEachCall(BrokenStore):
    red = ("test_a_store_has_one_object_with_tables",)

    def tables(self) -> Tables:
        return MemoryTables()


class _OneSchema(MemoryTables):
    _name = ""

    async def open(self, schema: Schema) -> None:
        self._name = self._name or schema.name
        if schema.name == self._name:
            await super().open(schema)


class CreatesTheFirstSchemaOnly(BrokenStore):
    red = ("test_the_tables_hold_several_schemas",)

    def tables(self) -> Tables:
        self._tables = self._tables or _OneSchema()
        return self._tables


class _NoTransaction(MemoryTables):
    async def transaction(self, work: Callable[[Cursor], Awaitable[T]], *, lock: Iterable[str] = ()) -> T:
        return await self.read(work)


class RollsNoTableBack(BrokenStore):
    red = ("test_a_transaction_that_fails_changes_no_table",)

    def tables(self) -> Tables:
        self._tables = self._tables or _NoTransaction()
        return self._tables


class ForgetsTheRowsWhenClosed(BrokenStore):
    red = ("test_rows_of_tables_are_kept_while_the_store_is_closed",)

    async def close(self) -> None:
        await super().close()
        self._tables = None


class LeavesAThreadOfTheTables(BrokenStore):
    red = ("test_no_thread_of_the_tables_is_left_after_close",)

    def tables(self) -> Tables:
        if self._tables is None:
            threading.Thread(target=threading.Event().wait, args=(60,), daemon=True).start()
        return super().tables()
