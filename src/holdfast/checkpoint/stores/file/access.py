"""The ways to one run's journal: to look at it, without a lock; to change it, under the lock of the run."""

import contextlib
import os
from collections.abc import Iterator, Sequence

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import ClaimLost, RunDamaged, RunNotFound, StoreUnavailable
from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.stores.file.disk import Disk
from holdfast.checkpoint.stores.file.layout import Layout
from holdfast.checkpoint.stores.file.locks import LockFile, LockHeld, locked, mark_in, read_mark
from holdfast.checkpoint.stores.file.names import file_name
from holdfast.checkpoint.stores.file.reading import Damaged, Head, read_head, read_journal
from holdfast.checkpoint.stores.file.refused import Refused
from holdfast.checkpoint.stores.file.writing import Journal


class Access:
    """To the journals of one folder. `patience`: how many seconds to wait for another process's lock."""

    def __init__(self, layout: Layout, disk: Disk, *, patience: float) -> None:
        self._layout, self._disk, self.patience = layout, disk, patience
        self._refused = Refused(disk)

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
        """The entries above `after`."""
        self.take_back_refused()
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

    def take_back_refused(self) -> None:
        """Before a look: what the disk did not let us take back when it refused a write, it may let us now."""
        for name in self._refused.names():
            try:
                with self.locked(name, name, patience=0, must_exist=True):
                    self._cut_refused(name)
            except RunNotFound:
                self._refused.forget(name)
            except (OSError, LockHeld):
                continue

    def _cut_refused(self, name: str) -> None:
        with _opened(self._disk.open(self._layout.journal(name))) as fd:
            self._refused.cut(name, fd)

    # -- changing, under the lock -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(
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
                self._layout.lock(name), self._disk, patience=self.patience if patience is None else patience
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
            raise self.unavailable(run_id) from None

    @contextlib.contextmanager
    def open(self, run_id: str, *, patience: float | None = None, lost: Claim | None = None) -> Iterator[Journal]:
        """The journal of a run, under its lock.

        Raises:
            RunNotFound: there is none and no claim is `lost` by that.
            ClaimLost: there is none.
        """
        name = file_name(run_id)
        try:
            with self.locked(name, run_id, patience=patience, must_exist=True) as lock:
                mark = mark_in(lock.fd)
                fd = self._disk.open(self._layout.journal(name))
                try:
                    self._refused.cut(name, fd)
                    head = _checked(name, read_head(fd, mark))
                    yield Journal(self._disk, self._layout, name, fd=fd, lock=lock, head=head, refused=self._refused)
                finally:
                    if not lock.stays_open:
                        os.close(fd)
        except Damaged as damage:
            raise RunDamaged(run_id, str(damage)) from damage
        except RunNotFound:
            if lost is None:
                raise
            raise ClaimLost(run_id, lost.token, None) from None

    def unavailable(self, run_id: str) -> StoreUnavailable:
        """The error for a lock that was not to be had."""
        return StoreUnavailable(
            f"run {run_id}: another process has been changing it for {self.patience:g} s and may be stopped: "
            "see to that process, then try again"
        )


@contextlib.contextmanager
def _opened(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _checked(name: str, head: Head) -> Head:
    if file_name(head.origin.run_id) != name:
        raise Damaged(f"the file holds the run {head.origin.run_id}")
    return head
