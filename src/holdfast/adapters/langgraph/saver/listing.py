"""Pages of stored checkpoints, newest first."""

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, get_checkpoint_id
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.adapters.langgraph.saver.database import SaverDatabase
from holdfast.adapters.langgraph.saver.reader import CHECKPOINT_COLUMNS, Reader, StoredCheckpoint
from holdfast.adapters.langgraph.saver.schema import CHECKPOINT
from holdfast.db.tables import Cursor

_PAGE = 50


class Listing:
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
        #: Of the last row that was read.
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
        reader = Reader(cursor, self._serde)
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
