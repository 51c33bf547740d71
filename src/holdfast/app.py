"""App: the one place where the parts are joined."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.concurrency import close_with_timeout
from holdfast.config import CheckpointSettings, WorkerSettings
from holdfast.core.agent import AgentSource
from holdfast.core.errors import DefinitionError, RunCancelled
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.run import OnCancel
from holdfast.core.execution.shutdown import can_install_handlers, install_signal_handlers
from holdfast.core.info import RunInfo, RunLabels
from holdfast.core.ports import Audit, Budget, Critic, Ports, RunListener, ToolProvider
from holdfast.core.result import Result
from holdfast.runtime.attach import RunAttacher
from holdfast.runtime.client import RunClient, find_agent
from holdfast.runtime.janitor import Janitor
from holdfast.runtime.outcomes import RecentOutcomes
from holdfast.runtime.worker import RecoveryReport, Worker
from holdfast.stores.redacting import RedactingStore
from holdfast.stores.url import store_from_url

_CHECKPOINT_DEFAULTS = CheckpointSettings()
_WORKER_DEFAULTS = WorkerSettings()


class AppOptions(TypedDict, total=False):
    """The parameters of `App`, for `App.replace`."""

    agents: Iterable[AgentSource]
    store: CheckpointStore | str | None
    checkpoint: CheckpointSettings
    worker: WorkerSettings
    audit: Audit | None
    budget: Budget | None
    critic: Critic | None
    listener: RunListener | None
    extra_tools: ToolProvider | None
    clock: Clock


@dataclass(frozen=True, slots=True)
class _StoreParts:
    """The parts of an open App that work on its store."""

    checkpoints: StoreCheckpoints
    client: RunClient
    worker: Worker
    attacher: RunAttacher
    janitor: Janitor


class App:
    """Agents, a store and ports, joined: runs that survive.

    Used as `async with App(agents) as app:`. On entry the App opens its store and resumes, in the background, the runs
    that earlier processes left. On exit it lets runs reach their next step boundary and leaves them for recovery.
    """

    def __init__(
        self,
        agents: Iterable[AgentSource],
        store: CheckpointStore | str | None = "",
        *,
        checkpoint: CheckpointSettings = _CHECKPOINT_DEFAULTS,
        worker: WorkerSettings = _WORKER_DEFAULTS,
        audit: Audit | None = None,
        budget: Budget | None = None,
        critic: Critic | None = None,
        listener: RunListener | None = None,
        extra_tools: ToolProvider | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Join the parts.

        Args:
            agents: an interrupted run finds its agent here, by name.
            store: a store, or the URL of one. `""` is the default (`HOLDFAST_STORE`, else SQLite under `.holdfast/`).
                `None` keeps runs in memory only.
            checkpoint: how runs are saved.
            worker: how this process executes stored runs, and how it stops.

        Raises:
            DefinitionError: two agents have the same name, or a setting has a wrong type.
            StoreError: the URL names no store.
        """
        _check_settings(checkpoint, worker)
        self._agents = _index_agents(agents)
        self._options: AppOptions = {
            "agents": tuple(self._agents.values()),
            "store": store,
            "checkpoint": checkpoint,
            "worker": worker,
            "audit": audit,
            "budget": budget,
            "critic": critic,
            "listener": listener,
            "extra_tools": extra_tools,
            "clock": clock,
        }
        self._checkpoint_settings, self._worker_settings, self._clock = checkpoint, worker, clock
        given = store_from_url(store or None) if isinstance(store, str) else store
        if given is not None and checkpoint.redact is not None:
            given = RedactingStore(given, checkpoint.redact)
        self._checkpoint_store = given
        self._checkpoints = StoreCheckpoints(given, settings=checkpoint, clock=clock) if given is not None else None
        self._ports = Ports(
            checkpoints=self._checkpoints,
            audit=audit,
            budget=budget,
            critic=critic,
            listener=listener,
            extra_tools=extra_tools,
        )
        self._recent_outcomes = RecentOutcomes()
        self._remove_signal_handlers: Callable[[], None] | None = None
        #: The parts of an open App.
        self._executor: Executor | None = None
        self._parts: _StoreParts | None = None

    # -- lifecycle ----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        executor = Executor(
            self._ports, clock=self._clock, require_durability=self._checkpoint_settings.require_durability
        )
        if self._checkpoints is not None:
            await self._checkpoints.open()
            self._parts = self._open_parts(self._checkpoints, executor)
        self._executor = executor
        if self._worker_settings.handle_signals and can_install_handlers():
            self._remove_signal_handlers = install_signal_handlers(self.shutdown)
        return self

    def _open_parts(self, checkpoints: StoreCheckpoints, executor: Executor) -> "_StoreParts":
        settings, retention = self._worker_settings, self._checkpoint_settings.result_retention
        client = RunClient(checkpoints, self._agents, retention=retention)
        worker = Worker(
            checkpoints,
            executor,
            client,
            self._agents,
            self._recent_outcomes,
            concurrency=settings.concurrency,
            retention=retention,
            clock=self._clock,
        )
        attacher = RunAttacher(client, worker, executor, self._recent_outcomes, clock=self._clock)
        janitor = Janitor(checkpoints, executor, clock=self._clock)
        janitor.start()
        if settings.recover_on_start:
            worker.start()
        return _StoreParts(checkpoints, client, worker, attacher, janitor)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def shutdown(self, timeout: timedelta | None = None) -> None:
        """Stop taking runs, let those under way reach their next step boundary, and close the store and the ports.

        An error while closing one of them is logged, and the others are closed all the same.
        """
        executor = self._open_executor
        if self._parts is not None:
            self._parts.worker.stop()
            await self._parts.janitor.close()
        await executor.shutdown(self._worker_settings.shutdown_timeout if timeout is None else timeout)
        if self._parts is not None:
            # After the executor: recovered runs are drained like any other.
            await self._parts.worker.close()
        for port in (self._ports.audit, self._ports.budget):
            # A battery may hold a database connection, or rows that are not written yet.
            close = getattr(port, "close", None)
            if close is not None:
                await close_with_timeout(type(port).__name__, close, self._clock)
        if self._remove_signal_handlers is not None:
            self._remove_signal_handlers()

    @property
    def _open_executor(self) -> Executor:
        if self._executor is None:
            raise DefinitionError("the App is not open: use it as `async with app:`")
        return self._executor

    @property
    def _stored(self) -> "_StoreParts":
        if self._checkpoint_store is None:
            raise DefinitionError("this App has no store: give it one to submit, recover or resume runs")
        if self._parts is None:
            raise DefinitionError("the App is not open: use it as `async with app:`")
        return self._parts

    @property
    def _client(self) -> RunClient:
        return self._stored.client

    @property
    def store(self) -> CheckpointStore | None:
        """The store that the runs of this App are in."""
        return self._checkpoint_store

    @property
    def agents(self) -> Mapping[str, AgentSource]:
        """The agents, by name."""
        return self._agents

    @property
    def ports(self) -> Ports:
        """What the runs of this App are given."""
        return self._ports

    @property
    def checkpoint_settings(self) -> CheckpointSettings:
        return self._checkpoint_settings

    @property
    def worker_settings(self) -> WorkerSettings:
        return self._worker_settings

    def replace(self, **changes: Unpack[AppOptions]) -> "App":
        """Return a new App, not open, with the same arguments except `changes`."""
        options: AppOptions = {**self._options, **changes}
        return App(**options)

    def agent(self, name: str) -> AgentSource:
        """The agent of this name.

        Raises:
            DefinitionError: there is none.
        """
        return find_agent(self._agents, name)

    # -- runs ---------------------------------------------------------------------------------------------------

    async def run(
        self,
        agent: AgentSource | str,
        prompt: str,
        *,
        run_id: str | None = None,
        on_cancel: OnCancel = "cancel",
        **labels: Unpack[RunLabels],
    ) -> Result:
        """Run an agent to its end, in this process.

        With a `run_id` that is in the store already, the same run goes on instead: what an earlier process left is
        resumed, what is under way here is waited for, what was submitted and is over gives its result. So does what
        recovery has brought to its end in this process. Any other run is gone once it is over, and its id is free
        again: to call once and ask for the result more often, `submit` the run.

        Args:
            on_cancel: a cancel of whoever waits here, or of all tasks by an event loop that ends, does not end
                the run, but leaves it for recovery.

        Raises:
            RunError: the run did not end with an answer; the kind says why. A model's own exception comes out as it is.
            RunFailed: the run with this id has failed before.
            RunConflict: there is a run with this id, and it has another agent or prompt.
            RunBusy: a live worker elsewhere owns the run with this id.
            RunParked: it waits for a person: `unpark` it, or `resume` it by hand.
        """
        source = self._resolve_agent(agent)
        info = RunInfo.create(source, prompt, run_id=run_id, **labels)
        if run_id is None or self._checkpoint_store is None:
            return await self._open_executor.start(source, info, on_cancel=on_cancel)
        return await self._stored.attacher.run_or_attach(source, info, on_cancel)

    def run_sync(
        self,
        agent: AgentSource | str,
        prompt: str,
        *,
        run_id: str | None = None,
        **labels: Unpack[RunLabels],
    ) -> Result:
        """`run` for code without an event loop. Opens and closes the App; Ctrl-C leaves a run that can be resumed."""

        async def main() -> Result:
            async with self:
                return await self.run(agent, prompt, run_id=run_id, **labels)

        return asyncio.run(main())

    async def submit(
        self,
        agent: AgentSource | str,
        prompt: str,
        *,
        run_id: str | None = None,
        **labels: Unpack[RunLabels],
    ) -> str:
        """Queue a run for whichever process serves. Durable when this returns. Submitting the same again is fine.

        Raises:
            RunConflict: there is a run with this id, and it has another agent or prompt.
            RunExists: it is the same run, but `run` has begun it, so its result will not be kept.
        """
        info = RunInfo.create(self._resolve_agent(agent), prompt, run_id=run_id, **labels)
        return await self._client.submit(info)

    async def result(self, run_id: str) -> Result:
        """Wait for the end of a submitted run, whichever process drives it. Raises as `RunClient.result` says."""
        return await self._client.result(run_id)

    async def recover(self) -> RecoveryReport:
        """Resume every run that is interrupted now, and wait for its end. Runs within their backoff are not taken."""
        return await self._stored.worker.recover()

    async def serve(self) -> None:
        """Take queued and interrupted runs until the App shuts down."""
        await self._stored.worker.serve()

    async def resume(self, run_id: str, *, on_cancel: OnCancel = "cancel") -> Result:
        """Resume one interrupted, parked, failed or cancelled run in this process, and wait for its end.

        Args:
            on_cancel: as for `run`.

        Raises:
            CheckpointError: it is not there, is owned by a live worker, is done, or cannot be read.
        """
        statuses = {*CLAIMABLE_STATUSES, RunStatus.PARKED, RunStatus.FAILED, RunStatus.CANCELLED}
        record = await self._client.get_record(run_id)
        return await self._stored.worker.resume(record, statuses, manual=True, on_cancel=on_cancel)

    async def cancel(self, run_id: str) -> None:
        """Cancel a run, also one that another process owns: its owner is asked, and ends it at once.

        The unfinished runs that it has started end with it.
        """
        live = self._open_executor.get_run(run_id)
        if live is not None:
            live.stop(RunCancelled(f"run {run_id} was cancelled"))
            return
        await self._client.cancel(run_id)

    async def unpark(self, run_id: str, resolutions: Mapping[str, Any] | None = None) -> None:
        """Let a parked run go on. Raises as `RunClient.unpark` says."""
        await self._client.unpark(run_id, resolutions)

    async def fork(self, run_id: str, at_step: int, *, new_id: str | None = None) -> str:
        """Queue a new run that begins where `run_id` was after `at_step`. The old one is not touched."""
        return await self._client.fork(run_id, at_step, new_id=new_id)

    def steer(self, run_id: str, text: str) -> None:
        """Put a message in front of the next step of a run that this process drives.

        It is saved with the run's next save, at the latest by a shutdown, and is said to a resumed run then. A process
        that is killed before that takes it along.

        Raises:
            RunNotFound: this process does not drive it.
            PayloadError: the text cannot be stored, such as half a surrogate pair. Nothing was changed.
        """
        live = self._open_executor.get_run(run_id)
        if live is None:
            raise RunNotFound(run_id)
        live.steer(text)

    def _resolve_agent(self, agent: AgentSource | str) -> AgentSource:
        """The agent, which recovery will be able to find by its name."""
        known = self.agent(agent if isinstance(agent, str) else agent.name)
        if not isinstance(agent, str) and known is not agent:
            raise DefinitionError(f"another agent of this App is named {agent.name!r}: recovery would take that one")
        return known


def _check_settings(checkpoint: Any, worker: Any) -> None:
    if not isinstance(checkpoint, CheckpointSettings):
        raise DefinitionError(f"checkpoint is {checkpoint!r:.80}: give a CheckpointSettings")
    if not isinstance(worker, WorkerSettings):
        raise DefinitionError(f"worker is {worker!r:.80}: give a WorkerSettings")


def _index_agents(agents: Iterable[AgentSource]) -> dict[str, AgentSource]:
    table: dict[str, AgentSource] = {}
    for agent in agents:
        if agent.name in table:
            raise DefinitionError(f"two agents are named {agent.name!r}: interrupted runs find their agent by its name")
        table[agent.name] = agent
    return table
