"""Stores that say they are durable and break what that means."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import msgspec
from tests.stores.snapshot_store import SnapshotStore

from holdfast.checkpoint.claim import Claim, is_process_alive
from holdfast.checkpoint.errors import RunDamaged
from holdfast.checkpoint.journal import Append, Entry
from holdfast.checkpoint.record import TERMINAL_STATUSES, Release, StoredRun
from holdfast.stores.memory import MemoryStore


class BrokenSnapshotStore(SnapshotStore):
    """A durable store to be broken in one place."""

    #: The tests of the suite that have to fail.
    red: ClassVar[tuple[str, ...]]


class DoesNotSayIt(BrokenSnapshotStore):
    red = ("test_the_store_says_that_it_is_durable",)

    durable = False


class DropsTheLastEntryWhenItIsOpened(BrokenSnapshotStore):
    red = (
        "test_everything_is_there_after_reopening",
        "test_runs_go_on_after_reopening",
        "test_any_sequence_of_calls_and_crashes_gives_what_a_plain_model_gives",
    )

    async def open(self) -> None:
        await super().open()
        with self.exclusive():
            for run_id, run in self._runs.items():
                run.journal[-1:] = []
                self.update_checksums(run_id)


class CountsTokensAnewWhenItIsOpened(BrokenSnapshotStore):
    red = ("test_tokens_grow_over_removal_and_reopening",)

    async def open(self) -> None:
        await super().open()
        with self.exclusive():
            self._token = 0


class ForgetsTimesWhenItIsOpened(BrokenSnapshotStore):
    red = ("test_backoff_and_expiry_hold_over_reopening",)

    async def open(self) -> None:
        await super().open()
        with self.exclusive():
            for run in self._runs.values():
                run.not_before = run.created_at
                run.expires_at = run.created_at if run.status in TERMINAL_STATUSES else None


class AcknowledgesWhatItDropsAtTheEnd(BrokenSnapshotStore):
    """A write that waits while the store is closed is acknowledged and gone."""

    red = ("test_closing_finishes_the_writes_under_way",)

    _writes = 0

    async def append(self, claim: Claim, write: Append) -> None:
        self._writes += 1
        if self._writes > 1:
            await asyncio.sleep(0.01)
        if self._is_open:
            await super().append(claim, write)


class TrustsItsMemory(BrokenSnapshotStore):
    """Reads the file when it is opened, and not again: two stores on one place know nothing of each other."""

    red = (
        "test_two_stores_on_one_place_see_the_same_runs",
        "test_a_cancel_reaches_the_worker_at_another_store",
        "test_processes_write_to_their_runs_at_once",
        "test_of_many_processes_one_creates_an_id",
        "test_a_process_that_stood_still_writes_nothing_after_its_run_was_taken",
    )

    _read = False

    def read(self) -> None:
        if not self._read:
            self._read = True
            super().read()
        self._workers = {worker_id for worker_id in self._processes if self.is_worker_alive(worker_id)}


class WakesOnlyItself(BrokenSnapshotStore):
    red = (
        "test_a_change_wakes_who_waits_at_another_store",
        "test_a_change_wakes_who_waits_in_another_process",
    )

    async def wait_for_change(self, timeout: timedelta) -> bool:
        return await MemoryStore.wait_for_change(self, timeout)


class KeepsNoChecksums(BrokenSnapshotStore):
    red = ("test_a_damaged_run_is_named_left_untouched_and_harms_no_other",)

    def check(self, run_id: str, journal: Sequence[Entry]) -> None:
        pass


class DeletesWhatIsDamaged(BrokenSnapshotStore):
    red = ("test_a_damaged_run_is_named_left_untouched_and_harms_no_other",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        try:
            return await super().load(run_id, after=after)
        except RunDamaged:
            await self.remove(run_id)
            raise


class OpensOnlyWhatIsWhole(BrokenSnapshotStore):
    """One damaged run keeps all others from being read."""

    red = ("test_a_damaged_run_is_named_left_untouched_and_harms_no_other",)

    async def open(self) -> None:
        await super().open()
        with self.exclusive():
            for run_id, run in self._runs.items():
                self.check(run_id, run.journal)


class TakesNoLock(BrokenSnapshotStore):
    """No lock between processes: what one writes, another overwrites."""

    red = (
        "test_of_many_processes_one_wins_each_claim",
        "test_many_processes_take_every_run_once",
        "test_processes_write_to_their_runs_at_once",
    )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        yield

    def write(self) -> None:
        time.sleep(0.002)
        super().write()


class AcknowledgesTooEarly(BrokenSnapshotStore):
    """Keeps some writes in memory for a while, as if the process were sure to live."""

    red = ("test_a_kill_in_mid_write_loses_nothing_acknowledged_and_leaves_nothing_half_written",)

    _acknowledged = 0

    def read(self) -> None:
        if self._acknowledged == 0:
            super().read()

    async def append(self, claim: Claim, write: Append) -> None:
        self._acknowledged = (self._acknowledged + 1) % 3
        await super().append(claim, write)

    def write(self) -> None:
        if self._acknowledged == 0:
            super().write()


class RewritesInTwoTurns(BrokenSnapshotStore):
    """Between the two the old entries are gone and the new ones are not there."""

    red = (
        "test_what_is_loaded_while_another_process_writes_is_of_one_moment",
        "test_a_kill_in_the_middle_of_a_call_leaves_all_of_it_or_nothing[rewrite]",
    )

    async def append(self, claim: Claim, write: Append) -> None:
        if write.rewrite:
            await super().append(claim, msgspec.structs.replace(write, entries=()))
            await asyncio.sleep(0.05)
        await super().append(claim, msgspec.structs.replace(write, rewrite=False))


class WritesInPlace(BrokenSnapshotStore):
    """A kill in the middle leaves half a file."""

    red = ("test_a_kill_in_mid_write_loses_nothing_acknowledged_and_leaves_nothing_half_written",)

    def replace(self, packed: bytes) -> None:
        with self.path.open("wb", buffering=0) as file:
            for start in range(0, len(packed), 4096):
                file.write(packed[start : start + 4096])


class ReleasesInTwoWrites(BrokenSnapshotStore):
    """Killed between the two, the run is over and its last entries are not there."""

    red = ("test_a_kill_in_the_middle_of_a_call_leaves_all_of_it_or_nothing[release]",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, msgspec.structs.replace(release, entries=()))
        await asyncio.sleep(0.05)
        with self.exclusive():
            run = self._runs[claim.run_id]
            run.check_sequence(release.entries)
            run.extend(release.entries)
            self.update_checksums(claim.run_id)


class TakesEverybodyForAlive(BrokenSnapshotStore):
    red = (
        "test_a_killed_processs_runs_are_free_at_once",
        "test_a_process_that_ended_well_leaves_its_runs_free",
    )

    def is_worker_alive(self, worker_id: str) -> bool:
        return True


class TrustsThePid(BrokenSnapshotStore):
    red = ("test_a_recycled_pid_is_not_taken_for_the_old_process",)

    def is_worker_alive(self, worker_id: str) -> bool:
        return Path(f"/proc/{self._processes[worker_id].pid}").exists()


class TakesStrangersForDead(BrokenSnapshotStore):
    red = ("test_a_worker_on_another_host_is_not_dead_because_it_cannot_be_seen",)

    def is_worker_alive(self, worker_id: str) -> bool:
        return is_process_alive(self._processes[worker_id]) is True


class TakesWhoStandsStillForDead(BrokenSnapshotStore):
    """As a heartbeat does: a worker that is busy for long, or paused, loses its runs."""

    red = ("test_a_process_that_stood_still_writes_nothing_after_its_run_was_taken",)

    def is_worker_alive(self, worker_id: str) -> bool:
        return (
            super().is_worker_alive(worker_id)
            and " T " not in Path(f"/proc/{self._processes[worker_id].pid}/stat").read_text()
        )
