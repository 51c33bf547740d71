"""The conversation of a run, so that what is new can be found without looking at what is old."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload


class History(Sequence[Any]):
    """A list of messages that grows at its end, or is rewritten as a whole.

    Whoever saves it remembers how far it came and the number of rewrites; both equal means that only the end is new.
    """

    __slots__ = ("_messages", "finished", "rewrites")

    def __init__(self, messages: Iterable[Any] = ()) -> None:
        self._messages = list(messages)
        #: So many of the messages were there when the last step was finished, or were put in the place of those.
        self.finished = len(self._messages)
        self.rewrites = 0

    def append(self, message: Any) -> None:
        self._messages.append(message)

    def extend(self, messages: Iterable[Any]) -> None:
        self._messages.extend(messages)

    def rewrite(self, messages: Iterable[Any]) -> None:
        """Put other messages in place of all that were there: compaction, or the next phase's beginning."""
        self._messages = list(messages)
        self.finished = len(self._messages)
        self.rewrites += 1

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._messages)

    def __repr__(self) -> str:
        return f"History({len(self._messages)} messages, {self.rewrites} rewrites)"
