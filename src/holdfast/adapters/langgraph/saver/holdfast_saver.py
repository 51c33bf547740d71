"""`HoldfastSaver`: a LangGraph checkpointer in SQLite or PostgreSQL."""

from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.adapters.langgraph.saver import upkeep
from holdfast.adapters.langgraph.saver.row_batch import get_thread, make_put, make_put_writes
from holdfast.adapters.langgraph.saver.saver_database import SaverDatabase
from holdfast.adapters.langgraph.saver.thread_reader import CheckpointListing, ThreadReader
from holdfast.db.tables import Cursor, TablesError
from holdfast.ids import make_id


class HoldfastSaver(BaseCheckpointSaver[str]):
    """Keeps the checkpoints of LangGraph threads. Open it with `async with`, or with `with` for sync code.

    When `put` or `put_writes` has returned, `kill -9` and a power cut lose nothing of it. Calls that wait at the same
    time share one commit. A channel value is stored once for each version of it, and a list item by item, so a thread
    occupies what is new in each step. Loading runs no code: by default only types that LangGraph calls safe, and those
    in `types`, are created.

    Sync methods may be called from any thread except that of the event loop which opened the saver.
    """

    def __init__(self, database: SaverDatabase, *, serde: SerializerProtocol) -> None:
        """For `from_url`."""
        super().__init__(serde=serde)
        self._database = database

    @classmethod
    def from_url(cls, url: str, *, types: Sequence[type] = (), serde: SerializerProtocol | None = None) -> Self:
        """Return a saver that is not open yet.

        Args:
            url: `sqlite:PATH` or `postgresql://...`. The tables may share a database with a holdfast store.
            types: your own classes in the state of your graphs: dataclasses, pydantic models, enums. An object of a
                class that is not listed is loaded as plain data.
            serde: another serializer, in place of msgpack with these types.

        Raises:
            TablesError: the URL names no database.
        """
        return cls(SaverDatabase.from_url(url), serde=serde or make_serde(types))

    async def __aenter__(self) -> Self:
        await self._database.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._database.__aexit__(kind, error, traceback)

    def __enter__(self) -> Self:
        self._database.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._database.__exit__(kind, error, traceback)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return a version that is greater than `current`, and differs from those of other branches of the thread."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:08}.{make_id(4)}"

    # -- async --------------------------------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names, or the newest of its thread."""
        return await self._database.run(self._get_tuple(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first, of one thread or of all."""
        listing = CheckpointListing(self._database, self.serde, config, filter, before, limit)
        while page := await self._database.run(listing.load_page()):
            for each in page:
                yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. It is durable when this returns."""
        return await self._database.run(self._put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote. It is durable when this returns."""
        await self._database.run(self._put_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all that is stored of a thread."""
        await self._database.run(self._delete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs.

        A delta channel that was built from their writes loses them: see LangGraph's warning.
        """
        await self._database.run(self._delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its checkpoints and writes.

        Raises:
            TablesError: the target has checkpoints.
        """
        await self._database.run(self._copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of the threads, or all but the newest of each namespace.

        With `keep_latest`, checkpoints stay that a delta channel of the newest one is built from.
        """
        await self._database.run(self._prune(thread_ids, strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the nearest stored value of each channel, and the writes since then."""
        return await self._database.run(self._get_delta_history(config, channels))

    # -- sync ---------------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `aget_tuple`."""
        return self._database.run_sync(self._get_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """As `alist`."""
        listing = CheckpointListing(self._database, self.serde, config, filter, before, limit)
        while page := self._database.run_sync(listing.load_page()):
            yield from page

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `aput`."""
        return self._database.run_sync(self._put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `aput_writes`."""
        self._database.run_sync(self._put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """As `adelete_thread`."""
        self._database.run_sync(self._delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `adelete_for_runs`."""
        self._database.run_sync(self._delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `acopy_thread`."""
        self._database.run_sync(self._copy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As `aprune`."""
        self._database.run_sync(self._prune(thread_ids, strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `aget_delta_channel_history`."""
        return self._database.run_sync(self._get_delta_history(config, channels))

    # -- on the saver's event loop ------------------------------------------------------------------------------

    async def _get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        thread_id, ns = get_thread(config)

        async def work(cursor: Cursor) -> tuple[CheckpointTuple | None, ThreadReader]:
            reader = ThreadReader(cursor, self.serde)
            stored = await reader.find(thread_id, ns, get_checkpoint_id(config))
            return (None if stored is None else await reader.load(stored)), reader

        found, reader = await self._database.read(work)
        self._database.remember(reader.indexes)
        return found

    async def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        await self._database.write(make_put(self.serde, config, checkpoint, metadata, new_versions))
        thread_id, ns = get_thread(config)
        return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint["id"]}}

    async def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> None:
        await self._database.write(make_put_writes(self.serde, config, writes, task_id, task_path))

    def _delete_thread(self, thread_id: str) -> Coroutine[Any, Any, None]:
        return self._database.change(partial(upkeep.delete_thread, thread_id=thread_id))

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Coroutine[Any, Any, None]:
        return self._database.change(partial(upkeep.delete_runs, serde=self.serde, run_ids=run_ids))

    def _copy_thread(self, source: str, target: str) -> Coroutine[Any, Any, None]:
        return self._database.change(partial(upkeep.copy_thread, source=source, target=target))

    async def _prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        if strategy not in ("keep_latest", "delete"):
            raise TablesError(f"{strategy!r} is not a prune strategy: use 'keep_latest' or 'delete'")
        for thread_id in thread_ids:
            if strategy == "delete":
                await self._delete_thread(thread_id)
            else:
                await self._database.change(partial(upkeep.keep_latest, serde=self.serde, thread_id=thread_id))

    async def _get_delta_history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        thread_id, ns = get_thread(config)

        async def work(cursor: Cursor) -> Mapping[str, DeltaChannelHistory]:
            reader = ThreadReader(cursor, self.serde)
            target = await reader.find(thread_id, ns, get_checkpoint_id(config))
            if target is None:
                return {channel: {"writes": []} for channel in channels}
            return await reader.load_delta_history(target, channels)

        return await self._database.read(work)


def make_serde(types: Sequence[type | tuple[str, ...]]) -> SerializerProtocol:
    """Return a msgpack serializer that creates objects of safe types and of these, and of no others.

    Args:
        types: classes, or the module and the name of each.
    """
    return JsonPlusSerializer(allowed_msgpack_modules=types or None)
