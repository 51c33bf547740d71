"""Stores that break the contract of writing and loading runs."""

import asyncio
import sqlite3
from datetime import UTC
from typing import Any

import msgspec
from tests.stores.broken.broken_store import BrokenStore

from holdfast.checkpoint.errors import ClaimLost, RunNotFound, StoreError
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import NewRun, RunRecord, StoredRun
from holdfast.checkpoint.store import END
from holdfast.checkpoint.workers import Claim
from holdfast.stores.memory_run import MemoryRun


class OverwritesExistingRuns(BrokenStore):
    red = ("test_an_id_that_exists_is_refused_and_keeps_its_run", "test_of_many_creators_of_one_id_one_wins")

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        self._runs.pop(run.run_id, None)
        return await super().create(run, worker_id=worker_id)


class LosesTheMeta(BrokenStore):
    red = ("test_a_created_run_loads_as_it_was_written",)

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        return await super().create(msgspec.structs.replace(run, info=b""), worker_id=worker_id)


class ClaimsNothingAtCreation(BrokenStore):
    red = ("test_a_run_created_for_a_worker_is_running_and_claimed",)

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        return await super().create(run)


class ClaimsEverythingAtCreation(BrokenStore):
    red = ("test_a_run_created_without_a_worker_is_queued_and_unclaimed",)

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        claim = await super().create(run, worker_id=worker_id or "a worker")
        return claim if worker_id else None


class ReturnsNaiveTimes(BrokenStore):
    red = ("test_times_are_aware_and_do_not_run_backwards",)

    def _make_record(self, run: MemoryRun) -> RunRecord:
        record = super()._make_record(run)
        created = record.created_at.astimezone(UTC).replace(tzinfo=None)
        return msgspec.structs.replace(record, created_at=created)


class ReturnsEntriesInReverse(BrokenStore):
    red = ("test_appended_entries_come_back_in_order",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id, after=after)
        return msgspec.structs.replace(stored, entries=tuple(reversed(stored.entries)))


class ForgetsKinds(BrokenStore):
    red = ("test_every_kind_of_entry_comes_back_as_that_kind",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id, after=after)
        entries = [msgspec.structs.replace(entry, kind=EntryKind.MESSAGE) for entry in stored.entries]
        return msgspec.structs.replace(stored, entries=entries)


class DecodesBodiesAsText(BrokenStore):
    red = ("test_bodies_are_opaque_bytes",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id, after=after)
        return msgspec.structs.replace(stored, entries=[_as_text(entry) for entry in stored.entries])


def _as_text(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, body=entry.body.decode(errors="replace").encode())


class AddsToTheProgress(BrokenStore):
    red = ("test_progress_is_replaced_as_a_whole",)

    async def append(self, claim: Claim, write: Append) -> None:
        progress = self._get_claimed_run(claim).progress + write.progress
        await super().append(claim, msgspec.structs.replace(write, progress=progress))


class SkipsWritesWithoutEntries(BrokenStore):
    red = (
        "test_a_write_without_entries_replaces_only_the_progress",
        "test_an_empty_write_is_a_write",
    )

    async def append(self, claim: Claim, write: Append) -> None:
        if write.entries:
            await super().append(claim, write)


class NeverClearsStrikes(BrokenStore):
    red = ("test_a_finished_step_clears_the_strikes_and_nothing_else_does",)

    async def append(self, claim: Claim, write: Append) -> None:
        await super().append(claim, msgspec.structs.replace(write, step_finished=False))


class ClearsStrikesWithEveryWrite(BrokenStore):
    """A partial step counts as progress, so a run that kills its host is never parked."""

    red = ("test_a_finished_step_clears_the_strikes_and_nothing_else_does",)

    async def append(self, claim: Claim, write: Append) -> None:
        await super().append(claim, msgspec.structs.replace(write, step_finished=True))


class AcceptsGaps(BrokenStore):
    red = ("test_entries_out_of_order_are_refused_and_change_nothing",)

    async def append(self, claim: Claim, write: Append) -> None:
        first = self._get_claimed_run(claim).next_seq
        entries = [msgspec.structs.replace(entry, seq=seq) for seq, entry in enumerate(write.entries, first)]
        await super().append(claim, msgspec.structs.replace(write, entries=entries))


class ChangesTheProgressOfARefusedWrite(BrokenStore):
    red = ("test_entries_out_of_order_are_refused_and_change_nothing",)

    async def append(self, claim: Claim, write: Append) -> None:
        self._get_claimed_run(claim).progress = write.progress + b"!"
        await super().append(claim, write)


