"""What is done to one run. Blocking; called from the store's threads."""

import contextlib
import os
from collections.abc import Collection, Iterator

from msgspec.structs import replace

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import (
    ClaimLost,
    RunBusy,
    RunDamaged,
    RunExists,
    RunNotClaimable,
    RunNotFound,
    StoreUnavailable,
)
from holdfast.checkpoint.journal import Write
from holdfast.checkpoint.lifecycle import OVER, Status
from holdfast.checkpoint.record import Ending, NewRun
from holdfast.checkpoint.stores.file.access import Access
from holdfast.checkpoint.stores.file.disk import Disk, of_one_file
from holdfast.checkpoint.stores.file.holds import Holds
from holdfast.checkpoint.stores.file.layout import Layout
from holdfast.checkpoint.stores.file.lines import Origin
from holdfast.checkpoint.stores.file.locks import LockHeld
from holdfast.checkpoint.stores.file.names import file_name
from holdfast.checkpoint.stores.file.reading import Damaged, Head
from holdfast.checkpoint.stores.file.removal import Removals
from holdfast.checkpoint.stores.file.tokens import Tokens
from holdfast.checkpoint.stores.file.transitions import claim_of, extended, queued, settled, taken, written
from holdfast.checkpoint.stores.file.workers import Workers
from holdfast.checkpoint.stores.file.writing import Journal, new_journal_id, publish, whole_journal
from holdfast.clock import Clock


