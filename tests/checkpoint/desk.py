"""What the tests of a handle work with."""

from datetime import timedelta
from typing import Any

from tests.probe_store import ProbeStore

from holdfast.checkpoint.codec import RunMeta, read_checkpoint
from holdfast.checkpoint.handle import HandleSettings, StoreCheckpointer
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import RunFilter, RunRecord
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.run.message import NATIVE_CODEC, User
from holdfast.run.state import RunState
from holdfast.testing.clock import ManualClock

SECOND = timedelta(seconds=1)


class Desk:
    """A store, a clock that stands still, and a state to be saved."""

    def __init__(self, clock: ManualClock, inner: MemoryStore) -> None:
        self.clock, self.inner = clock, inner
        self.store = ProbeStore(inner)
        self.state = RunState()

    def handle(
        self, *, throttle: timedelta = timedelta(0), keep_result: bool = False, **settings: Any
    ) -> StoreCheckpointer:
        return StoreCheckpointer(
            self.store,
            RunMeta(run_id="r", agent_name="a", prompt="go"),
            "w",
            settings=HandleSettings(throttle=throttle, **settings),
            clock=self.clock,
            keep_result=keep_result,
        )

    def say(self, text: str) -> None:
        self.state.history.append(User(text))

    async def saved(self) -> list[str]:
        """What a load would give: the texts of the messages."""
        checkpoint = read_checkpoint(await self.inner.load("r"), NATIVE_CODEC)
        return [message.text for message in checkpoint.state.history]

    async def candidates(self) -> list[str]:
        return [record.run_id async for record in self.inner.records(RunFilter(interrupted=True))]

    async def runs(self) -> dict[str, Status]:
        return {record.run_id: record.status async for record in self.inner.records()}

    async def record(self) -> RunRecord:
        return (await self.inner.load("r")).record