class MixesUpRuns(BrokenStore):
    """Keeps the arguments of a call where the next call overwrites them."""

    red = ("test_writes_to_many_runs_at_once_stay_apart",)

    async def append(self, claim: Claim, write: Append) -> None:
        self._current = claim
        await asyncio.sleep(0)
        await super().append(self._current, write)


class FailsAllWritesOfABatch(BrokenStore):
    """Concurrent writes are one transaction, and one bad write fails all of them."""

    red = ("test_one_bad_write_among_many_fails_alone",)

    _failed = False

    async def append(self, claim: Claim, write: Append) -> None:
        if self._failed:
            raise StoreError("the batch was rolled back")
        try:
            await super().append(claim, write)
        except ClaimLost:
            self._failed = True
            raise


class AppendsInsteadOfRewriting(BrokenStore):
    red = (
        "test_a_rewrite_leaves_exactly_its_entries",
        "test_a_rewrite_may_leave_nothing",
        "test_load_after_an_entry_works_over_a_rewrite",
    )

    async def append(self, claim: Claim, write: Append) -> None:
        await super().append(claim, msgspec.structs.replace(write, rewrite=False))


class RestartsTheSequenceAfterARewrite(BrokenStore):
    red = ("test_a_rewritten_run_is_appended_to",)

    async def append(self, claim: Claim, write: Append) -> None:
        await super().append(claim, write)
        if write.rewrite:
            self._get_claimed_run(claim).next_seq = len(write.entries)


class RewritesInTwoSteps(BrokenStore):
    """Deletes the old entries first. A load in between finds neither the old journal nor the new one."""

    red = ("test_a_load_during_writes_is_consistent",)

    async def append(self, claim: Claim, write: Append) -> None:
        if write.rewrite:
            self._get_claimed_run(claim).journal[1:] = []
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await super().append(claim, write)


class LoadsEverything(BrokenStore):
    red = ("test_load_returns_the_entries_after_the_given_one",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        return await super().load(run_id)


class TakesSequenceNumbersForIndexes(BrokenStore):
    """Takes the sequence number of an entry for its index, which is right until the first rewrite."""

    red = ("test_load_after_an_entry_works_over_a_rewrite",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id)
        return msgspec.structs.replace(stored, entries=stored.entries[after + 1 :])


class ChangesTheRecordAtEachLoad(BrokenStore):
    red = ("test_loading_changes_nothing",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        self._get_run(run_id).updated_at = self._clock.now()
        return await super().load(run_id, after=after)


class LoadsUnknownRuns(BrokenStore):
    red = ("test_an_unknown_run_is_not_found",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        try:
            return await super().load(run_id, after=after)
        except RunNotFound:
            await self.create(NewRun(run_id=run_id, agent_name="", info=b"", progress=b"", entries=()))
            return await super().load(run_id, after=after)


class CachesRecords(BrokenStore):
    """Returns the record as it was at the first read."""

    red = ("test_get_record_returns_the_loaded_record",)

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._records: dict[str, RunRecord] = {}

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id, after=after)
        if after < END:
            return stored
        return msgspec.structs.replace(stored, record=self._records.setdefault(run_id, stored.record))


class ReturnsRecordsOfUnknownRuns(BrokenStore):
    red = ("test_the_record_of_an_unknown_run_is_not_found",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        known = run_id if run_id in self._runs or after < END else next(iter(self._runs), run_id)
        return await super().load(known, after=after)


class CallsWhatItCannotCommit(BrokenStore):
    red = ("test_a_function_that_the_store_cannot_call_is_refused",)

    async def transact(self, claim: Claim, function: Any, make_write: Any) -> Any:
        function(None)
        return await super().transact(claim, function, make_write)


class CommitsTwice(BrokenStore):
    """Has a database, and commits the writes of a function before its entry."""

    red = ("test_a_transaction_that_fails_leaves_nothing",)
    transactions = "sync"

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._database = sqlite3.connect(":memory:", check_same_thread=False)

    async def transact(self, claim: Claim, function: Any, make_write: Any) -> Any:
        value = function(self._database)
        await self.append(claim, make_write(value))
        return value


class ForgetsTheEntryOfATransaction(CommitsTwice):
    red = ("test_the_writes_of_a_function_commit_with_its_entry",)

    async def transact(self, claim: Claim, function: Any, make_write: Any) -> Any:
        return function(self._database)
