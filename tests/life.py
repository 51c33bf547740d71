"""A host's life on a store that outlives it."""

from dataclasses import replace
from typing import Any

from tests.probe_store import ProbeStore

from holdfast.checkpoint.factory import Checkpoints
from holdfast.checkpoint.handle import HandleSettings
from holdfast.checkpoint.lifecycle import CLAIMABLE, Status
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.run.agent import AgentSource
from holdfast.run.executor import Executor
from holdfast.run.native import loop_of
from holdfast.run.outcome import Result
from holdfast.run.ports import Ports, Resumption

#: What a person's command may claim.
BY_HAND = frozenset({*CLAIMABLE, Status.PARKED, Status.FAILED, Status.CANCELLED})


class Life:
    """An executor with its own side of a shared store. It can die; then nothing it does reaches the store."""

    def __init__(
        self,
        inner: CheckpointStore | None = None,
        *,
        settings: HandleSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        ports: Ports | None = None,
        turns: int = 0,
        **options: Any,
    ) -> None:
        self.inner = inner if inner is not None else MemoryStore(clock=clock)
        self.store = ProbeStore(self.inner, turns=turns)
        self.checkpoints = Checkpoints(self.store, settings=settings, clock=clock)
        self.executor = Executor(replace(ports or Ports(), checkpoints=self.checkpoints), clock=clock, **options)

    async def die(self) -> None:
        """End as by SIGKILL: whatever still runs here writes nothing more, and others know this worker is gone."""
        self.store.die()
        await self.inner.discharge(self.checkpoints.worker_id)

    async def claimed(self, agent: AgentSource, run_id: str) -> Resumption:
        """Take over the run that another life left behind."""
        await self.checkpoints.open()
        claim = await self.store.claim(run_id, self.checkpoints.worker_id, statuses=BY_HAND)
        return self.checkpoints.resume(claim, await self.store.load(run_id), loop_of(agent).codec)

    async def resume(self, agent: AgentSource, run_id: str) -> Result:
        """Take over the run and drive it to its end."""
        return await self.executor.resume(agent, await self.claimed(agent, run_id))

    async def records(self) -> list[RunRecord]:
        return [record async for record in self.inner.records()]

    async def statuses(self) -> dict[str, Status]:
        return {record.run_id: record.status for record in await self.records()}
