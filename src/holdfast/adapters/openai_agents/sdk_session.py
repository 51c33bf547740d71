"""Sessions of the OpenAI Agents SDK in SQLite or PostgreSQL, for agents that you run with the SDK's `Runner`."""

from collections.abc import Iterable
from typing import Any, Self

import msgspec
from agents import TResponseInputItem
from agents.memory import SessionSettings

from holdfast.adapters.shared_tables import SharedTables
from holdfast.core.errors import PayloadError
from holdfast.db.tables import Cursor, Schema
from holdfast.db.urls import tables_from_url

_ITEM = "openai_agents_item"
_SCHEMA = Schema(
    name="openai_agents",
    migrations=[
        [
            f"CREATE TABLE {_ITEM} (session_id TEXT NOT NULL, position BIGINT NOT NULL, body BYTEA NOT NULL, "
            "PRIMARY KEY (session_id, position))"
        ]
    ],
)


class _SessionTables(SharedTables):
    label = "the database of sessions"


class HoldfastSessions:
    """The sessions in one database. Open it once per process: with `async with`, or with `with` for sync code.

    Sessions may be used on any thread and event loop, as `Runner.run_sync` does.
    """

    def __init__(self, tables: SharedTables) -> None:
        """For `from_url`."""
        self._tables = tables

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return sessions that are not open yet.

        Args:
            url: `sqlite:PATH` or `postgresql://...`. The table may share a database with a holdfast store.

        Raises:
            TablesError: the URL names no database.
        """
        return cls(_SessionTables(tables_from_url(url), _SCHEMA))

    async def __aenter__(self) -> Self:
        await self._tables.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._tables.__aexit__(*error)

    def __enter__(self) -> Self:
        self._tables.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tables.__exit__(*error)

    def get(self, session_id: str, *, settings: SessionSettings | None = None) -> "HoldfastSession":
        """Return the session with this id, for `Runner.run(..., session=...)`. A new one has no items.

        Args:
            session_id: names the conversation. Any text without NUL.
            settings: the SDK's, such as how many of the newest items a run gets.
        """
        return HoldfastSession(self._tables, session_id, settings)


class HoldfastSession:
    """One conversation: the SDK's `Session` protocol. Made by `HoldfastSessions`.

    When a method has returned, `kill -9` and a power cut lose nothing of what it wrote. Several processes may use one
    session: the items of one `add_items` stay together, and an item is popped once.
    """

    def __init__(self, tables: SharedTables, session_id: str, settings: SessionSettings | None) -> None:
        """For `HoldfastSessions.get`."""
        self._tables = tables
        self.session_id, self.session_settings = session_id, settings

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items in their order: all, or the newest `limit`.

        Raises:
            TablesError: the database could not be read.
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        select = f"SELECT body FROM {_ITEM} WHERE session_id = ? ORDER BY position DESC"
        bound = "" if limit is None else f" LIMIT {max(int(limit), 0)}"

        async def work(cursor: Cursor) -> list[TResponseInputItem]:
            rows = await cursor.execute(select + bound, (self.session_id,))
            return [_decode(body) for (body,) in reversed(rows)]

        return await self._tables.read(work)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items, all or none.

        Raises:
            PayloadError: an item is not plain data.
            TablesError: nothing was written.
        """
        bodies = [_encode(item) for item in items]

        async def work(cursor: Cursor) -> None:
            found = await cursor.execute(f"SELECT MAX(position) FROM {_ITEM} WHERE session_id = ?", (self.session_id,))
            last = -1 if found[0][0] is None else found[0][0]
            for position, body in enumerate(bodies, last + 1):
                await cursor.execute(f"INSERT INTO {_ITEM} VALUES (?, ?, ?)", (self.session_id, position, body))

        await self._tables.transaction(work, lock=self._lock)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and return it; `None` if there is none.

        Raises:
            TablesError: nothing was removed.
        """
        of_session = "WHERE session_id = ?"

        async def work(cursor: Cursor) -> TResponseInputItem | None:
            rows = await cursor.execute(
                f"DELETE FROM {_ITEM} {of_session} AND position = (SELECT MAX(position) FROM {_ITEM} {of_session}) "
                "RETURNING body",
                (self.session_id, self.session_id),
            )
            return _decode(rows[0][0]) if rows else None

        return await self._tables.transaction(work, lock=self._lock)

    async def clear_session(self) -> None:
        """Remove all items.

        Raises:
            TablesError: nothing was removed.
        """

        async def work(cursor: Cursor) -> None:
            await cursor.execute(f"DELETE FROM {_ITEM} WHERE session_id = ?", (self.session_id,))

        await self._tables.transaction(work, lock=self._lock)

    @property
    def _lock(self) -> Iterable[str]:
        """Writers of one session wait for each other: a new item goes after the last one."""
        return (f"{_ITEM}:{self.session_id}",)


def _encode(item: Any) -> bytes:
    try:
        return msgspec.json.encode(item)
    except (TypeError, ValueError) as exc:
        raise PayloadError(f"an item of a session cannot be stored: {exc}") from exc


def _decode(body: bytes) -> Any:
    return msgspec.json.decode(bytes(body))
