"""Reads stored checkpoints: one, a page of them, or what a delta channel was made of."""

from collections.abc import Sequence
from typing import Any

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.adapters.langgraph.saver.saver_database import SaverDatabase
from holdfast.adapters.langgraph.saver.saver_schema import CHECKPOINT, ITEM, VALUE, WRITE, Row, select_in
from holdfast.adapters.langgraph.saver.values import (
    INLINE_LIST,
    LIST,
    ChannelKey,
    Encoded,
    ListIndex,
    decode_inline,
    decode_ranges,
    index_loaded_list,
)
from holdfast.db.tables import Cursor, TablesError

CHECKPOINT_COLUMNS = "thread_id, ns, checkpoint_id, parent_id, type, body"
_IN_THREAD = "WHERE thread_id = ? AND ns = ?"

#: Ancestors read with one statement while a delta channel is rebuilt.
_CHAIN_PAGE = 200

_OLDER_COLUMNS = ", ".join(f"older.{name}" for name in CHECKPOINT_COLUMNS.split(", "))
_CHAIN = f"""
    WITH RECURSIVE chain({CHECKPOINT_COLUMNS}, depth) AS (
        SELECT {CHECKPOINT_COLUMNS}, 1 FROM {CHECKPOINT} {_IN_THREAD} AND checkpoint_id = ?
        UNION ALL
        SELECT {_OLDER_COLUMNS}, depth + 1 FROM {CHECKPOINT} older
        JOIN chain ON older.checkpoint_id = chain.parent_id
        WHERE older.thread_id = ? AND older.ns = ? AND depth < {_CHAIN_PAGE}
    )
    SELECT {CHECKPOINT_COLUMNS} FROM chain ORDER BY depth
"""


class StoredCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint without its channel values and pending writes."""

    thread_id: str
    ns: str
    parent_id: str | None
    checkpoint: Checkpoint
    metadata: CheckpointMetadata

    @property
    def checkpoint_id(self) -> str:
        return self.checkpoint["id"]

    def make_config(self, checkpoint_id: str) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread_id, "checkpoint_ns": self.ns, "checkpoint_id": checkpoint_id}}


class ThreadReader:
    """One read transaction."""

    def __init__(self, cursor: Cursor, serde: SerializerProtocol) -> None:
        self._cursor, self._serde = cursor, serde
        #: The indexes of the lists that were read.
        self.indexes: dict[ChannelKey, ListIndex] = {}

    def decode(self, row: Row) -> StoredCheckpoint:
        """Return the checkpoint in a row with `CHECKPOINT_COLUMNS`."""
        thread_id, ns, _, parent_id, type_, body = row
        head, metadata = self._serde.loads_typed((type_, bytes(body)))
        return StoredCheckpoint(
            thread_id=thread_id, ns=ns, parent_id=parent_id, checkpoint=head | {"channel_values": {}}, metadata=metadata
        )

    async def find(self, thread_id: str, ns: str, checkpoint_id: str | None) -> StoredCheckpoint | None:
        """Return one checkpoint, by default the newest."""
        select = f"SELECT {CHECKPOINT_COLUMNS} FROM {CHECKPOINT} {_IN_THREAD}"
        if checkpoint_id is None:
            rows = await self._cursor.execute(f"{select} ORDER BY checkpoint_id DESC LIMIT 1", (thread_id, ns))
        else:
            rows = await self._cursor.execute(f"{select} AND checkpoint_id = ?", (thread_id, ns, checkpoint_id))
        return self.decode(rows[0]) if rows else None

    async def load(self, stored: StoredCheckpoint) -> CheckpointTuple:
        """Return the checkpoint with its channel values and pending writes."""
        versions = stored.checkpoint["channel_versions"]
        values = await self.load_values(stored, [*versions])
        writes = await self.load_writes(stored.thread_id, stored.ns, [stored.checkpoint_id])
        parent_id = stored.parent_id
        return CheckpointTuple(
            config=stored.make_config(stored.checkpoint_id),
            checkpoint={**stored.checkpoint, "channel_values": values},
            metadata=stored.metadata,
            parent_config=None if parent_id is None else stored.make_config(parent_id),
            pending_writes=writes.get(stored.checkpoint_id, []),
        )

    async def load_values(self, stored: StoredCheckpoint, channels: Sequence[str]) -> dict[str, Any]:
        """Return those of the channels that have a value at this checkpoint."""
        versions = stored.checkpoint["channel_versions"]
        keys = [(channel, str(versions[channel])) for channel in channels if channel in versions]
        select = f"SELECT channel, version, type, body FROM {VALUE} {_IN_THREAD}"
        rows = await select_in(self._cursor, select, (stored.thread_id, stored.ns), ("channel", "version"), keys)
        found = {channel: (version, type_, bytes(body)) for channel, version, type_, body in rows}
        return {
            channel: await self._load_value((stored.thread_id, stored.ns, channel), *found[channel])
            for channel in channels
            if channel in found
        }

    async def load_writes(
        self, thread_id: str, ns: str, checkpoint_ids: Sequence[str], channels: Sequence[str] = ()
    ) -> dict[str, list[PendingWrite]]:
        """Return the writes of some checkpoints, in the order in which LangGraph applies them.

        Args:
            channels: only those of these channels; by default of all.
        """
        columns = "checkpoint_id, task_path, task_id, idx, channel, type, body"
        select, parameters = f"SELECT {columns} FROM {WRITE} {_IN_THREAD}", [thread_id, ns]
        if channels:
            select += f" AND channel IN ({', '.join('?' * len(channels))})"
            parameters += channels
        keys = [(checkpoint_id,) for checkpoint_id in checkpoint_ids]
        rows = await select_in(self._cursor, select, parameters, ("checkpoint_id",), keys)
        rows.sort(key=lambda row: writes_sort_key(row[1], row[2], row[3]))
        writes: dict[str, list[PendingWrite]] = {}
        for checkpoint_id, _, task_id, _, channel, type_, body in rows:
            value = self._serde.loads_typed((type_, bytes(body)))
            writes.setdefault(checkpoint_id, []).append((task_id, channel, value))
        return writes

    async def load_chain(self, thread_id: str, ns: str, checkpoint_id: str | None) -> list[StoredCheckpoint]:
        """Return a checkpoint and its ancestors, newest first; at most a page of them."""
        if checkpoint_id is None:
            return []
        rows = await self._cursor.execute(_CHAIN, (thread_id, ns, checkpoint_id, thread_id, ns))
        return [self.decode(row) for row in rows]

    async def find_stored_channels(
        self, chain: Sequence[StoredCheckpoint], channels: Sequence[str]
    ) -> dict[str, StoredCheckpoint]:
        """Return for each channel the first checkpoint of the chain at which it has a value."""
        holders = {
            (name, str(stored.checkpoint["channel_versions"][name])): stored
            for stored in reversed(chain)
            for name in channels
            if name in stored.checkpoint["channel_versions"]
        }
        select, columns = f"SELECT channel, version FROM {VALUE} {_IN_THREAD}", ("channel", "version")
        thread = (chain[0].thread_id, chain[0].ns)
        found = {tuple(row) for row in await select_in(self._cursor, select, thread, columns, [*holders])}
        # The nearest was added last.
        return {key[0]: stored for key, stored in holders.items() if key in found}

    async def load_delta_history(
        self, target: StoredCheckpoint, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """Return for each channel the nearest stored value among the ancestors, and the writes since then."""
        thread_id, ns = target.thread_id, target.ns
        histories: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
        parent_id, missing = target.parent_id, [*channels]
        while missing and (chain := await self.load_chain(thread_id, ns, parent_id)):
            holders = await self.find_stored_channels(chain, missing)
            ids = [stored.checkpoint_id for stored in chain]
            writes = await self.load_writes(thread_id, ns, ids, missing)
            for channel in missing:
                # A value is that before the writes of its own checkpoint.
                end = ids.index(holders[channel].checkpoint_id) + 1 if channel in holders else len(ids)
                older = [write for each in ids[:end][::-1] for write in writes.get(each, []) if write[1] == channel]
                histories[channel]["writes"] = older + histories[channel]["writes"]
            for channel, stored in holders.items():
                histories[channel]["seed"] = (await self.load_values(stored, [channel]))[channel]
            missing = [channel for channel in missing if channel not in holders]
            parent_id = chain[-1].parent_id
        return histories

    async def _load_value(self, key: ChannelKey, version: str, type_: str, body: bytes) -> Any:
        if type_ == INLINE_LIST:
            return decode_inline(self._serde, body)
        if type_ != LIST:
            return self._serde.loads_typed((type_, body))
        ranges, items = decode_ranges(body), list[Encoded]()
        select = f"SELECT type, body FROM {ITEM} {_IN_THREAD} AND channel = ? AND stream = ?"
        for part in ranges:
            rows = await self._cursor.execute(f"{select} AND number >= ? AND number < ? ORDER BY number", (*key, *part))
            if len(rows) != part.stop - part.first:
                raise TablesError(f"thread {key[0]}: items of channel {key[2]} at version {version} are missing")
            items += [(item_type, bytes(item_body)) for item_type, item_body in rows]
        self.indexes[key] = index_loaded_list(version, ranges, items)
        return [self._serde.loads_typed(item) for item in items]


_PAGE = 50


class CheckpointListing:
    """One call of `list` or `alist`."""

    def __init__(
        self,
        database: SaverDatabase,
        serde: SerializerProtocol,
        config: RunnableConfig | None,
        metadata: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> None:
        self._database, self._serde = database, serde
        self._metadata = metadata or {}
        self._left = limit
        self._conditions, self._parameters = ["1 = 1"], list[str]()
        configurable = config["configurable"] if config else {}
        for column, name in (("thread_id", "thread_id"), ("ns", "checkpoint_ns"), ("checkpoint_id", "checkpoint_id")):
            if configurable.get(name) is not None:
                self._add_condition(f"{column} = ?", str(configurable[name]))
        if before is not None and (before_id := get_checkpoint_id(before)):
            self._add_condition("checkpoint_id < ?", before_id)
        #: Position of the last row that was read.
        self._position: tuple[str, str, str] | None = None
        self._ended = False

    def _add_condition(self, condition: str, parameter: str) -> None:
        self._conditions.append(condition)
        self._parameters.append(parameter)

    async def load_page(self) -> list[CheckpointTuple]:
        """Return the next checkpoints, none at the end."""
        page: list[CheckpointTuple] = []
        while not page and not self._ended and self._left != 0:
            page = await self._database.read(self._read_page)
        return page

    async def _read_page(self, cursor: Cursor) -> list[CheckpointTuple]:
        reader = ThreadReader(cursor, self._serde)
        conditions, parameters = [*self._conditions], [*self._parameters]
        if self._position is not None:
            conditions.append("(checkpoint_id, thread_id, ns) < (?, ?, ?)")
            parameters += self._position
        rows = await cursor.execute(
            f"SELECT {CHECKPOINT_COLUMNS} FROM {CHECKPOINT} WHERE {' AND '.join(conditions)} "
            f"ORDER BY checkpoint_id DESC, thread_id DESC, ns DESC LIMIT {_PAGE}",
            parameters,
        )
        matching = [stored for stored in map(reader.decode, rows) if self._matches(stored)][: self._left]
        page = [await reader.load(stored) for stored in matching]
        # Nothing is awaited from here on: an attempt that is repeated starts at the same position.
        if rows:
            self._position = (rows[-1][2], rows[-1][0], rows[-1][1])
        self._ended = len(rows) < _PAGE
        if self._left is not None:
            self._left -= len(page)
        return page

    def _matches(self, stored: StoredCheckpoint) -> bool:
        return all(stored.metadata.get(name) == value for name, value in self._metadata.items())
