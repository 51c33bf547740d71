"""Checkpoints and messages for the tests of the saver."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint

from holdfast.adapters.langgraph import HoldfastSaver

SYNC_METHODS = (
    *("get_tuple", "put", "put_writes", "delete_thread", "delete_for_runs", "copy_thread", "prune"),
    "get_delta_channel_history",
)


def make_config(thread_id: str = "thread", checkpoint_id: str | None = None, ns: str = "") -> RunnableConfig:
    configurable = {"thread_id": thread_id, "checkpoint_ns": ns}
    return {"configurable": configurable | ({} if checkpoint_id is None else {"checkpoint_id": checkpoint_id})}


class Thread:
    """Puts checkpoints with one list channel, as LangGraph does."""

    def __init__(self, saver: HoldfastSaver, thread_id: str = "thread") -> None:
        self.saver, self.thread_id = saver, thread_id

    async def put(self, messages: list[Any], parent: CheckpointTuple | RunnableConfig | None = None) -> RunnableConfig:
        """Put a checkpoint with these messages after `parent`."""
        config = parent.config if isinstance(parent, CheckpointTuple) else parent or make_config(self.thread_id)
        stored = await self.saver.aget_tuple(config) if parent is not None else None
        versions: dict[str, Any] = {} if stored is None else stored.checkpoint["channel_versions"]
        version = self.saver.get_next_version(versions.get("messages"), None)
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"], checkpoint["channel_versions"] = {"messages": messages}, {"messages": version}
        return await self.saver.aput(
            config, checkpoint, {"source": "loop", "step": 0, "parents": {}}, {"messages": version}
        )

    async def load(self, config: RunnableConfig | None = None) -> list[Any]:
        """Return the messages of a checkpoint, by default of the newest."""
        found = await self.saver.aget_tuple(config or make_config(self.thread_id))
        assert found is not None
        messages: list[Any] = found.checkpoint["channel_values"]["messages"]
        return messages


def make_messages(count: int, size: int = 300) -> list[HumanMessage]:
    """Return messages with different ids and texts."""
    return [HumanMessage(f"{number} ".ljust(size, "x"), id=f"message-{number}") for number in range(count)]


def count_commits(path: Path) -> int:
    """Return the number of commits in the write-ahead log of a SQLite file: frames that give the size of the file."""
    log = path.with_name(path.name + "-wal").read_bytes()
    page_size = int.from_bytes(log[8:12], "big")
    frames = range(32, len(log), 24 + page_size)
    return sum(log[start + 4 : start + 8] != bytes(4) for start in frames)


def _in_thread(name: str) -> Callable[..., Any]:
    async def call(self: HoldfastSaver, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(getattr(self, name), *args, **kwargs)

    return call


class SyncSaver(HoldfastSaver):
    """Its async methods call the sync ones, each in a thread."""

    async def alist(self, *args: Any, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        for found in await asyncio.to_thread(lambda: list(self.list(*args, **kwargs))):
            yield found


for name in SYNC_METHODS:
    setattr(SyncSaver, f"a{name}", _in_thread(name))
