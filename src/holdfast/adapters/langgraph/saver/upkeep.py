"""Deletes, prunes and copies threads."""

from collections.abc import Iterable, Sequence

from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.adapters.langgraph.saver.saver_schema import CHECKPOINT, COLUMNS, ITEM, TABLES, VALUE, WRITE, Row, batched
from holdfast.adapters.langgraph.saver.thread_reader import CHECKPOINT_COLUMNS, StoredCheckpoint, ThreadReader
from holdfast.adapters.langgraph.saver.values import LIST, decode_ranges
from holdfast.db.tables import Cursor, TablesError

_DELETE_BATCH = 500


async def delete_thread(cursor: Cursor, thread_id: str) -> None:
    """Delete all that is stored of a thread."""
    for table in TABLES:
        await cursor.execute(f"DELETE FROM {table} WHERE thread_id = ?", (thread_id,))


async def delete_runs(cursor: Cursor, serde: SerializerProtocol, run_ids: Iterable[str]) -> None:
    """Delete the checkpoints of these runs, and the values that no other checkpoint has."""
    threads: dict[tuple[str, str], None] = {}
    for run_id in run_ids:
        where = "WHERE run_id = ?"
        rows = await cursor.execute(f"SELECT thread_id, ns, checkpoint_id FROM {CHECKPOINT} {where}", (run_id,))
        await _delete_checkpoints(cursor, rows)
        threads |= dict.fromkeys((row[0], row[1]) for row in rows)
    for thread_id, ns in threads:
        await _delete_unused_values(cursor, serde, thread_id, ns)


async def keep_latest(cursor: Cursor, serde: SerializerProtocol, thread_id: str) -> None:
    """Delete all but the newest checkpoint of each namespace, and what it needs to rebuild its delta channels."""
    for (ns,) in await cursor.execute(f"SELECT DISTINCT ns FROM {CHECKPOINT} WHERE thread_id = ?", (thread_id,)):
        kept = {stored.checkpoint_id for stored in await _find_needed(ThreadReader(cursor, serde), thread_id, ns)}
        rows = await cursor.execute(
            f"SELECT thread_id, ns, checkpoint_id FROM {CHECKPOINT} WHERE thread_id = ? AND ns = ?", (thread_id, ns)
        )
        await _delete_checkpoints(cursor, [row for row in rows if row[2] not in kept])
        await _delete_unused_values(cursor, serde, thread_id, ns)


async def copy_thread(cursor: Cursor, source: str, target: str) -> None:
    """Copy all that is stored of a thread.

    Raises:
        TablesError: the target has checkpoints.
    """
    if await cursor.execute(f"SELECT 1 FROM {CHECKPOINT} WHERE thread_id = ? LIMIT 1", (target,)):
        raise TablesError(f"thread {target} exists already: delete it first, or name another one")
    for table in TABLES:
        others = ", ".join(COLUMNS[table][1:])
        await cursor.execute(
            f"INSERT INTO {table} SELECT CAST(? AS TEXT), {others} FROM {table} WHERE thread_id = ?", (target, source)
        )


async def _find_needed(reader: ThreadReader, thread_id: str, ns: str) -> list[StoredCheckpoint]:
    """Return the newest checkpoint, and its ancestors down to the last stored value of each delta channel."""
    latest = await reader.find(thread_id, ns, None)
    if latest is None:
        return []
    needed = [latest]
    missing = [*latest.metadata.get("counters_since_delta_snapshot", {})]
    parent_id: str | None = latest.checkpoint_id
    while missing and (chain := await reader.load_chain(thread_id, ns, parent_id)):
        holders = await reader.find_stored_channels(chain, missing)
        missing = [channel for channel in missing if channel not in holders]
        ids = [stored.checkpoint_id for stored in chain]
        end = len(chain) if missing else max(ids.index(stored.checkpoint_id) for stored in holders.values()) + 1
        needed += chain[:end]
        parent_id = chain[-1].parent_id
    return needed


async def _delete_checkpoints(cursor: Cursor, keys: Sequence[Row]) -> None:
    for table in (CHECKPOINT, WRITE):
        await _delete_rows(cursor, table, ("thread_id", "ns", "checkpoint_id"), keys)


async def _delete_unused_values(cursor: Cursor, serde: SerializerProtocol, thread_id: str, ns: str) -> None:
    """Delete the values that no checkpoint has, and the items that no list has."""
    reader, thread = ThreadReader(cursor, serde), (thread_id, ns)
    in_thread = "WHERE thread_id = ? AND ns = ?"
    used: set[tuple[str, str]] = set()
    for row in await cursor.execute(f"SELECT {CHECKPOINT_COLUMNS} FROM {CHECKPOINT} {in_thread}", thread):
        versions = reader.decode(row).checkpoint["channel_versions"]
        used.update((channel, str(version)) for channel, version in versions.items())
    used_items: set[tuple[str, int, int]] = set()
    unused: list[Row] = []
    for channel, version, type_, body in await cursor.execute(
        f"SELECT channel, version, type, CASE WHEN type = '{LIST}' THEN body END FROM {VALUE} {in_thread}", thread
    ):
        if (channel, version) not in used:
            unused.append((*thread, channel, version))
        elif type_ == LIST:
            for part in decode_ranges(bytes(body)):
                used_items.update((channel, part.stream, number) for number in range(part.first, part.stop))
    items = await cursor.execute(f"SELECT channel, stream, number FROM {ITEM} {in_thread}", thread)
    unused_items = [(*thread, *item) for item in items if tuple(item) not in used_items]
    await _delete_rows(cursor, VALUE, ("thread_id", "ns", "channel", "version"), unused)
    await _delete_rows(cursor, ITEM, ("thread_id", "ns", "channel", "stream", "number"), unused_items)


async def _delete_rows(cursor: Cursor, table: str, key: Sequence[str], rows: Sequence[Row]) -> None:
    for batch in batched(rows, _DELETE_BATCH):
        conditions = " OR ".join([f"({' AND '.join(f'{name} = ?' for name in key)})"] * len(batch))
        await cursor.execute(f"DELETE FROM {table} WHERE {conditions}", [part for row in batch for part in row])
