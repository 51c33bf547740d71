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

    worker: Worker
    janitor: Janitor
    attacher: RunAttacher
    health: HealthCheck

    @classmethod
    def open(
        cls,
        services: StoreServices,
        executor: Executor,
        agents: Mapping[str, AgentSource],
        settings: WorkerSettings,
        clock: Clock,
        *,
        counts_runs: bool,
    ) -> Self:
        """Make the parts, and start the janitor, which `counts_runs` for the telemetry."""
        worker = Worker(
            services, executor, agents, concurrency=settings.concurrency, max_runs=settings.max_runs, clock=clock
        )
        janitor = Janitor(services.checkpoints, executor, services.changes, clock=clock, counts_runs=counts_runs)
        janitor.start()
        return cls(
            worker=worker,
            janitor=janitor,
            attacher=RunAttacher(services, agents, worker, janitor, executor, clock=clock),
            health=HealthCheck(services.store, worker, clock),
        )