class Runs:
    """The runs of one folder, each changed under its own lock."""

    def __init__(self, layout: Layout, disk: Disk, access: Access, workers: Workers, *, clock: Clock) -> None:
        self._layout, self._disk, self._access = layout, disk, access
        self._workers, self._clock = workers, clock
        self._holds = Holds()
        self._removals = Removals(layout, disk, access, dropped=self._holds.drop)
        self._tokens = Tokens(layout.tokens, disk, patience=access.patience, largest_in_use=self._largest_token)

    # -- under the claim ----------------------------------------------------------------------------------------

    def create(self, run: NewRun, worker_id: str | None) -> Claim | None:
        name = file_name(run.run_id)
        with self._access.locked(name, run.run_id) as lock:
            self._removals.keep_promise(name)
            if os.path.exists(self._layout.journal(name)):
                raise RunExists(run.run_id)
            now = self._clock.now()
            state = extended(queued(now), run.entries)
            if worker_id is not None:
                state = taken(state, worker_id, self._tokens.next(above=0), now)
            if run.parent_run_id is not None:
                self._note_child(file_name(run.parent_run_id), name)
            origin = Origin(
                run_id=run.run_id,
                agent_name=run.agent_name,
                caller_id=run.caller_id,
                parent_run_id=run.parent_run_id,
                created_at=now,
                journal=new_journal_id(),
            )
            data = whole_journal(origin, run.meta, state, run.progress, run.entries)
            publish(self._disk, self._layout, name, origin, data, lock)
        return None if worker_id is None else claim_of(run.run_id, state)

    def append(self, claim: Claim, write: Write) -> None:
        name = file_name(claim.run_id)
        journal = self._holds.take(name)
        if journal is not None and self._append_again(journal, claim, write):
            return
        with self._held(claim) as journal:
            self._write(journal, write)
            stays_open = journal.keep_open()
        if stays_open:
            self._holds.bring_back(name, journal)

    def _append_again(self, journal: Journal, claim: Claim, write: Write) -> bool:
        """False, and nothing is done, if the journal is not any more what it was after our last save."""
        stays_open = False
        try:
            if not journal.take_again(patience=self._access.patience):
                return False
            _check_claim(claim, journal.head)
            self._write(journal, write)
            stays_open = journal.keep_open()
        except LockHeld:
            raise self._access.unavailable(claim.run_id) from None
        finally:
            journal.let_go()
        if stays_open:
            self._holds.bring_back(file_name(claim.run_id), journal)
        return True

    def _write(self, journal: Journal, write: Write) -> None:
        state = written(journal.head.state, write, self._clock.now())
        if write.replace:
            journal.replace(state, write.progress, write.entries)
        else:
            journal.add(state, write.progress, write.entries)

    def settle(self, claim: Claim, ending: Ending) -> None:
        self._holds.drop(file_name(claim.run_id))
        with self._held(claim) as journal:
            head = journal.head
            progress = head.progress if ending.progress is None else ending.progress
            journal.add(settled(head.state, ending, self._clock.now()), progress, ending.entries)
            if head.state.cancel_requested and ending.status in OVER:
                self._disk.unlink(self._layout.cancels / file_name(claim.run_id))

    def close(self) -> None:
        """Let go of the files that are kept open."""
        self._holds.close()

    def keep_promises(self) -> Collection[str]:
        """Finish the removals that others began and did not live to finish; the names of those that cannot be now."""
        return self._removals.keep_promises()

    # -- from outside -------------------------------------------------------------------------------------------

    def claim(self, run_id: str, worker_id: str, statuses: Collection[Status], *, steal: bool) -> Claim:
        if file_name(run_id) in self.keep_promises():
            raise StoreUnavailable(f"run {run_id}: its removal was begun and cannot be finished now: remove it again")
        with self._access.open(run_id) as journal:
            state = journal.head.state
            driven = self._driven(journal.head)
            if driven and state.owner is not None and not steal:
                raise RunBusy(run_id, state.owner)
            counts_as = {state.status}
            if state.status is Status.RUNNING and not driven:
                counts_as.add(Status.INTERRUPTED)
            if counts_as.isdisjoint(statuses):
                raise RunNotClaimable(run_id, state.status, state.reason)
            return self._take(journal, worker_id)

    def claim_if_waiting(self, run_id: str, worker_id: str) -> Claim | None:
        """Take the run if nobody drives it and its backoff is over; `None` if not, or if somebody is at it now."""
        try:
            with self._access.open(run_id, patience=0) as journal:
                state = journal.head.state
                waiting = state.status in (Status.QUEUED, Status.INTERRUPTED, Status.RUNNING)
                if not waiting or self._driven(journal.head) or state.not_before > self._clock.now():
                    return None
                return self._take(journal, worker_id)
        except (RunNotFound, RunDamaged, LockHeld):
            return None

    def request_cancel(self, run_id: str) -> None:
        with self._access.open(run_id) as journal:
            state = journal.head.state
            if state.status not in OVER and not state.cancel_requested:
                self._note_cancel(file_name(run_id))
                journal.add(replace(state, cancel_requested=True), journal.head.progress)

    def remove(self, run_id: str, claim: Claim | None) -> None:
        name = file_name(run_id)
        self._holds.drop(name)
        if claim is not None:
            with self._access.open(run_id, lost=claim) as journal:
                if journal.head.state.token != claim.token:
                    raise ClaimLost(run_id, claim.token, journal.head.state.token)
                self._removals.remove(name, run_id, journal.head)
            return
        with contextlib.suppress(RunNotFound), self._access.locked(name, run_id, must_exist=True):
            # What is damaged may be removed by whoever names it.
            head: Head | None = None
            with contextlib.suppress(Damaged):
                head = self._access.head(name)
            if head is not None and self._driven(head) and head.state.owner is not None:
                raise RunBusy(run_id, head.state.owner)
            self._removals.remove(name, run_id, head)

    def remove_expired(self, run_id: str) -> bool:
        """Remove the run unless it is not over any more, or somebody is at it."""
        try:
            with self._access.open(run_id) as journal:
                state = journal.head.state
                if state.status not in OVER or state.expires_at is None or state.expires_at > self._clock.now():
                    return False
                self._removals.remove(file_name(run_id), run_id, journal.head)
        except (RunNotFound, RunDamaged, StoreUnavailable):
            return False
        return True

    # -- within -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _held(self, claim: Claim) -> Iterator[Journal]:
        """The journal, if the claim is still the right to write to it."""
        with self._access.open(claim.run_id, lost=claim) as journal:
            _check_claim(claim, journal.head)
            yield journal

    def _driven(self, head: Head) -> bool:
        state = head.state
        return state.status is Status.RUNNING and state.owner is not None and self._workers.alive(state.owner)

    def _take(self, journal: Journal, worker_id: str) -> Claim:
        head = journal.head
        token = self._tokens.next(above=head.state.token)
        state = taken(head.state, worker_id, token, self._clock.now())
        if state.cancel_requested:
            # A power cut may have lost the note.
            self._note_cancel(file_name(head.origin.run_id))
        journal.add(state, head.progress)
        return claim_of(head.origin.run_id, state)

    def _note_child(self, parent: str, child: str) -> None:
        os.close(self._disk.open_or_create(self._layout.child(parent, child)))
        self._disk.sync_folder(self._layout.children)

    def _note_cancel(self, name: str) -> None:
        os.close(self._disk.open_or_create(self._layout.cancels / name))

    def _largest_token(self) -> int:
        """For a counter that was lost."""
        tokens = [0]
        for name in self._layout.run_names():
            try:
                tokens.append(self._access.head(name).state.token)
            except (FileNotFoundError, Damaged):
                continue
            except OSError as error:
                if not of_one_file(error):
                    raise
        return max(tokens)


def _check_claim(claim: Claim, head: Head) -> None:
    if head.state.token != claim.token:
        raise ClaimLost(claim.run_id, claim.token, head.state.token)
    if head.state.status is not Status.RUNNING:
        raise ClaimLost(claim.run_id, claim.token, None)
