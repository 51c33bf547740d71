"""The journal of a run of a graph: rows of its checkpoints, its tool calls, and their results."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.adapters.langgraph.saver.row_batch import RowBatch
from holdfast.adapters.langgraph.saver.saver_schema import CHECKPOINT, ITEM, VALUE, WRITE, Row, split_row
from holdfast.adapters.langgraph.saver.values import ListCache
from holdfast.core.errors import PayloadError
from holdfast.core.run.messages import JsonCodec, ToolCall, User

_CheckpointRow = tuple[str, str, str | None, str | None, str, bytes]
_ValueRow = tuple[str, str, str, str, bytes]
_ItemRow = tuple[str, str, int, int, str, bytes]
_WriteRow = tuple[str, str, str, int, str, str, str, bytes]


class CheckpointRows(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="role", tag="langgraph", omit_defaults=True
):
    """What one `put` or `put_writes` added to the tables of the saver, without the thread, which is the run."""

    checkpoints: tuple[_CheckpointRow, ...] = ()
    values: tuple[_ValueRow, ...] = ()
    items: tuple[_ItemRow, ...] = ()
    writes: tuple[_WriteRow, ...] = ()
    #: The graph has received its input: the messages before this entry are in its state.
    starts_turn: bool = False

    @property
    def has_own_checkpoint(self) -> bool:
        """Whether there is a checkpoint of the graph itself among the rows, and not only of a subgraph."""
        return any(row[0] == "" for row in self.checkpoints)

    @classmethod
    def from_batch(cls, batch: RowBatch, *, starts_turn: bool = False) -> "CheckpointRows":
        """Return the rows that a batch has written."""
        replacing, adding = batch.replacing, batch.adding
        return cls(
            starts_turn=starts_turn,
            checkpoints=_drop_thread(replacing[CHECKPOINT]),
            values=_drop_thread(replacing[VALUE]),
            items=_drop_thread(adding[ITEM]),
            writes=_drop_thread(replacing[WRITE]) + _drop_thread(adding[WRITE]),
        )


class ReplyEntry(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="role", tag="reply", omit_defaults=True
):
    """The text of a model's reply, for readers that do not know LangGraph; or calls that a `ToolNode` is about to make.

    Such readers see a reply of the native loop.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    #: The task that makes each call: a `ToolNode` in one step of a graph or subgraph.
    tasks: tuple[str, ...] = ()
    #: The calls of tools that the graph does not have.
    unknown: tuple[str, ...] = ()


class GraphCallResult(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="role", tag="tool", omit_defaults=True
):
    """The result of a tool call. Readers that do not know LangGraph see a result of the native loop."""

    call_id: str
    tool: str
    #: The text of the result.
    content: Any = None
    error: bool = False
    #: What `ToolNode` gets, as the serializer encoded it.
    type: str
    body: bytes


class CallInterrupted(
    msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="langgraph_interrupted", omit_defaults=True
):
    """A tool has called `interrupt`: it is called again with the answer."""

    call_id: str
    #: What it has asked so far.
    asked: tuple[Any, ...] = ()


class RepliesCounted(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="role", tag="langgraph_replies", omit_defaults=True
):
    """Replies of a model in the writes of a task, whose usage was counted."""

    #: The subgraph that the task belongs to, as LangGraph names it: each part ends with the task that runs it.
    ns: str = ""
    #: The ids of the replies, or digests of those without one.
    keys: tuple[str, ...]


#: `User` is the prompt or a message that was sent to the run.
Entry = User | ReplyEntry | GraphCallResult | CallInterrupted | RepliesCounted | CheckpointRows


class JournalCodec(JsonCodec):
    """Encodes the entries as JSON."""

    def decode(self, body: bytes) -> Any:
        """Return the entry. Raises `PayloadError` if this version does not know it."""
        try:
            return super().decode(body)
        except msgspec.MsgspecError as exc:
            raise PayloadError(f"this version cannot read a stored entry of a graph: {exc}") from exc


CODEC = JournalCodec(Entry)


def make_batch(run_id: str, entries: Iterable[CheckpointRows]) -> RowBatch:
    """Return the rows of these entries: the tables of the saver as the run has left them."""
    batch = RowBatch(ListCache())
    for entry in entries:
        for table, rows in ((CHECKPOINT, entry.checkpoints), (VALUE, entry.values), (ITEM, entry.items)):
            into = batch.adding if table == ITEM else batch.replacing
            into[table].update(split_row(table, (run_id, *row)) for row in rows)
        for write in entry.writes:
            key, others = split_row(WRITE, (run_id, *write))
            if write[3] < 0:
                batch.replacing[WRITE][key] = others
            else:
                batch.adding[WRITE].setdefault(key, others)
    return batch


def _drop_thread(rows: dict[Row, Row]) -> Any:
    return tuple(key[1:] + others for key, others in rows.items())


class GraphCallLog:
    """The tool calls of a journal."""

    def __init__(self, entries: Sequence[Any]) -> None:
        #: Announced calls without a result, by call id.
        self.pending: dict[str, ToolCall] = {}
        #: The tasks that make them.
        self.tasks: dict[str, str] = {}
        #: Those of them whose tools the graph did not have.
        self.unknown: set[str] = set()
        #: Those of them that wait for an answer to `interrupt`.
        self.interrupted: set[str] = set()
        #: What calls have asked with `interrupt`, by call id.
        self.asked: dict[str, tuple[Any, ...]] = {}
        #: Finished calls, each with its result.
        self.finished: list[tuple[ToolCall, GraphCallResult]] = []
        for entry in entries:
            if isinstance(entry, ReplyEntry):
                for call, task in zip(entry.tool_calls, entry.tasks, strict=True):
                    self.pending[call.id], self.tasks[call.id] = call, task
                    self.interrupted.discard(call.id)
                self.unknown.update(entry.unknown)
            elif isinstance(entry, CallInterrupted):
                self.interrupted.add(entry.call_id)
                self.asked[entry.call_id] = entry.asked
            elif isinstance(entry, GraphCallResult) and entry.call_id in self.pending:
                self.finished.append((self.pending.pop(entry.call_id), entry))
                del self.tasks[entry.call_id]
                self.interrupted.discard(entry.call_id)
                self.asked.pop(entry.call_id, None)
