"""The parts of an open App that execute stored runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from holdfast.clock import Clock
from holdfast.config import WorkerSettings
from holdfast.core.agents.agent import AgentSource
from holdfast.core.execution.executor import Executor
from holdfast.runtime.attach import RunAttacher
from holdfast.runtime.janitor import Janitor
from holdfast.runtime.operations.store_services import StoreServices
from holdfast.runtime.status_server import HealthCheck
from holdfast.runtime.worker import Worker


@dataclass(frozen=True)
class WorkingParts:
    """Made when an App opens. The worker is not started."""

    services: StoreServices
    worker: Worker
    janitor: Janitor
    attacher: RunAttacher
    health: HealthCheck

    @classmethod
    async def open(
        cls,
        services: StoreServices,
        executor: Executor,
        agents: Mapping[str, AgentSource],
        settings: WorkerSettings,
        clock: Clock,
        *,
        counts_runs: bool,
    ) -> Self:
        """Set the limits, make the parts, and start the janitor, which `counts_runs` for the telemetry."""
        for limit in settings.concurrency_limits:
            await services.store.set_limit(limit.kind, limit.name, limit.max_runs, default=True)
        services.start()
        worker = Worker(
            services, executor, agents, concurrency=settings.concurrency, max_runs=settings.max_runs, clock=clock
        )
        janitor = Janitor(services.checkpoints, executor, services.changes, clock=clock, counts_runs=counts_runs)
        janitor.start()
        return cls(
            services=services,
            worker=worker,
            janitor=janitor,
            attacher=RunAttacher(services, agents, worker, janitor, executor, clock=clock),
            health=HealthCheck(services.store, worker, clock),
        )

    async def stop(self) -> None:
        """Take no further runs, and let callers leave who wait for other processes."""
        self.services.changes.notify()
        self.worker.stop()
        await self.janitor.close()

    async def close(self) -> None:
        """End what is left once the executor has ended its runs and claims."""
        await self.worker.close()
        await self.health.close()
        await self.services.stop()
