"""A model that asks for the same again and again is stuck."""

from collections.abc import Iterable
from typing import Any

import msgspec


class Repeats:
    """Counts replies in a row that ask for the same tools with the same arguments."""

    def __init__(self, earlier: Iterable[Any] = ()) -> None:
        """Begin with what `earlier` replies asked for, in their order."""
        self._last: bytes | None = None
        self._times = 0
        for asked in earlier:
            self.count(asked)

    def count(self, asked: Any) -> int:
        """How often in a row this was asked for, this time included. Nothing asked for is never a repeat.

        Args:
            asked: names and arguments of the calls, as plain data, without what differs each time.
        """
        if not asked:
            self._last, self._times = None, 0
            return 0
        now = msgspec.json.encode(asked)
        self._times = self._times + 1 if now == self._last else 1
        self._last = now
        return self._times
