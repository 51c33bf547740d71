"""Durable stores that break the durable part of the contract, each in one place."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import msgspec
from examples.snapshot_store import Contents, Run, SnapshotStore

from holdfast.checkpoint.errors import RunDamaged
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import Mail, Receipt, Release, RunStatus, StoredRun
from holdfast.checkpoint.store import END
from holdfast.checkpoint.workers import Claim, ProcessIdentity, WorkerHeartbeat, WorkerIdentity, is_process_alive
from holdfast.db.sqlite_tables import MemoryTables
from holdfast.db.tables import Tables

#: Between two transactions that should be one: by far the longest part of the call, so that the kill comes then.
TIME_TO_KILL = 0.5


class BrokenSnapshotStore(SnapshotStore):
    """A durable store to be broken in one place."""

    #: The tests of the suite that have to fail.
    red: ClassVar[tuple[str, ...]]


class IsNotMarkedDurable(BrokenSnapshotStore):
    red = ("test_the_store_is_marked_durable",)

    durable = False


class KeepsTablesInMemory(BrokenSnapshotStore):
    red = ("test_rows_of_tables_are_kept_over_reopening",)

    def tables(self) -> Tables:
        if not isinstance(self._tables, MemoryTables):
            self._tables = MemoryTables()
        return self._tables


class DropsTheLastEntryWhenOpened(BrokenSnapshotStore):
    red = (
        "test_all_runs_are_kept_over_reopening",
        "test_runs_continue_after_reopening",
        "test_any_sequence_of_calls_and_kills_matches_the_model",
    )

    async def open(self) -> None:
        await super().open()
        with self._transaction() as contents:
            for run in contents.runs.values():
                run.entries[-1:] = []
                run.checksums[-1:] = []


class ResetsTheTokenWhenOpened(BrokenSnapshotStore):
    red = ("test_tokens_grow_over_removal_and_reopening",)

    async def open(self) -> None:
        await super().open()
        with self._transaction() as contents:
            contents.token = 0


class ForgetsTimesWhenOpened(BrokenSnapshotStore):
    red = ("test_backoff_and_expiry_hold_over_reopening",)

    async def open(self) -> None:
        await super().open()
        with self._transaction() as contents:
            for run in contents.runs.values():
                created_at = run.record.created_at
                run.update(not_before=created_at, expires_at=created_at if run.record.is_terminal else None)


class ForgetsMailWhenOpened(BrokenSnapshotStore):
    """As a store does that keeps mail in memory."""

    red = ("test_mail_and_waits_are_kept_over_reopening",)

    async def open(self) -> None:
        await super().open()
        with self._transaction() as contents:
            for run in contents.runs.values():
                run.consumed = {}


class AcknowledgesWritesAfterClose(BrokenSnapshotStore):
    """A write that waits while the store is closed is acknowledged and lost."""

    red = ("test_closing_finishes_the_running_writes",)

    _writes = 0

    async def append(self, claim: Claim, write: Append) -> None:
        self._writes += 1
        if self._writes > 1:
            await asyncio.sleep(0.01)
        if self._is_open:
            await super().append(claim, write)


class NeverReadsTheFileAgain(BrokenSnapshotStore):
    """Two stores at one location do not see each other's writes."""

    red = (
        "test_two_stores_at_one_location_see_the_same_runs",
        "test_a_cancel_reaches_the_worker_at_another_store",
        "test_mail_reaches_the_worker_at_another_store",
        "test_processes_write_to_their_runs_concurrently",
        "test_of_many_processes_one_creates_an_id",
        "test_a_stopped_process_writes_nothing_after_its_run_was_stolen",
    )

    _contents: Contents | None = None

    def _read(self) -> Contents:
        if self._contents is None:
            self._contents = super()._read()
        return self._contents


class CachesTheRunsItWrites(BrokenSnapshotStore):
    """Trusts its cache of a run as long as it holds the newest claim that it knows of."""

    red = (
        "test_two_stores_append_in_turn_under_one_claim",
        "test_two_stores_rewrite_in_turn_under_one_claim",
        "test_a_run_that_another_store_removed_or_replaced_is_lost",
    )

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._cached: dict[str, Run] = {}

    async def append(self, claim: Claim, write: Append) -> None:
        with self._transaction() as contents:
            run = self._cached.setdefault(claim.run_id, contents.runs.get(claim.run_id) or contents.get_claimed(claim))
            contents.runs[claim.run_id] = run
            if run.record.token != claim.token:
                run = self._cached[claim.run_id] = contents.get_claimed(claim)
            if write.rewrite:
                run.clear()
            run.append(write.entries)
            run.update(progress=write.progress)


class KnowsOnlyTheMailItPosted(BrokenSnapshotStore):
    red = ("test_no_expiry_is_recorded_over_mail_that_was_accepted_before",)

    async def append(self, claim: Claim, write: Append) -> None:
        await super().append(claim, msgspec.structs.replace(write, unless_mail=()))


