"""A host process on a store that survives its crash."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.probe_store import ProbeStore

from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore, iter_runs
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.config import CheckpointSettings, Retention
from holdfast.core.agents.agent import AgentSource
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.native_loop import get_loop
from holdfast.core.ports import Ports, Resumption
from holdfast.core.run.result import Result
from holdfast.stores.memory import MemoryStore

#: A run is removed when it ends: a store without runs says that all have ended.
REMOVE_ENDED = Retention(done=timedelta(0), failed=timedelta(0), cancelled=timedelta(0))
_DEFAULTS = CheckpointSettings(retention=REMOVE_ENDED)
#: A run is removed when it is done.
REMOVE_DONE = Retention(done=timedelta(0))

#: What a person's command may claim.
MANUALLY_CLAIMABLE = frozenset({*CLAIMABLE_STATUSES, RunStatus.PARKED, RunStatus.FAILED, RunStatus.CANCELLED})


class SimulatedHost:
    """An executor with its own side of a shared store. It can die; then nothing it does reaches the store."""

    def __init__(
        self,
        inner: RunStore | None = None,
        *,
        settings: CheckpointSettings = _DEFAULTS,
        clock: Clock = SYSTEM_CLOCK,
        ports: Ports | None = None,
        loop_turns: int = 0,
        **options: Any,
    ) -> None:
        self.inner = inner if inner is not None else MemoryStore(clock=clock)
        self.store = ProbeStore(self.inner, loop_turns=loop_turns)
        self.checkpoints = StoreCheckpoints(self.store, settings=settings, clock=clock)
        self.executor = Executor(replace(ports or Ports(), checkpoints=self.checkpoints), clock=clock, **options)

    async def crash(self) -> None:
        """End as by SIGKILL: whatever still runs here writes nothing more, and others know this worker is gone."""
        self.store.die()
        await self.inner.deregister_worker(self.checkpoints.worker_id)

    async def claim(self, agent: AgentSource, run_id: str) -> Resumption:
        """Take over a run that another host left."""
        await self.checkpoints.open()
        claim = await self.store.claim(run_id, self.checkpoints.worker_id, statuses=MANUALLY_CLAIMABLE)
        return self.checkpoints.resume(claim, await self.store.load(run_id), get_loop(agent).codec)

    async def resume(self, agent: AgentSource, run_id: str) -> Result:
        """Take over the run and drive it to its end."""
        return await self.executor.resume(agent, await self.claim(agent, run_id))

    async def list_records(self) -> list[RunRecord]:
        return [record async for record in iter_runs(self.inner)]

    async def get_statuses(self) -> dict[str, RunStatus]:
        return {record.run_id: record.status for record in await self.list_records()}
