"""CheckpointStore: a host's own table of checkpoints, four methods; RunCheckpoint; MemoryCheckpointStore."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol, Self, runtime_checkable

import msgspec

from holdfast.checkpoint.codec import Begin, JournalReader, decode
from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.record import RunStatus
from holdfast.core.run.info import NATIVE_LOOP_NAME, RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, MessageCodec


class _JsonCodec:
    """Messages of a framework as plain data."""

    def encode(self, message: Any) -> bytes:
        return msgspec.json.encode(message)

    def decode(self, body: bytes) -> Any:
        return msgspec.json.decode(body)


class _CheckpointBody(msgspec.Struct, frozen=True):
    """What a checkpoint shows of its body."""

    journal: list[Entry]


class RunCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is saved of one run."""

    run_id: str
    agent_name: str
    caller_id: str
    status: RunStatus
    #: Finished steps.
    steps: int
    updated_at: datetime
    #: One JSON object in UTF-8. Keep it as it is.
    body: msgspec.Raw

    def to_json(self) -> bytes:
        """Return the checkpoint as JSON, for a single column."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, encoded: bytes | str) -> Self:
        """Return the checkpoint that `to_json` has encoded.

        Raises:
            RecordDecodeError: it is not one.
        """
        return decode(encoded.encode() if isinstance(encoded, str) else encoded, cls)

    @property
    def info(self) -> RunInfo:
        """The identity of the run, prompt and inputs included."""
        return decode(self._read_journal()[0].body, Begin).info

    @property
    def messages(self) -> list[Any]:
        """The messages of the current phase. Those of a framework's agent are plain data."""
        loop = self.info.loop
        codec: MessageCodec = NATIVE_CODEC if loop in ("", NATIVE_LOOP_NAME) else _JsonCodec()
        reader = JournalReader(self.run_id, codec)
        for entry in self._read_journal():
            reader.read(entry)
        return reader.messages

    def _read_journal(self) -> list[Entry]:
        return decode(bytes(self.body), _CheckpointBody).journal


@runtime_checkable
class CheckpointStore(Protocol):
    """A host's durable table: one row for each run that has not ended.

    `App(agents, table)` wraps it in a `HostStore`, a full store for one process. A save carries the whole run, so it
    costs what the transcript weighs; `CheckpointSettings.save_interval` bounds how often. Many processes need a
    `RunStore`.
    """

    async def save(self, checkpoint: RunCheckpoint) -> None:
        """Keep it in place of the run's last checkpoint. Durable when this returns; if it raises, nothing changed."""
        ...

    async def load(self, run_id: str) -> RunCheckpoint | None:
        """Return the run's checkpoint. `None`: the run has ended, or never began."""
        ...

    async def delete(self, run_id: str) -> None:
        """Delete the checkpoint: the run is done, failed or cancelled. A missing one is not an error."""
        ...

    async def list_interrupted(self) -> Sequence[RunCheckpoint]:
        """Return every checkpoint that is kept, also of waiting and parked runs. Asked once, when the App opens."""
        ...


class MemoryCheckpointStore:
    """Keeps checkpoints until the process ends, so it does not survive a restart. For tests."""

    def __init__(self) -> None:
        self._checkpoints: dict[str, RunCheckpoint] = {}

    async def save(self, checkpoint: RunCheckpoint) -> None:
        self._checkpoints[checkpoint.run_id] = checkpoint

    async def load(self, run_id: str) -> RunCheckpoint | None:
        return self._checkpoints.get(run_id)

    async def delete(self, run_id: str) -> None:
        self._checkpoints.pop(run_id, None)

    async def list_interrupted(self) -> Sequence[RunCheckpoint]:
        return list(self._checkpoints.values())