class NotifiesOnlyItself(BrokenSnapshotStore):
    red = (
        "test_a_change_ends_the_wait_at_another_store",
        "test_a_change_ends_the_wait_in_another_process",
    )

    _own_changes = 0

    def _write(self, contents: Contents) -> None:
        self._own_changes += 1
        super()._write(contents)

    async def wait_for_change(self, timeout: timedelta) -> bool:
        before, deadline = self._own_changes, time.monotonic() + timeout.total_seconds()
        while time.monotonic() < deadline:
            await asyncio.sleep(0.01)
            if self._own_changes != before:
                return True
        return False


class SendsHeartbeatsForDeregisteredWorkers(BrokenSnapshotStore):
    """A late heartbeat registers the worker again."""

    red = ("test_a_deregistered_worker_stays_dead_after_a_heartbeat",)

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._heartbeat: asyncio.Task[None] | None = None
        self._workers: dict[str, WorkerIdentity] = {}

    async def register_worker(self, worker: WorkerIdentity) -> None:
        await super().register_worker(worker)
        self._workers[worker.worker_id] = worker
        if self._heartbeat is None:
            self._heartbeat = asyncio.create_task(self._send_heartbeats())

    async def _send_heartbeats(self) -> None:
        while self._is_open:
            await asyncio.sleep(0.05)
            with self._transaction() as contents:
                contents.workers |= self._workers

    async def close(self) -> None:
        await super().close()
        if self._heartbeat is not None:
            self._heartbeat.cancel()


class KeepsAgentsInMemory(BrokenSnapshotStore):
    red = ("test_a_worker_keeps_its_agents_over_a_heartbeat",)

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._own: dict[str, WorkerIdentity] = {}

    async def register_worker(self, worker: WorkerIdentity) -> None:
        await super().register_worker(msgspec.structs.replace(worker, agents=()))
        self._own[worker.worker_id] = worker

    async def list_workers(self) -> Sequence[WorkerHeartbeat]:
        listed = await super().list_workers()
        return [
            msgspec.structs.replace(each, worker=self._own.get(each.worker.worker_id, each.worker)) for each in listed
        ]


class DeregistersWorkersWhenClosed(BrokenSnapshotStore):
    red = ("test_a_worker_keeps_its_claims_when_its_store_is_closed",)

    async def close(self) -> None:
        if self._is_open:
            with self._transaction() as contents:
                contents.workers.clear()
        await super().close()


