"""The journals that this process saves to, kept open between saves."""

import os
import resource
import threading
import weakref

from holdfast.checkpoint.stores.file.writing import Journal

#: Of the files that the process may have open, a run takes two; the host needs some, too.
_SHARE = 4
_MOST = 1024


_all: "weakref.WeakSet[Holds]" = weakref.WeakSet()


class Holds:
    """Open journals by name, with what was last written to them. None of them is locked.

    Whoever takes one is the only one to have it, and brings it back or closes it. The one that was brought back the
    longest ago is closed if there are too many.
    """

    def __init__(self) -> None:
        self._journals: dict[str, Journal] = {}
        self._guard = threading.Lock()
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        _all.add(self)
        self._most = _MOST if allowed == resource.RLIM_INFINITY else min(_MOST, allowed // (2 * _SHARE))

    def take(self, name: str) -> Journal | None:
        with self._guard:
            return self._journals.pop(name, None)

    def bring_back(self, name: str, journal: Journal) -> None:
        with self._guard:
            too_many = [self._journals.pop(name)] if name in self._journals else []
            self._journals[name] = journal
            if len(self._journals) > self._most:
                too_many.append(self._journals.pop(next(iter(self._journals))))
        for other in too_many:
            other.close()

    def drop(self, name: str) -> None:
        journal = self.take(name)
        if journal is not None:
            journal.close()

    def close_in_child(self) -> None:
        """After a fork. The child has one thread, which must not wait for a guard that another had."""
        self._guard = threading.Lock()
        self.close()

    def close(self) -> None:
        with self._guard:
            journals, self._journals = self._journals, {}
        for journal in journals.values():
            journal.close()


def _close_all_in_child() -> None:
    """A child that lives on with an open lock file would hold the lock of a parent that was killed in mid-save."""
    for holds in _all:
        holds.close_in_child()


os.register_at_fork(after_in_child=_close_all_in_child)
