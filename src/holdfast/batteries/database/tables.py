"""The tables of one battery, whichever database they are in."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

_T = TypeVar("_T")


class Cursor(Protocol):
    """What a piece of work is given: runs SQL in the parameter style of its database."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """Run one statement and return its rows; for a statement that has none, nothing."""
        ...


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """How a battery's tables are made. Version n is reached by the first n steps."""

    #: Names the battery; its version is kept under this name.
    battery: str
    #: Each a list of statements. Only ever added to.
    steps: Sequence[Sequence[str]]


class Tables(Protocol):
    """Runs work in transactions, off the event loop. Safe to share between tasks."""

    async def open(self, schema: Schema) -> None:
        """Make the tables, or bring them up to date. Safe while other processes do the same."""
        ...

    async def write(self, work: Callable[[Cursor], _T]) -> _T:
        """Run `work` in one transaction that excludes other writers of the rows it touches: all of it, or nothing.

        The transaction may be run again when the database asks for that, so `work` does nothing but SQL.

        Raises:
            TablesError: nothing was changed.
        """
        ...

    async def read(self, work: Callable[[Cursor], _T]) -> _T:
        """Run `work`, which only reads."""
        ...

    async def close(self) -> None:
        """Let go of the connection. May be called again."""
        ...