class KeepsNoChecksums(BrokenSnapshotStore):
    red = ("test_a_damaged_run_is_reported_and_affects_no_other",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        run = self._read().get(run_id)
        return StoredRun(record=run.record, entries=[entry for entry in run.entries if entry.seq > after])


class DeletesDamagedRuns(BrokenSnapshotStore):
    red = ("test_a_damaged_run_is_reported_and_affects_no_other",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        try:
            return await super().load(run_id, after=after)
        except RunDamaged:
            await self.remove(run_id)
            raise


class OpensOnlyWithoutDamage(BrokenSnapshotStore):
    """One damaged run makes all others unreadable."""

    red = ("test_a_damaged_run_is_reported_and_affects_no_other",)

    async def open(self) -> None:
        await super().open()
        for run_id in self._read().runs:
            await self.load(run_id)


class TakesNoLock(BrokenSnapshotStore):
    """Without a lock between processes, one overwrites what the other has written."""

    red = (
        "test_of_many_processes_one_wins_each_claim",
        "test_many_processes_claim_every_run_once",
        "test_processes_write_to_their_runs_concurrently",
        "test_processes_that_create_and_remove_one_id_never_share_it",
    )

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        yield

    def _write(self, contents: Contents) -> None:
        time.sleep(0.002)
        super()._write(contents)

    def _replace_file(self, packed: bytes) -> None:
        # The temporary file must not be shared, or the processes fail before they overwrite anything.
        self._path, path = self._path.with_suffix(f".{time.monotonic_ns()}"), self._path
        self._path.write_bytes(packed)
        self._path.rename(path)
        self._path = path


class CountsTokensInEachProcess(BrokenSnapshotStore):
    red = ("test_processes_that_create_and_remove_one_id_never_share_it",)

    _token = 0

    def _read(self) -> Contents:
        contents = super()._read()
        contents.token = self._token
        return contents

    def _write(self, contents: Contents) -> None:
        self._token = contents.token
        super()._write(contents)


class AcknowledgesTooEarly(BrokenSnapshotStore):
    """Keeps some writes in memory and writes them later."""

    red = ("test_a_kill_during_a_write_loses_no_acknowledged_write_and_leaves_none_half_written",)

    _acknowledged = 0
    _contents: Contents | None = None

    def _read(self) -> Contents:
        if self._acknowledged == 0 or self._contents is None:
            self._contents = super()._read()
        return self._contents

    async def append(self, claim: Claim, write: Append) -> None:
        self._acknowledged = (self._acknowledged + 1) % 3
        await super().append(claim, write)

    def _write(self, contents: Contents) -> None:
        if self._acknowledged == 0:
            super()._write(contents)


class RewritesInTwoTransactions(BrokenSnapshotStore):
    """Between the two the journal is empty."""

    red = (
        "test_a_load_while_another_process_writes_is_consistent",
        "test_a_kill_during_a_call_leaves_its_whole_effect_or_none[rewrite]",
    )

    async def append(self, claim: Claim, write: Append) -> None:
        if write.rewrite:
            await super().append(claim, msgspec.structs.replace(write, entries=()))
            await asyncio.sleep(TIME_TO_KILL)
        await super().append(claim, msgspec.structs.replace(write, rewrite=False))


class WritesInPlace(BrokenSnapshotStore):
    """A kill in the middle of a write leaves half a file."""

    red = ("test_a_kill_during_a_write_loses_no_acknowledged_write_and_leaves_none_half_written",)

    def _replace_file(self, packed: bytes) -> None:
        with self._path.open("wb", buffering=0) as file:
            half = len(packed) // 2
            file.write(packed[:half])
            time.sleep(TIME_TO_KILL / 20)
            file.write(packed[half:])


class ReleasesInTwoTransactions(BrokenSnapshotStore):
    """A kill between the two leaves a terminal run without its last entries."""

    red = ("test_a_kill_during_a_call_leaves_its_whole_effect_or_none[release]",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, msgspec.structs.replace(release, entries=()))
        await asyncio.sleep(TIME_TO_KILL)
        with self._transaction() as contents:
            contents.runs[claim.run_id].append(release.entries)


class WakesInASecondTransaction(BrokenSnapshotStore):
    """A kill between the two leaves a waiting run with the mail that it waits for."""

    red = ("test_a_kill_during_a_call_leaves_its_whole_effect_or_none[post]",)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        with self._transaction() as contents:
            wake_on = contents.get(run_id).record.wake_on
            contents.get(run_id).update(wake_on=())
        receipt = await super().post(run_id, mail)
        with self._transaction() as contents:
            contents.get(run_id).update(wake_on=wake_on)
        await asyncio.sleep(TIME_TO_KILL)
        with self._transaction() as contents:
            if mail.topic in wake_on:
                contents.get(run_id).update(status=RunStatus.INTERRUPTED, wake_on=())
        return receipt


class ConsumesInASecondTransaction(BrokenSnapshotStore):
    """A kill between the two leaves mail unread that an entry has used."""

    red = ("test_a_kill_during_a_call_leaves_its_whole_effect_or_none[append]",)

    async def append(self, claim: Claim, write: Append) -> None:
        await super().append(claim, msgspec.structs.replace(write, consumed=()))
        await asyncio.sleep(TIME_TO_KILL)
        with self._transaction() as contents:
            contents.get_claimed(claim).consume(write.consumed)


class WaitsWithoutLookingAtTheMail(BrokenSnapshotStore):
    """Mail that comes between the last look and the wait does not wake the run."""

    red = ("test_mail_that_processes_post_while_others_wait_for_it_is_consumed_once",)

    async def release(self, claim: Claim, release: Release) -> None:
        for _ in range(1000 if release.wake_on else 0):
            if (await self.load(claim.run_id, after=END)).mail:
                break
            await asyncio.sleep(0.001)
        await super().release(claim, msgspec.structs.replace(release, wake_on=()))
        with self._transaction() as contents:
            contents.get(claim.run_id).update(wake_on=release.wake_on)


class TakesAllProcessesForAlive(BrokenSnapshotStore):
    red = (
        "test_the_runs_of_a_killed_process_are_claimable_at_once",
        "test_the_runs_of_an_exited_process_are_claimable",
    )

    def _is_alive(self, process: ProcessIdentity) -> bool:
        return True


class ComparesOnlyThePid(BrokenSnapshotStore):
    red = ("test_a_recycled_pid_is_another_process",)

    def _is_alive(self, process: ProcessIdentity) -> bool:
        return Path(f"/proc/{process.pid}").exists()


class TakesOtherHostsForDead(BrokenSnapshotStore):
    red = ("test_a_worker_on_another_host_is_not_dead_at_once",)

    def _is_alive(self, process: ProcessIdentity) -> bool:
        return is_process_alive(process) is True


class TakesStoppedProcessesForDead(BrokenSnapshotStore):
    """As a heartbeat does: a worker that is paused loses its runs."""

    red = ("test_a_stopped_process_writes_nothing_after_its_run_was_stolen",)

    def _is_alive(self, process: ProcessIdentity) -> bool:
        return super()._is_alive(process) and " T " not in Path(f"/proc/{process.pid}/stat").read_text()
