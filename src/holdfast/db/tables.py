"""The tables of one battery, whichever database they are in."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.db.errors import TablesError

_T = TypeVar("_T")

#: Not every database can keep these in a text column.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class Cursor(Protocol):
    """What a piece of work is given."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """Run one statement, with `?` where a parameter goes and nowhere else, and return its rows, if it has any.

        Raises:
            TablesError: a parameter is text that cannot be kept.
        """
        ...


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """How a battery's tables are made. Version n is reached by the first n steps."""

    #: Names the battery; its version is kept under this name.
    name: str
    #: Each a list of statements. Only ever added to.
    migrations: Sequence[Sequence[str]]


class Tables(Protocol):
    """Runs work in transactions, off the event loop. Safe to share between tasks."""

    async def open(self, schema: Schema) -> None:
        """Make the tables, or bring them up to date. Safe while other processes do the same. Also after `close`."""
        ...

    async def transaction(self, work: Callable[[Cursor], _T], *, lock: Iterable[str] = ()) -> _T:
        """Run `work` in one transaction: all of it, or nothing.

        The transaction may be run again, when the database asks for that or was away, so `work` does nothing but SQL.

        Args:
            alone: names; transactions that have one in common wait for each other, in whatever process they are. What
                reads and then writes by what it read needs that.

        Raises:
            TablesError: nothing was changed; or the error says that this is not known.
        """
        ...

    async def read(self, work: Callable[[Cursor], _T]) -> _T:
        """Run `work`, which only reads."""
        ...

    async def close(self) -> None:
        """Finish what is under way, then let go of the connection. May be called again, and so may `open`."""
        ...


def check_text(parameters: Sequence[Any]) -> None:
    """Raises `TablesError` if one of them is text that one of the databases cannot keep: then neither does."""
    for value in parameters:
        if isinstance(value, str) and _UNSTORABLE.search(value):
            raise TablesError(f"{value!r:.80} cannot be kept: it has to be text without NUL or half surrogate pairs")
