"""The checkpointer of a durable graph: it writes to the journal of the run."""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.constants import START
from langgraph.pregel import Pregel

from holdfast.adapters.langgraph.deploys import SENDS
from holdfast.adapters.langgraph.entries import CheckpointRows, RepliesCounted, ReplyEntry, make_batch
from holdfast.adapters.langgraph.saver import HoldfastSaver
from holdfast.adapters.langgraph.saver.row_batch import PutRequest, RowBatch, get_thread
from holdfast.adapters.langgraph.saver.saver_database import SaverDatabase
from holdfast.adapters.langgraph.saver.saver_schema import make_schema
from holdfast.core.execution.native_loop import make_prompt_message
from holdfast.core.execution.step import StepContext
from holdfast.core.run.messages import Usage, replace_half_pairs
from holdfast.db.sqlite_tables import MemoryTables
from holdfast.db.tables import Cursor, TablesError

_T = TypeVar("_T")


class RunDatabase(SaverDatabase):
    """The tables of the saver in memory. Each write becomes an entry of the run's history."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(MemoryTables(), make_schema(postgres=False))
        self._context = context

    async def load(self) -> None:
        """Fill the tables from the run's history."""
        history = self._context.state.history
        batch = make_batch(self._context.run_id, (entry for entry in history if isinstance(entry, CheckpointRows)))
        await self._tables.transaction(batch.insert)

    async def write(self, request: PutRequest) -> None:
        """Add the request to the tables and to the history, which the next save stores."""
        batch = RowBatch(self._cache)

        async def work(cursor: Cursor) -> None:
            await batch.write(cursor, [request])

        await self._tables.transaction(work)
        batch.update_cache()
        self._context.state.history.append(CheckpointRows.from_batch(batch, starts_turn=request.starts_turn))

    async def change(self, work: Callable[[Cursor], Awaitable[_T]]) -> _T:
        """Refuse: the checkpoints belong to the run.

        Raises:
            TablesError: always.
        """
        raise TablesError("these checkpoints belong to a run: they are deleted with it")


class RunSaver(HoldfastSaver):
    """Saves the run at each `put`: if another worker has the run, the `put` raises `RunLost`.

    A superstep of the graph is a step of the run. Checkpoints of subgraphs and the writes of tasks are saved within it.
    """

    def __init__(self, context: StepContext, serde: SerializerProtocol, graph: Pregel[Any, Any, Any, Any]) -> None:
        self.database = RunDatabase(context)
        super().__init__(self.database, serde=serde)
        self._context, self._triggers = context, graph.trigger_to_nodes
        #: The graph spreads its input over its channels in a superstep of its own, which is not counted.
        self._has_start_node = START in graph.nodes
        self._starts_turn = _starts_turn(context.state.history)
        self._replies = CountedReplies(entry for entry in context.state.history if isinstance(entry, RepliesCounted))

    async def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. One of the graph itself ends a step."""
        stored = await super()._put(config, checkpoint, metadata, new_versions)
        if not self._ends_step(get_thread(config)[1], metadata):
            await self._context.attempt.saver.save()
            return stored
        state = self._context.state
        state.history.extend(state.results.values())
        await self._context.end_step()
        if any(name in self._triggers or name == SENDS for name in checkpoint.get("updated_channels") or ()):
            await begin_step(self._context)
        return stored

    def _ends_step(self, ns: str, metadata: CheckpointMetadata) -> bool:
        """Return whether a checkpoint ends a step of the run. Those of subgraphs do not."""
        if ns:
            return False
        is_start = self._starts_turn and self._has_start_node
        self._starts_turn = metadata.get("source") == "input"
        return metadata.get("source") == "loop" and not is_start

    async def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> None:
        """Store what a task wrote. Replies of a model in it are shown to readers, and their usage is counted."""
        await super()._put_writes(config, writes, task_id, task_path)
        replies = self._replies.select_new(writes, task_id)
        if replies:
            counted = RepliesCounted(ns=get_thread(config)[1], keys=tuple(map(_make_key, replies)))
            self._replies.add(counted)
            self._context.state.history.append(counted)
        for reply in replies:
            self._count_usage(reply)
            if reply.text:
                self._context.state.history.append(ReplyEntry(text=replace_half_pairs(str(reply.text))))
        await self._context.attempt.saver.save()
        # A subgraph takes several steps within one step of the run: their replies are not replies of the run.
        if get_thread(config)[1] == "":
            for reply in replies:
                await self._context.emit_reply(str(reply.text))
        elif replies:
            self._context.end_draft()

    def _count_usage(self, reply: AIMessage) -> None:
        usage = reply.usage_metadata
        if usage is None:
            return
        self._context.add_usage(
            Usage(
                input_tokens=usage["input_tokens"],
                output_tokens=usage["output_tokens"],
                reasoning_tokens=usage.get("output_token_details", {}).get("reasoning", 0),
                requests=1,
            )
        )
        self._context.model_calls.on_reply(str(reply.response_metadata.get("model_name") or ""))


class CountedReplies:
    """The replies of a run whose usage was counted.

    A reply is written several times: by the task of a subgraph, then by the task that runs the subgraph, and by later
    nodes that return it again. Two replies without an id that are equal are one only in the first of these cases.
    """

    def __init__(self, entries: Iterable[RepliesCounted]) -> None:
        self._ids: set[str] = set()
        #: Counted within subgraphs, by the task that runs the subgraph.
        self._within: dict[str, Counter[str]] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: RepliesCounted) -> None:
        """Remember replies that were counted."""
        self._ids.update(key for key in entry.keys if not key.startswith(_DIGEST))
        for part in filter(None, entry.ns.split("|")):
            self._within.setdefault(part.rpartition(":")[2], Counter()).update(entry.keys)

    def select_new(self, writes: Sequence[tuple[str, Any]], task_id: str) -> list[AIMessage]:
        """Return the replies of a model among the writes of a task that were not counted."""
        values = [value if isinstance(value, list) else [value] for _, value in writes]
        within = self._within.get(task_id, Counter()).copy()
        new: dict[str, AIMessage] = {}
        for number, message in enumerate(chain.from_iterable(values)):
            if not isinstance(message, AIMessage):
                continue
            key = _make_key(message)
            if within[key] > 0:
                within[key] -= 1
            elif key not in self._ids:
                new[f"{key}{number}" if message.id is None else key] = message
        return list(new.values())


#: Begins the key of a reply without an id.
_DIGEST = "digest:"


def _make_key(reply: AIMessage) -> str:
    if reply.id is not None:
        return reply.id
    body = repr(reply.model_dump()).encode(errors="replace")
    return _DIGEST + hashlib.blake2b(body, digest_size=8).hexdigest()


def _starts_turn(history: Iterable[Any]) -> bool:
    """Return whether the last checkpoint of the graph itself has its input."""
    own = [entry for entry in history if isinstance(entry, CheckpointRows) and entry.has_own_checkpoint]
    return bool(own) and own[-1].starts_turn


async def begin_step(context: StepContext) -> None:
    """Begin a step. Messages that were sent to the run go into the history: they are the input of the next turn."""
    context.state.history.extend(map(make_prompt_message, await context.begin_step()))
