"""Removing a run together with the runs it started: all of them go, or none.

One file goes at once. Before more than one is deleted, a *promise* to do so is made safe in a file of its own; whoever
finds one that nobody is keeping keeps it: at the next opening, and whenever runs are claimed.
"""

import contextlib
import os
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path

import msgspec

from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.stores.file.access import Access
from holdfast.checkpoint.stores.file.disk import Disk
from holdfast.checkpoint.stores.file.layout import NOT_JSON, Layout, created
from holdfast.checkpoint.stores.file.locks import LockHeld
from holdfast.checkpoint.stores.file.names import file_name
from holdfast.checkpoint.stores.file.reading import Damaged, Head
from holdfast.checkpoint.stores.file.writing import withdraw


class _Promise(msgspec.Struct, frozen=True, kw_only=True):
    """This run will be removed, with those it started."""

    run_id: str
    #: Tells it from a later run with its id. `None` for one that cannot be read.
    created_at: datetime | None


class _Member(msgspec.Struct, frozen=True):
    """A run that goes because the run that started it goes."""

    name: str
    run_id: str
    #: `None` if its journal is gone already, and only what lies beside it may be there.
    created_at: datetime | None


_promise = msgspec.json.Decoder(_Promise)


class Removals:
    """Removes runs. `dropped` is told the name of each."""

    def __init__(self, layout: Layout, disk: Disk, access: Access, *, dropped: Callable[[str], None]) -> None:
        self._layout, self._disk, self._access = layout, disk, access
        self._dropped = dropped

    def remove(self, name: str, run_id: str, head: Head | None) -> None:
        """Remove a run whose lock is held, and the runs it started. Without a head, it is one that cannot be read.

        Raises:
            StoreUnavailable: another process does not let go of one of these. Either nothing was removed, or the
                promise is there to remove the rest.
        """
        family = self._started_by(name, {name})
        if any(member.created_at is not None for member in family):
            self._make_promise(_Promise(run_id=run_id, created_at=_born(head)), name)
            try:
                self._remove_family(name, head, family)
            except (StoreUnavailable, OSError):
                if self._started_by(name, {name}) == family:
                    with contextlib.suppress(OSError):
                        self._end_promise(name)  # nothing is gone yet: it can stay so
                raise
        else:
            withdraw(self._disk, self._layout, name)
            self._forget(name, head)

    def keep_promises(self) -> Collection[str]:
        """Finish what somebody began and did not live to finish. Returns the names of those that it cannot finish."""
        left = set()
        for name in self._promises():
            try:
                # Who holds the lock is removing it, or will look here before making it anew.
                with contextlib.suppress(LockHeld), self._access.locked(name, name, patience=0):
                    self.keep_promise(name)
            except OSError:
                left.add(name)
        return left

    def keep_promise(self, name: str) -> None:
        """As above, for one run, whose lock is held.

        Raises:
            LockHeld: somebody is at one of the runs that it started.
        """
        path = self._layout.removal(name)
        if not os.path.exists(path):
            return
        try:
            promise = _promise.decode(Path(path).read_bytes())
        except (FileNotFoundError, *NOT_JSON):
            return  # it has been kept, or what lies there is none of ours
        head = self._head(name)
        exists = os.path.exists(self._layout.journal(name))
        if exists and head is None and promise.created_at is not None:
            return  # it has been damaged since: nothing is deleted that cannot be told
        if exists and _born(head) != promise.created_at:
            self._end_promise(name)  # it was kept; a power cut brought it back
            return
        # Never waits: runs are claimed meanwhile. Somebody will come by again.
        self._remove_family(name, head, self._started_by(name, {name}), patience=0)

    def _promises(self) -> list[str]:
        try:
            return os.listdir(self._layout.removals)
        except FileNotFoundError:
            return []  # a folder of an older version that may only be read

    def _head(self, name: str) -> Head | None:
        with contextlib.suppress(FileNotFoundError, Damaged):
            return self._access.head(name)
        return None

    def _started_by(self, name: str, seen: set[str]) -> list[_Member]:
        """The runs that this one started, each after those that it started itself."""
        family: list[_Member] = []
        for child in self._layout.children_of(name):
            if child in seen:
                continue
            try:
                origin = self._access.head(child).origin
            except Damaged:
                continue
            except FileNotFoundError:
                # What it started may have been left by a power cut.
                family += [*self._started_by(child, {*seen, child}), _Member(child, child, None)]
                continue
            # Else the note is of an earlier run of that name.
            if origin.parent_run_id is not None and file_name(origin.parent_run_id) == name:
                family += self._started_by(child, {*seen, child})
                family.append(_Member(child, origin.run_id, origin.created_at))
        return family

    def _make_promise(self, promise: _Promise, name: str) -> None:
        path, temporary = self._layout.removal(name), self._layout.new_temporary(name)
        with created(self._disk, temporary, msgspec.json.encode(promise) + b"\n"):
            try:
                self._disk.replace(temporary, path)
                self._disk.sync_folder(self._layout.removals)
            except OSError:
                self._disk.unlink(path)
                raise

    def _remove_family(
        self, name: str, head: Head | None, family: list[_Member], *, patience: float | None = None
    ) -> None:
        """As promised. The run itself goes last: until then, whoever tries again finds it."""
        for member in family:
            with self._access.locked(member.name, member.run_id, patience=patience):
                # Not if it has gone meanwhile and another run has the name.
                if member.created_at is not None and _born(self._head(member.name)) == member.created_at:
                    self._disk.unlink(self._layout.journal(member.name))
                    self._dropped(member.name)
        self._disk.unlink(self._layout.journal(name))
        # If this fails, a power cut may bring journals back. The promise stays, and is kept then.
        with contextlib.suppress(OSError):
            self._disk.sync_folder(self._layout.runs)
            for member in family:
                self._forget(member.name, None)
            self._forget(name, head)
            self._end_promise(name)

    def _forget(self, name: str, head: Head | None) -> None:
        """What is kept beside the journal of a run that is gone for good."""
        for child in self._layout.children_of(name):
            self._disk.unlink(self._layout.child(name, child))
        self._disk.unlink(self._layout.cancels / name)
        self._disk.unlink(self._layout.removal(name))
        if head is not None and head.origin.parent_run_id is not None:
            self._disk.unlink(self._layout.child(file_name(head.origin.parent_run_id), name))

    def _end_promise(self, name: str) -> None:
        self._disk.unlink(self._layout.removal(name))
        # Before anybody makes a run with this name: brought back, the promise would be about that one.
        self._disk.sync_folder(self._layout.removals)


def _born(head: Head | None) -> datetime | None:
    return None if head is None else head.origin.created_at
