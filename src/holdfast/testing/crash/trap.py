"""Where a process crashes."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Collection

from holdfast.testing.crash.notes import Crashed, Notebook, Reached


class Trap:
    """Passes every crash point of one life, and kills the process at the one it is set for."""

    def __init__(self, notebook: Notebook, *, at: Collection[str] = (), nth: int | None = None) -> None:
        """Set a trap.

        Args:
            at: the marks of a point: crash when the first of them is met.
            nth: crash at the n-th point of this life, whichever that is.
        """
        self._notebook, self._at, self._nth = notebook, frozenset(at), nth
        self._met: Counter[str] = Counter()
        self._points = 0
        self._lock = threading.Lock()

    def reach(self, *marks: str, at_the_latest: str | None = None) -> None:
        """Pass a crash point; it is named by its first mark.

        Which writes a run makes depends on the speed of its tools: two results may be written one by one, or together.
        What is written does not. So a point is known by its marks, the things that become durable there, not by
        its number.

        Args:
            at_the_latest: a mark that is met in every run, at this point or after it.
        """
        with self._lock:
            self._points += 1
            numbered = [self._number(mark) for mark in marks]
            sought = [numbered[0], *([at_the_latest] if at_the_latest else [])]
            if self._points == self._nth or not self._at.isdisjoint(numbered):
                self._notebook.write(Crashed(point=numbered[0]))
                _die()
            self._notebook.write(Reached(point=numbered[0], marks=sought))

    def _number(self, mark: str) -> str:
        self._met[mark] += 1
        return mark if self._met[mark] == 1 else f"{mark} ({self._met[mark]})"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # the signal is on its way: nothing else happens in this thread
