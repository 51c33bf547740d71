"""The tables of one battery, in either database, and their errors."""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.root_error import HoldfastError

_T = TypeVar("_T")

#: PostgreSQL cannot store these in a text column.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class TablesError(HoldfastError):
    """A battery's tables could not be read or written. Earlier writes are safe.

    What to do: The message has the database's error. The same call may be made again.
    """


class TablesUnavailable(TablesError):
    """The database did not answer, is locked, or has no room. The same call may succeed later.

    What to do: Make the database reachable, or free space.
    """


class Cursor(Protocol):
    """Runs the statements of one transaction."""

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """Run one statement and return its rows. A `?` stands for a parameter and for nothing else.

        Raises:
            TablesError: a parameter is text that cannot be stored.
        """
        ...


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """How a battery's tables are created. The first n migrations lead to version n."""

    #: Names the battery; the database keeps its version under this name.
    name: str
    #: Each is a list of statements. Migrations are only ever added.
    migrations: Sequence[Sequence[str]]


class Tables(Protocol):
    """Runs work in transactions without blocking the event loop. Safe to share between tasks.

    Holds the tables of any number of batteries: each opens its own schema.
    """

    async def open(self, schema: Schema) -> None:
        """Create or migrate the tables. Safe while other processes do the same. May be repeated after `close`."""
        ...

    async def transaction(self, work: Callable[[Cursor], Awaitable[_T]], *, lock: Iterable[str] = ()) -> _T:
        """Run `work` in one transaction: all of it takes effect, or none.

        `work` awaits nothing but the cursor, because the transaction may be repeated after a conflict or an outage.

        Args:
            work: runs the statements.
            lock: transactions of any process that have a name in common run one after the other. A transaction that
                writes by what it has read needs that.

        Raises:
            TablesError: nothing was changed, unless the error says that the outcome is unknown.
        """
        ...

    async def read(self, work: Callable[[Cursor], Awaitable[_T]]) -> _T:
        """Run `work`, which only reads."""
        ...

    async def close(self) -> None:
        """Finish the calls in progress, then disconnect. May be repeated; `open` opens it again."""
        ...

    async def read_version(self, schema: Schema) -> int:
        """Return the version of the tables; zero if there are none. Needs no open tables, and changes nothing.

        Raises:
            TablesError: a newer holdfast made them.
        """
        ...


def check_text(parameters: Sequence[Any]) -> None:
    """Raise `TablesError` for text that PostgreSQL cannot store. SQLite refuses it too, so both behave alike."""
    for value in parameters:
        if isinstance(value, str) and _UNSTORABLE.search(value):
            raise TablesError(f"{value!r:.80} cannot be kept: it has to be text without NUL or half surrogate pairs")


def run_blocking(work: Awaitable[_T]) -> _T:
    """Run `work` on this thread. Its cursor blocks instead of suspending, so it needs no event loop."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: _T = done.value
        return result
    raise TablesError("work on the tables may await nothing but its cursor")
