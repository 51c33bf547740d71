"""App: the one place where the parts are joined."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from holdfast.checkpoint.checkpointer import CheckpointSettings
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.concurrency import close_with_timeout
from holdfast.core.agent import AgentSource
from holdfast.core.errors import DefinitionError, RunCancelled
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.run import OnCancel
from holdfast.core.execution.shutdown import can_install_handlers, install_signal_handlers
from holdfast.core.info import RunInfo
from holdfast.core.ports import Audit, Budget, Critic, Ports, RunListener, ToolProvider
from holdfast.core.redaction import Redact
from holdfast.core.result import Result
from holdfast.runtime.attach import RecentOutcomes, RunAttacher
from holdfast.runtime.client import DEFAULT_RETENTION, RunClient
from holdfast.runtime.janitor import Janitor
from holdfast.runtime.worker import RecoveryReport, StartupRecovery, Worker
from holdfast.stores.redacting import RedactingStore
from holdfast.stores.url import store_from_url


class App:
    """Agents, a store and ports, joined: runs that survive.

    Used as `async with App(agents) as app:`. On entry the store is opened and, in the background, whatever an earlier
    process left behind goes on; on exit runs are brought to their next step boundary and left for recovery.
    """

    def __init__(
        self,
        agents: Iterable[AgentSource],
        store: CheckpointStore | str | None = "",
        *,
        recover_on_start: bool = True,
        concurrency: int = 16,
        shutdown_timeout: timedelta = timedelta(seconds=30),
        handle_signals: bool = True,
        require_durability: bool = True,
        save_interval: timedelta = timedelta(0),
        max_transcript_bytes: int | None = None,
        failed_retention: timedelta | None = None,
        result_retention: timedelta = DEFAULT_RETENTION,
        redact: Redact | None = None,
        audit: Audit | None = None,
        budget: Budget | None = None,
        critic: Critic | None = None,
        listener: RunListener | None = None,
        extra_tools: ToolProvider | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Join the parts.

        Args:
            agents: interrupted runs find their agent here, by name.
            store: a store, or the URL of one; `""` is the default (`HOLDFAST_STORE`, else SQLite under `.holdfast/`),
                `None` makes runs in memory only.
            recover: go on at entry with what an earlier process left behind.
            concurrency: how many recovered or served runs are driven at once.
            grace: how long runs may take at exit to reach their next step boundary. A store that does not answer then
                holds the exit up for some seconds more, not longer.
            signals: shut down on SIGTERM and SIGINT, unless somebody else handles them: every run is left for recovery,
                and a second signal ends the process.
            required: refuse a run that cannot be made durable.
            throttle: lose at most this much progress, for fewer writes.
            max_transcript_bytes: park a run whose transcript grows beyond this.
            failed_retention: keep failed runs for so long, to be resumed by hand.
            retention: how long the ends of submitted runs are kept.
            redact: takes secrets out of everything before it is stored, but for ids and names. A resumed run finds what
                was stored, and two prompts that differ in their secrets only are the same.
        """
        made_of = {name: value for name, value in locals().items() if name != "self"}
        self._agents = _index_agents(agents)
        self._options = {**made_of, "agents": tuple(self._agents.values())}
        given = store_from_url(store or None) if isinstance(store, str) else store
        if given is not None and redact is not None:
            given = RedactingStore(given, redact)
        settings = CheckpointSettings(
            save_interval=save_interval, max_transcript_bytes=max_transcript_bytes, failed_retention=failed_retention
        )
        self._checkpoints = StoreCheckpoints(
            given,
            settings=settings,
            clock=clock,
            cancel_children=lambda run_id: self._client.cancel_children(run_id),
        )
        self._ports = Ports(
            checkpoints=self._checkpoints if given is not None else None,
            audit=audit,
            budget=budget,
            critic=critic,
            listener=listener,
            extra_tools=extra_tools,
        )
        self._checkpoint_store, self._recover_on_start, self._shutdown_timeout = (
            given,
            recover_on_start,
            shutdown_timeout,
        )
        self._clock, self._require_durability = clock, require_durability
        self._concurrency, self._result_retention = concurrency, result_retention
        self._recent_outcomes = RecentOutcomes()
        self._handle_signals = handle_signals
        self._remove_signal_handlers: Callable[[], None] = lambda: None
        self._executor: Executor | None = None
        self._stopping = asyncio.Event()
        self._janitor_task: asyncio.Task[None] | None = None
        self._recovery_task: asyncio.Task[None] | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._checkpoints.open()
        self._stopping = asyncio.Event()
        self._executor = Executor(self._ports, clock=self._clock, require_durability=self._require_durability)
        if self._handle_signals and can_install_handlers():
            self._remove_signal_handlers = install_signal_handlers(self.shutdown)
        if self._checkpoint_store is not None:
            house = Janitor(self._checkpoints, self._executor, clock=self._clock)
            self._janitor_task = asyncio.create_task(house.run())
            if self._recover_on_start:
                boot = StartupRecovery(self._recovery, self._checkpoints, self._executor, self._agents, self._clock)
                self._recovery_task = asyncio.create_task(boot.recover())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def shutdown(self, timeout: timedelta | None = None) -> None:
        """Stop taking runs, bring those under way to their next step boundary, and close the store and the ports.

        Trouble with closing one is logged, and keeps none of the others from being closed.
        """
        self._stopping.set()
        await _cancel_task(self._janitor_task)
        # Recovered runs come to their boundary like any other; only then may what waits for them be ended.
        await self._open_executor.shutdown(self._shutdown_timeout if timeout is None else timeout)
        await _cancel_task(self._recovery_task)
        for port in (self._ports.audit, self._ports.budget):
            # A battery that holds a database, or rows that wait to be written.
            close = getattr(port, "close", None)
            if close is not None:
                await close_with_timeout(type(port).__name__, close, self._clock)
        self._remove_signal_handlers()

    @property
    def _open_executor(self) -> Executor:
        if self._executor is None:
            raise DefinitionError("the App is not open: use it as `async with app:`")
        return self._executor

    @property
    def _client(self) -> RunClient:
        assert self._open_executor
        return RunClient(self._store_checkpoints, self._agents, retention=self._result_retention)

    @property
    def _recovery(self) -> Worker:
        return Worker(
            self._store_checkpoints,
            self._open_executor,
            self._agents,
            concurrency=self._concurrency,
            retention=self._result_retention,
            on_end=self._recent_outcomes.record,
            clock=self._clock,
        )

    @property
    def _store_checkpoints(self) -> StoreCheckpoints:
        if self._checkpoint_store is None:
            raise DefinitionError("this App has no store: give it one to submit, recover or resume runs")
        return self._checkpoints

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

    def replace(self, **changes: Any) -> "App":
        """A new App, not open, made as this one was but for `changes`, which are arguments of `App`."""
        return App(**{**self._options, **changes})

    def agent(self, name: str) -> AgentSource:
        """The agent of this name.

        Raises:
            DefinitionError: there is none.
        """
        if name not in self._agents:
            raise DefinitionError(f"no agent {name!r}: known are {', '.join(sorted(self._agents)) or 'none'}")
        return self._agents[name]

    # -- runs ---------------------------------------------------------------------------------------------------

    async def run(
        self,
        agent: AgentSource | str,
        prompt: str,
        *,
        run_id: str | None = None,
        caller_id: str = "",
        channel_id: str = "",
        guild_id: str = "",
        labels: Mapping[str, str] | None = None,
        on_cancel: OnCancel = "cancel",
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
        info = RunInfo.create(
            source,
            prompt,
            run_id=run_id,
            caller_id=caller_id,
            channel_id=channel_id,
            guild_id=guild_id,
            labels=labels,
        )
        if run_id is None or self._checkpoint_store is None:
            return await self._open_executor.start(source, info, on_cancel=on_cancel)
        reunion = RunAttacher(
            self._client,
            self._open_executor,
            self._recent_outcomes,
            worker_id=self._checkpoints.worker_id,
            resume=lambda run_id: self._claim_and_resume(run_id, CLAIMABLE_STATUSES, on_cancel),
            clock=self._clock,
        )
        return await reunion.run_or_attach(info, lambda: self._open_executor.start(source, info, on_cancel=on_cancel))

    def run_sync(
        self,
        agent: AgentSource | str,
        prompt: str,
        *,
        run_id: str | None = None,
        caller_id: str = "",
        channel_id: str = "",
        guild_id: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> Result:
        """`run` for code without an event loop. Opens and closes the App; Ctrl-C leaves a run that can be resumed."""

        async def whole() -> Result:
            async with self:
                return await self.run(
                    agent,
                    prompt,
                    run_id=run_id,
                    caller_id=caller_id,
                    channel_id=channel_id,
                    guild_id=guild_id,
                    labels=labels,
                )

        return asyncio.run(whole())

    async def submit(
        self,
        agent: AgentSource | str,
        prompt: str,
        *,
        run_id: str | None = None,
        caller_id: str = "",
        channel_id: str = "",
        guild_id: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """Queue a run for whichever process serves. Durable when this returns. Submitting the same again is fine.

        Raises:
            RunConflict: there is a run with this id, and it has another agent or prompt.
            RunExists: it is the same run, but `run` has begun it, so its result will not be kept.
        """
        info = RunInfo.create(
            self._resolve_agent(agent),
            prompt,
            run_id=run_id,
            caller_id=caller_id,
            channel_id=channel_id,
            guild_id=guild_id,
            labels=labels,
        )
        return await self._client.submit(info)

    async def result(self, run_id: str) -> Result:
        """Wait for the end of a submitted run, whichever process drives it. Raises as `RunClient.result` says."""
        return await self._client.result(run_id)

    async def recover(self) -> RecoveryReport:
        """Go on with every run that is interrupted now, to its end."""
        return await self._recovery.recover()

    async def serve(self) -> None:
        """Be a worker: take queued and interrupted runs until the App shuts down."""
        await self._recovery.serve(self._stopping)

    async def resume(self, run_id: str, *, on_cancel: OnCancel = "cancel") -> Result:
        """Go on with one interrupted, parked or failed run, here and now, to its end.

        Args:
            on_cancel: as for `run`.

        Raises:
            CheckpointError: it is not there, is owned by a live worker, is over, or cannot be read.
        """
        # A person's wish is not a strike, and outweighs an earlier end.
        statuses = {*CLAIMABLE_STATUSES, RunStatus.PARKED, RunStatus.FAILED, RunStatus.CANCELLED}
        return await self._claim_and_resume(run_id, statuses, on_cancel, manual=True)

    async def _claim_and_resume(
        self, run_id: str, statuses: Collection[RunStatus], on_cancel: OnCancel, *, manual: bool = False
    ) -> Result:
        record = await self._client.get_record(run_id)
        agent = self.agent(record.agent_name)
        resumption = await self._recovery.claim_and_load(record, statuses, manual=manual)
        if resumption is None:  # it has struck out
            return await self._client.result(run_id)
        self._recent_outcomes.discard(run_id)
        return await self._open_executor.resume(agent, resumption, on_cancel=on_cancel)

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

    def _store(self) -> CheckpointStore:
        store = self._store_checkpoints.store
        assert store is not None
        return store


async def _cancel_task(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _index_agents(agents: Iterable[AgentSource]) -> dict[str, AgentSource]:
    table: dict[str, AgentSource] = {}
    for agent in agents:
        if agent.name in table:
            raise DefinitionError(f"two agents are named {agent.name!r}: interrupted runs find their agent by its name")
        table[agent.name] = agent
    return table
