"""What one `put` or `put_writes` asks to write, and one transaction that writes the rows of some requests."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.adapters.langgraph.saver.saver_schema import (
    CHECKPOINT,
    ITEM,
    VALUE,
    WRITE,
    Row,
    insert_rows,
    select_in,
    split_row,
)
from holdfast.adapters.langgraph.saver.values import (
    LIST,
    ChannelKey,
    Encoded,
    EncodedList,
    ListCache,
    ListIndex,
    encode_value,
    plan_list,
)
from holdfast.db.tables import Cursor


class PutRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Rows to write. They are encoded when the request is made: the caller may change its objects after that."""

    thread_id: str
    ns: str
    #: By table and primary key: rows that take the place of earlier ones.
    replacing: dict[tuple[str, Row], Row]
    #: Rows that are written unless there is one with their key.
    adding: dict[tuple[str, Row], Row]
    #: By channel and version.
    values: dict[tuple[str, str], Encoded | EncodedList]
    #: The checkpoint has the input of a graph that is not a subgraph.
    starts_turn: bool = False


def get_thread(config: RunnableConfig) -> tuple[str, str]:
    """Return the thread and the namespace that a config names."""
    configurable = config["configurable"]
    return str(configurable["thread_id"]), str(configurable.get("checkpoint_ns", ""))


def make_put(
    serde: SerializerProtocol,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> PutRequest:
    """Return the request of a `put`."""
    thread_id, ns = get_thread(config)
    values = checkpoint["channel_values"]
    head = {name: value for name, value in checkpoint.items() if name != "channel_values"}
    saved_metadata = get_checkpoint_metadata(config, metadata)
    type_, body = serde.dumps_typed([head, saved_metadata])
    run_id = saved_metadata.get("run_id")
    row = (
        *(thread_id, ns, checkpoint["id"], get_checkpoint_id(config)),
        *(None if run_id is None else str(run_id), type_, body),
    )
    key, others = split_row(CHECKPOINT, row)
    return PutRequest(
        thread_id=thread_id,
        ns=ns,
        replacing={(CHECKPOINT, key): others},
        adding={},
        starts_turn=ns == "" and metadata.get("source") == "input",
        values={
            (channel, str(version)): encode_value(serde, values[channel])
            for channel, version in new_versions.items()
            if channel in values
        },
    )


def make_put_writes(
    serde: SerializerProtocol, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> PutRequest:
    """Return the request of a `put_writes`."""
    thread_id, ns = get_thread(config)
    checkpoint_id = config["configurable"]["checkpoint_id"]
    request = PutRequest(thread_id=thread_id, ns=ns, replacing={}, adding={}, values={})
    for position, (channel, value) in enumerate(writes):
        idx = WRITES_IDX_MAP.get(channel, position)
        row = (thread_id, ns, checkpoint_id, task_id, idx, task_path, channel, *serde.dumps_typed(value))
        key, others = split_row(WRITE, row)
        # Errors, interrupts and answers replace earlier ones; the writes of a task stay as they were recorded first.
        (request.replacing if idx < 0 else request.adding)[WRITE, key] = others
    return request


class StreamsTaken(Exception):
    """Another process has continued the streams of these channels. Nothing was written."""

    def __init__(self, channels: set[ChannelKey]) -> None:
        super().__init__(channels)
        self.channels = channels


class RowBatch:
    """One attempt to write some requests. The cache changes only after the commit."""

    def __init__(self, cache: ListCache, taken: Collection[ChannelKey] = ()) -> None:
        """Make an empty batch.

        Args:
            taken: channels whose streams another process has continued.
        """
        self._cache, self._taken = cache, taken
        self._indexes: dict[ChannelKey, ListIndex | None] = {}
        #: By table: rows that take the place of earlier ones.
        self.replacing: dict[str, dict[Row, Row]] = {VALUE: {}, CHECKPOINT: {}, WRITE: {}}
        #: By table: rows that are written unless there is one with their key.
        self.adding: dict[str, dict[Row, Row]] = {ITEM: {}, WRITE: {}}

    async def write(self, cursor: Cursor, requests: Sequence[PutRequest]) -> None:
        """Write the rows of the requests.

        Raises:
            StreamsTaken: items have to go to another stream. The transaction has to be rolled back.
        """
        await self._forget_removed_lists(cursor, requests)
        for request in requests:
            self._add_values(request)
            for (table, key), others in request.replacing.items():
                self.replacing[table][key] = others
            for (table, key), others in request.adding.items():
                self.adding[table].setdefault(key, others)
        await self.insert(cursor)

    async def insert(self, cursor: Cursor) -> None:
        """Write the rows that the batch has. Raises as `write`."""
        items = self.adding[ITEM]
        if items and (lost := items.keys() - await insert_rows(cursor, ITEM, items, replace=False)):
            raise StreamsTaken({(thread_id, ns, channel) for thread_id, ns, channel, *_ in lost})
        for table, rows in self.replacing.items():
            if rows:
                await insert_rows(cursor, table, rows, replace=True)
        if self.adding[WRITE]:
            await insert_rows(cursor, WRITE, self.adding[WRITE], replace=False)

    def update_cache(self) -> None:
        """Remember where the items of lists are now: the batch is committed."""
        for key, index in self._indexes.items():
            if index is None:
                self._cache.discard(key)
            else:
                self._cache.put(key, index)

    async def _forget_removed_lists(self, cursor: Cursor, requests: Iterable[PutRequest]) -> None:
        """Forget the cached indexes of lists that another process has deleted, so that no row refers to their items."""
        known: dict[Row, ChannelKey] = {}
        for request in requests:
            for (channel, _), value in request.values.items():
                key = (request.thread_id, request.ns, channel)
                if isinstance(value, EncodedList) and (index := self._cache.get(key)) is not None:
                    known[*key, index.version] = key
        columns = ("thread_id", "ns", "channel", "version")
        select = f"SELECT {', '.join(columns)} FROM {VALUE} WHERE type = '{LIST}'"
        found = {tuple(row) for row in await select_in(cursor, select, (), columns, [*known])}
        self._indexes.update((key, None) for row, key in known.items() if row not in found)

    def _add_values(self, request: PutRequest) -> None:
        for (channel, version), value in request.values.items():
            key = (request.thread_id, request.ns, channel)
            if isinstance(value, EncodedList):
                type_, body = value.to_inline() if value.is_small() else self._add_list(key, version, value)
            else:
                type_, body = value
            self.replacing[VALUE][*key, version] = (type_, body)

    def _add_list(self, key: ChannelKey, version: str, value: EncodedList) -> tuple[str, bytes]:
        index = self._indexes[key] if key in self._indexes else self._cache.get(key)
        plan = plan_list(value, version, index, new_stream=key in self._taken)
        self._indexes[key] = plan.index
        self.adding[ITEM].update(((*key, *place), item) for place, item in plan.new_items.items())
        return LIST, plan.body
