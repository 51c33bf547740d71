"""Harness of the checkpointer tests."""

from datetime import timedelta
from typing import Any

from tests.probe_store import ProbeStore
from tests.simulated_host import REMOVE_ENDED

from holdfast.checkpoint.checkpointer import StoreCheckpointer
from holdfast.checkpoint.claims import Claims
from holdfast.checkpoint.codec import decode_run
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import iter_runs
from holdfast.config import CheckpointSettings, Retention
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, User
from holdfast.core.run.state import RunState
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

SECOND = timedelta(seconds=1)


class CheckpointerHarness:
    """A store, a manual clock, and a state to be saved."""

    def __init__(self, clock: ManualClock, inner: MemoryStore) -> None:
        self.clock, self.inner = clock, inner
        self.store = ProbeStore(inner)
        self.state = RunState()

    def make_checkpointer(
        self, *, save_interval: timedelta = timedelta(0), retention: Retention = REMOVE_ENDED, **settings: Any
    ) -> StoreCheckpointer:
        checkpoint = CheckpointSettings(
            **{"require_durability": False, "save_interval": save_interval, "retention": retention, **settings}
        )
        claims = Claims(self.store, checkpoint, self.clock)
        claims.worker_id = "w"
        return StoreCheckpointer(claims, RunInfo(run_id="r", agent_name="a", prompt="go"))

    def add_message(self, text: str) -> None:
        self.state.history.append(User(text))

    async def load_texts(self) -> list[str]:
        """Load the run and return the texts of its messages."""
        checkpoint = decode_run(await self.inner.load("r"), NATIVE_CODEC)
        return [message.text for message in checkpoint.state.history]

    async def list_interrupted(self) -> list[str]:
        return [record.run_id async for record in iter_runs(self.inner, RunFilter(interrupted=True))]

    async def list_statuses(self) -> dict[str, RunStatus]:
        return {record.run_id: record.status async for record in iter_runs(self.inner)}

    async def load_record(self) -> RunRecord:
        return (await self.inner.load("r")).record
