"""The tables of batteries, in either database, and their errors."""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import msgspec

from holdfast.root_error import HoldfastError

_T = TypeVar("_T")

#: PostgreSQL cannot store these in a text column.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class TablesError(HoldfastError):
    """A battery's tables could not be read or written. Earlier writes are safe.

    What to do: The message has the database's error. The same call may be repeated.
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


@runtime_checkable
class Tables(Protocol):
    """Runs work in transactions without blocking the event loop. Safe to share between tasks.

    Holds the tables of any number of batteries: each opens its own schema.
    """

    #: Whether rows outlive the process.
    durable: bool

    async def open(self, schema: Schema) -> None:
        """Create or migrate the tables. Safe while other processes do the same. May be repeated after `close`."""
        ...

    async def transaction(self, work: Callable[[Cursor], Awaitable[_T]], *, lock: Iterable[str] = ()) -> _T:
        """Run `work` in one transaction: all of it takes effect, or none.

        `work` awaits nothing but the cursor, because the transaction may be repeated after a conflict or an outage.

        Args:
            work: runs the statements.
            lock: transactions of any process that have a name in common run one after the other. A transaction
                whose writes depend on its reads needs this.

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


@runtime_checkable
class UsesTables(Protocol):
    """A battery that keeps rows. `App` opens it after its store, and closes it before."""

    #: Where the user wants the rows: the battery opens and closes it. `None`: in the store of the App.
    tables: Tables | None

    async def open(self, tables: Tables) -> None:
        """Create or migrate what the battery needs, in `tables` unless the user named others. May be repeated.

        Raises:
            TablesError: they cannot be used. After `TablesUnavailable` the battery tries again when it is used.
        """
        ...

    async def close(self) -> None:
        """Write what is not written yet. May be repeated; `open` opens it again."""
        ...


class BatteryTables:
    """The rows of one battery. Base of the classes that hold its SQL."""

    schema: ClassVar[Schema]

    def __init__(self, tables: Tables | None = None) -> None:
        """Open nothing yet.

        Args:
            tables: named by the user; opened at the first use. Without them `open` names some.

        Raises:
            TablesError: it is something else, such as a URL.
        """
        if tables is not None and not isinstance(tables, Tables):
            raise TablesError(f"tables is a {type(tables).__name__}: give `tables_from_url(...)`")
        self._own = self._tables = tables
        self._is_open = False

    async def open(self, tables: Tables | None = None) -> None:
        """Create or migrate the tables: those of the user, else `tables`."""
        if self._own is None and tables is not None:
            self._tables, self._is_open = tables, False
        await self._require_open()

    async def close(self) -> None:
        """Close the tables that the user named. Those of an App are closed with its store."""
        self._is_open, self._tables = False, self._own
        if self._own is not None:
            await self._own.close()

    async def transaction(self, work: Callable[[Cursor], Awaitable[_T]], *, lock: Iterable[str] = ()) -> _T:
        """Run `work` as `Tables.transaction` does."""
        return await (await self._require_open()).transaction(work, lock=lock)

    async def read(self, work: Callable[[Cursor], Awaitable[_T]]) -> _T:
        """Run `work` as `Tables.read` does."""
        return await (await self._require_open()).read(work)

    async def select(self, sql: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
        """Run one statement that only reads, and return its rows."""

        async def work(cursor: Cursor) -> Sequence[tuple[Any, ...]]:
            return await cursor.execute(sql, parameters)

        return await self.read(work)

    async def _require_open(self) -> Tables:
        if self._tables is None:
            raise TablesError(
                f"the {self.schema.name} tables are not open: give the battery to an App, or `tables=` to the battery"
            )
        if not self._is_open:
            await self._tables.open(self.schema)
            self._is_open = True
        return self._tables


def check_text(parameters: Sequence[Any]) -> None:
    """Raise `TablesError` for text that PostgreSQL cannot store. SQLite refuses it too, so both behave alike."""
    for value in parameters:
        if isinstance(value, str) and _UNSTORABLE.search(value):
            raise TablesError(f"{value!r:.80} cannot be kept: it has to be text without NUL or lone surrogates")


def run_blocking(work: Awaitable[_T]) -> _T:
    """Run `work` on this thread. Its cursor blocks instead of suspending, so it needs no event loop."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: _T = done.value
        return result
    raise TablesError("work on the tables may await nothing but its cursor")
