"""Where the windows of the provider limits are kept: in memory, in SQLite or in PostgreSQL."""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeVar

import msgspec

from holdfast.batteries.limits.window import Window
from holdfast.db.tables import Cursor, Schema, Tables, TablesError

_T = TypeVar("_T")

SCHEMA = Schema(
    name="provider_limits",
    migrations=[["CREATE TABLE provider_window (key TEXT PRIMARY KEY, state TEXT NOT NULL)"]],
)


class Windows(Protocol):
    """Keeps one window for each key. Atomic across tasks and, if durable, across processes."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def update(self, keys: Collection[str], change: Callable[[Mapping[str, Window]], _T]) -> _T:
        """Keep what `change` does to the windows of `keys`, and return its result.

        `change` may be called again after a conflict, with windows that were read anew.

        Raises:
            TablesError: nothing was changed.
        """
        ...


class MemoryWindows:
    """Keeps windows in memory, for one process. They do not survive the process."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def update(self, keys: Collection[str], change: Callable[[Mapping[str, Window]], _T]) -> _T:
        return change({key: self._windows.setdefault(key, Window()) for key in keys})


class TablesWindows:
    """Keeps windows in a database that any number of processes may share."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def open(self) -> None:
        """Create or migrate the tables."""
        await self._tables.open(SCHEMA)

    async def close(self) -> None:
        """Close the database connection."""
        await self._tables.close()

    async def update(self, keys: Collection[str], change: Callable[[Mapping[str, Window]], _T]) -> _T:
        """Read, change and write the windows in one transaction."""

        async def work(cursor: Cursor) -> _T:
            stored = {key: await _load(cursor, key) for key in keys}
            windows = {key: _decode(key, state) for key, state in stored.items()}
            result = change(windows)
            for key, window in windows.items():
                state = msgspec.json.encode(window).decode()
                if state != stored[key]:
                    await cursor.execute(
                        "INSERT INTO provider_window VALUES (?, ?) "
                        "ON CONFLICT (key) DO UPDATE SET state = excluded.state",
                        (key, state),
                    )
            return result

        return await self._tables.transaction(work, lock=[f"provider_limits {key}" for key in keys])


async def _load(cursor: Cursor, key: str) -> str:
    rows = await cursor.execute("SELECT state FROM provider_window WHERE key = ?", (key,))
    return str(rows[0][0]) if rows else "{}"


def _decode(key: str, state: str) -> Window:
    try:
        return msgspec.json.decode(state, type=Window)
    except msgspec.MsgspecError as exc:
        raise TablesError(f"the window of {key} cannot be read, delete its row in provider_window: {exc}") from exc
