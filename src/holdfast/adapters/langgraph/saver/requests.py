"""What one `put` or `put_writes` asks to write, encoded."""

from collections.abc import Sequence
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

from holdfast.adapters.langgraph.saver.schema import CHECKPOINT, WRITE, Row, split_row
from holdfast.adapters.langgraph.saver.values import Encoded, EncodedList, encode_value


class WriteRequest(msgspec.Struct, frozen=True, kw_only=True):
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
) -> WriteRequest:
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
    return WriteRequest(
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
) -> WriteRequest:
    """Return the request of a `put_writes`."""
    thread_id, ns = get_thread(config)
    checkpoint_id = config["configurable"]["checkpoint_id"]
    request = WriteRequest(thread_id=thread_id, ns=ns, replacing={}, adding={}, values={})
    for position, (channel, value) in enumerate(writes):
        idx = WRITES_IDX_MAP.get(channel, position)
        row = (thread_id, ns, checkpoint_id, task_id, idx, task_path, channel, *serde.dumps_typed(value))
        key, others = split_row(WRITE, row)
        # Errors, interrupts and answers replace earlier ones; the writes of a task stay as they were recorded first.
        (request.replacing if idx < 0 else request.adding)[WRITE, key] = others
    return request
