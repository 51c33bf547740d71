"""The parts of an open App that work on its store."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.clock import Clock
from holdfast.config import WorkerSettings
from holdfast.core.agents.agent import AgentSource
from holdfast.core.execution.executor import Executor
from holdfast.runtime.attach import RunAttacher
from holdfast.runtime.changes import ChangeSignal
from holdfast.runtime.janitor import Janitor
from holdfast.runtime.operations.mailing import Mailer
from holdfast.runtime.operations.run_client import RunClient
from holdfast.runtime.status_server import HealthCheck
from holdfast.runtime.streams.hub import EventHub
from holdfast.runtime.worker import Worker


@dataclass(frozen=True)
class StoreParts:
    """Made when an App opens. The worker is not started."""

    checkpoints: StoreCheckpoints
    client: RunClient
    mailer: Mailer
    worker: Worker
    attacher: RunAttacher
    janitor: Janitor
    hub: EventHub
    health: HealthCheck

    @classmethod
    def open(
        cls,
        checkpoints: StoreCheckpoints,
        executor: Executor,
        hub: EventHub,
        changes: ChangeSignal,
        agents: Mapping[str, AgentSource],
        settings: WorkerSettings,
        clock: Clock,
        *,
        counts_runs: bool,
    ) -> Self:
        """Make the parts, and start the janitor, which `counts_runs` for the telemetry."""
        client = RunClient(checkpoints, agents, changes)
        worker = Worker(
            checkpoints,
            executor,
            client,
            agents,
            changes,
            concurrency=settings.concurrency,
            max_runs=settings.max_runs,
            clock=clock,
        )
        janitor = Janitor(checkpoints, executor, changes, clock=clock, counts_runs=counts_runs)
        janitor.start()
        return cls(
            checkpoints=checkpoints,
            client=client,
            mailer=Mailer(checkpoints.store, clock=clock),
            worker=worker,
            attacher=RunAttacher(client, worker, executor, clock=clock),
            janitor=janitor,
            hub=hub,
            health=HealthCheck(checkpoints.store, worker, clock),
        )
