"""What is done to one run. Blocking; called from the store's threads."""

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence

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
from holdfast.checkpoint.journal import Entry, Write
from holdfast.checkpoint.lifecycle import OVER, Status
from holdfast.checkpoint.record import Ending, NewRun
from holdfast.checkpoint.stores.file.disk import Disk
from holdfast.checkpoint.stores.file.holds import Holds
from holdfast.checkpoint.stores.file.layout import Layout
from holdfast.checkpoint.stores.file.lines import Origin
from holdfast.checkpoint.stores.file.locks import LockFile, LockHeld, locked, mark_in, read_mark
from holdfast.checkpoint.stores.file.names import file_name
from holdfast.checkpoint.stores.file.reading import Damaged, Head, read_head, read_journal
from holdfast.checkpoint.stores.file.tokens import Tokens
from holdfast.checkpoint.stores.file.transitions import claim_of, extended, queued, settled, taken, written
from holdfast.checkpoint.stores.file.workers import Workers
from holdfast.checkpoint.stores.file.writing import Journal, new_journal_id, publish, whole_journal, withdraw
from holdfast.clock import Clock


class Runs:
    """The runs of one folder, each changed under its own lock."""

    def __init__(self, layout: Layout, disk: Disk, workers: Workers, *, clock: Clock, patience: float) -> None:
        self._layout, self._disk, self._workers = layout, disk, workers
        self._clock, self._patience = clock, patience
        self._holds = Holds()
        self._tokens = Tokens(layout.tokens, disk, patience=patience, largest_in_use=self._largest_token)

    # -- reading, without a lock --------------------------------------------------------------------------------

    def head(self, name: str) -> Head:
        """Raises:
        FileNotFoundError: there is no such run.
        Damaged: what is there cannot be read.
        """
        # First the mark: a write that ends while we read is behind it then.
        mark = read_mark(self._layout.lock(name))
        with _opened(os.open(self._layout.journal(name), os.O_RDONLY)) as fd:
            return _checked(name, read_head(fd, mark))

    def load(self, run_id: str, after: int) -> tuple[Head, Sequence[Entry]]:
        name = file_name(run_id)
        mark = read_mark(self._layout.lock(name))
        try:
            with _opened(os.open(self._layout.journal(name), os.O_RDONLY)) as fd:
                head, entries = read_journal(fd, mark)
            _checked(name, head)
        except FileNotFoundError:
            raise RunNotFound(run_id) from None
        except Damaged as damage:
            raise RunDamaged(run_id, str(damage)) from damage
        first = head.state.next_seq - len(entries)
        return head, tuple(entries[max(0, after + 1 - first) :])

    # -- under the claim ----------------------------------------------------------------------------------------

    def create(self, run: NewRun, worker_id: str | None) -> Claim | None:
        name = file_name(run.run_id)
        with self._locked(name, run.run_id) as lock:
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
            if not journal.take_again(patience=self._patience):
                return False
            _check_claim(claim, journal.head)
            self._write(journal, write)
            stays_open = journal.keep_open()
        except LockHeld:
            raise self._unavailable(claim.run_id) from None
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

    # -- from outside -------------------------------------------------------------------------------------------

    def claim(self, run_id: str, worker_id: str, statuses: Collection[Status], *, steal: bool) -> Claim:
        with self._open(run_id) as journal:
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
            with self._open(run_id, patience=0) as journal:
                state = journal.head.state
                waiting = state.status in (Status.QUEUED, Status.INTERRUPTED, Status.RUNNING)
                if not waiting or self._driven(journal.head) or state.not_before > self._clock.now():
                    return None
                return self._take(journal, worker_id)
        except (RunNotFound, RunDamaged, LockHeld):
            return None

    def request_cancel(self, run_id: str) -> None:
        with self._open(run_id) as journal:
            state = journal.head.state
            if state.status not in OVER and not state.cancel_requested:
                self._note_cancel(file_name(run_id))
                journal.add(replace(state, cancel_requested=True), journal.head.progress)

    def remove(self, run_id: str, claim: Claim | None) -> None:
        name = file_name(run_id)
        self._holds.drop(name)
        if claim is not None:
            with self._open(run_id, lost=claim) as journal:
                if journal.head.state.token != claim.token:
                    raise ClaimLost(run_id, claim.token, journal.head.state.token)
                self._drop(name, run_id, set())
            return
        with contextlib.suppress(RunNotFound), self._locked(name, run_id, must_exist=True):
            # What is damaged may be removed by whoever names it.
            with contextlib.suppress(Damaged):
                head = self.head(name)
                if self._driven(head) and head.state.owner is not None:
                    raise RunBusy(run_id, head.state.owner)
            self._drop(name, run_id, set())

    def remove_expired(self, run_id: str) -> bool:
        """Remove the run unless it is not over any more."""
        try:
            with self._open(run_id) as journal:
                state = journal.head.state
                if state.status not in OVER or state.expires_at is None or state.expires_at > self._clock.now():
                    return False
                self._drop(file_name(run_id), run_id, set())
        except (RunNotFound, RunDamaged):
            return False
        return True

    # -- within -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(
        self, name: str, run_id: str, *, patience: float | None = None, must_exist: bool = False
    ) -> Iterator[LockFile]:
        """The lock on a run, which may not be there yet.

        Raises:
            LockHeld: only if `patience` is given.
            RunNotFound: only if it must exist.
        """
        path = self._layout.journal(name)
        if must_exist and not os.path.exists(path):
            raise RunNotFound(run_id)
        try:
            with locked(
                self._layout.lock(name), self._disk, patience=self._patience if patience is None else patience
            ) as lock:
                try:
                    if must_exist and not os.path.exists(path):
                        raise RunNotFound(run_id)
                    yield lock
                finally:
                    if not os.path.exists(path):
                        # Whoever waits for it finds that it is gone and takes the next one.
                        self._disk.unlink(self._layout.lock(name))
        except LockHeld:
            if patience is not None:
                raise
            raise self._unavailable(run_id) from None

    def _unavailable(self, run_id: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"run {run_id}: another process has been changing it for {self._patience:g} s and may be stopped: "
            "see to that process, then try again"
        )

    @contextlib.contextmanager
    def _open(self, run_id: str, *, patience: float | None = None, lost: Claim | None = None) -> Iterator[Journal]:
        """The journal of a run, under its lock.

        Raises:
            RunNotFound: there is none and no claim is `lost` by that.
            ClaimLost: there is none.
        """
        name = file_name(run_id)
        try:
            with self._locked(name, run_id, patience=patience, must_exist=True) as lock:
                mark = mark_in(lock.fd)
                fd = self._disk.open(self._layout.journal(name))
                try:
                    head = _checked(name, read_head(fd, mark))
                    yield Journal(self._disk, self._layout, name, fd=fd, lock=lock, head=head)
                finally:
                    if not lock.stays_open:
                        os.close(fd)
        except Damaged as damage:
            raise RunDamaged(run_id, str(damage)) from damage
        except RunNotFound:
            if lost is None:
                raise
            raise ClaimLost(run_id, lost.token, None) from None

    @contextlib.contextmanager
    def _held(self, claim: Claim) -> Iterator[Journal]:
        """The journal, if the claim is still the right to write to it."""
        with self._open(claim.run_id, lost=claim) as journal:
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

    def _drop(self, name: str, run_id: str, seen: set[str]) -> None:
        """Delete a run whose lock is held, after the runs it started: if this is cut short, the rest is still found."""
        seen.add(name)
        for child in self._layout.children_of(name):
            if child not in seen:
                self._drop_child(child, run_id, seen)
            self._disk.unlink(self._layout.child(name, child))
        withdraw(self._disk, self._layout, name)
        self._disk.unlink(self._layout.cancels / name)

    def _drop_child(self, name: str, parent_run_id: str, seen: set[str]) -> None:
        with contextlib.suppress(RunNotFound, Damaged, FileNotFoundError):
            head = self.head(name)
            # Of an earlier run of that name, if it is another's child now.
            if head.origin.parent_run_id == parent_run_id:
                with self._locked(name, head.origin.run_id, must_exist=True):
                    self._drop(name, head.origin.run_id, seen)

    def _note_child(self, parent: str, child: str) -> None:
        os.close(self._disk.open_or_create(self._layout.child(parent, child)))
        self._disk.sync_folder(self._layout.children)

    def _note_cancel(self, name: str) -> None:
        os.close(self._disk.open_or_create(self._layout.cancels / name))

    def _largest_token(self) -> int:
        """For a counter that was lost."""
        tokens = [0]
        for name in self._layout.run_names():
            with contextlib.suppress(FileNotFoundError, Damaged):
                tokens.append(self.head(name).state.token)
        return max(tokens)


@contextlib.contextmanager
def _opened(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _check_claim(claim: Claim, head: Head) -> None:
    if head.state.token != claim.token:
        raise ClaimLost(claim.run_id, claim.token, head.state.token)
    if head.state.status is not Status.RUNNING:
        raise ClaimLost(claim.run_id, claim.token, None)


def _checked(name: str, head: Head) -> Head:
    if file_name(head.origin.run_id) != name:
        raise Damaged(f"the file holds the run {head.origin.run_id}")
    return head
