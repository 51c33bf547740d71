"""App: the one place where the parts are joined."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from holdfast.checkpoint.boot import BootRecovery
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.factory import Checkpoints
from holdfast.checkpoint.handle import HandleSettings
from holdfast.checkpoint.housekeeping import Housekeeping
from holdfast.checkpoint.lifecycle import CLAIMABLE, Status
from holdfast.checkpoint.opening import store_from_url
from holdfast.checkpoint.operations import RETENTION, Operations
from holdfast.checkpoint.recovery import Recovery, RecoveryReport
from holdfast.checkpoint.redacting import RedactingStore
from holdfast.checkpoint.reunion import Ends, Reunion
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.run.agent import AgentSource
from holdfast.run.drain import close_in_time
from holdfast.run.errors import DefinitionError, RunCancelled
from holdfast.run.executor import Executor, new_run
from holdfast.run.outcome import Result
from holdfast.run.ports import Audit, Budget, Critic, Delivery, Palette, Ports
from holdfast.run.redaction import Redact
from holdfast.run.signals import on_first_signal, unclaimed


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
        recover: bool = True,
        concurrency: int = 16,
        grace: timedelta = timedelta(seconds=30),
        signals: bool = True,
        required: bool = True,
        throttle: timedelta = timedelta(0),
        max_bytes: int | None = None,
        keep_failed: timedelta | None = None,
        retention: timedelta = RETENTION,
        redact: Redact | None = None,
        audit: Audit | None = None,
        budget: Budget | None = None,
        critic: Critic | None = None,
        delivery: Delivery | None = None,
        palette: Palette | None = None,
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
            max_bytes: park a run whose transcript grows beyond this.
            keep_failed: keep failed runs for so long, to be resumed by hand.
            retention: how long the ends of submitted runs are kept.
            redact: takes secrets out of everything before it is stored, but for ids and names. A resumed run finds what
                was stored, and two prompts that differ in their secrets only are the same.
        """
        made_of = {name: value for name, value in locals().items() if name != "self"}
        self._agents = _by_name(agents)
        self._made_of = {**made_of, "agents": tuple(self._agents.values())}
        given = store_from_url(store or None) if isinstance(store, str) else store
        if given is not None and redact is not None:
            given = RedactingStore(given, redact)
        settings = HandleSettings(throttle=throttle, max_bytes=max_bytes, keep_failed=keep_failed)
        self._checkpoints = Checkpoints(
            given, settings=settings, clock=clock,
            cancel_children=lambda run_id: self._operations.cancel_children(run_id),
        )  # fmt: skip
        self._ports = Ports(
            checkpoints=self._checkpoints if given is not None else None,
            audit=audit, budget=budget, critic=critic, delivery=delivery, palette=palette,
        )  # fmt: skip
        self._given, self._recover_at_entry, self._grace = given, recover, grace
        self._clock, self._required = clock, required
        self._concurrency, self._retention = concurrency, retention
        self._ends = Ends()
        self._signals = signals
        self._unhandle_signals: Callable[[], None] = lambda: None
        self._executor: Executor | None = None
        self._stopping = asyncio.Event()
        self._housekeeping: asyncio.Task[None] | None = None
        self._recovering: asyncio.Task[None] | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._checkpoints.open()
        self._stopping = asyncio.Event()
        self._executor = Executor(self._ports, clock=self._clock, required=self._required)
        if self._signals and unclaimed():
            self._unhandle_signals = on_first_signal(self.shutdown)
        if self._given is not None:
            house = Housekeeping(self._checkpoints, self._executor, clock=self._clock)
            self._housekeeping = asyncio.create_task(house.keep())
            if self._recover_at_entry:
                boot = BootRecovery(self._recovery, self._checkpoints, self._executor, self._agents, self._clock)
                self._recovering = asyncio.create_task(boot.recover())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def shutdown(self, grace: timedelta | None = None) -> None:
        """Stop taking runs, bring those under way to their next step boundary, and close the store and the ports.

        Trouble with closing one is logged, and keeps none of the others from being closed.
        """
        self._stopping.set()
        await _end(self._housekeeping)
        # Recovered runs come to their boundary like any other; only then may what waits for them be ended.
        await self._executing.shutdown(self._grace if grace is None else grace)
        await _end(self._recovering)
        for port in (self._ports.audit, self._ports.budget):
            # A battery that holds a database, or rows that wait to be written.
            close = getattr(port, "close", None)
            if close is not None:
                await close_in_time(type(port).__name__, close, self._clock)
        self._unhandle_signals()

    @property
    def _executing(self) -> Executor:
        if self._executor is None:
            raise DefinitionError("the App is not open: use it as `async with app:`")
        return self._executor

    @property
    def _operations(self) -> Operations:
        assert self._executing
        return Operations(self._durable, self._agents, retention=self._retention)

    @property
    def _recovery(self) -> Recovery:
        return Recovery(
            self._durable, self._executing, self._agents, concurrency=self._concurrency,
            retention=self._retention, on_end=self._ends.remember, clock=self._clock,
        )  # fmt: skip

    @property
    def _durable(self) -> Checkpoints:
        if self._given is None:
            raise DefinitionError("this App has no store: give it one to submit, recover or resume runs")
        return self._checkpoints

    @property
    def store(self) -> CheckpointStore | None:
        """The store that the runs of this App are in."""
        return self._given

    @property
    def agents(self) -> Mapping[str, AgentSource]:
        """The agents, by name."""
        return self._agents

    @property
    def ports(self) -> Ports:
        """What the runs of this App are given."""
        return self._ports

    def variant(self, **changes: Any) -> "App":
        """A new App, not open, made as this one was but for `changes`, which are arguments of `App`."""
        return App(**{**self._made_of, **changes})

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
        left_with_caller: bool = False,
    ) -> Result:
        """Run an agent to its end, in this process.

        With a `run_id` that is in the store already, the same run goes on instead: what an earlier process left is
        resumed, what is under way here is waited for, what was submitted and is over gives its result. So does what
        recovery has brought to its end in this process. Any other run is gone once it is over, and its id is free
        again: to call once and ask for the result more often, `submit` the run.

        Args:
            left_with_caller: a cancel of whoever waits here, or of all tasks by an event loop that ends, does not end
                the run, but leaves it for recovery.

        Raises:
            RunError: the run did not end with an answer; the kind says why. A model's own exception comes out as it is.
            RunFailed: the run with this id has failed before.
            RunConflict: there is a run with this id, and it has another agent or prompt.
            RunBusy: a live worker elsewhere owns the run with this id.
            RunParked: it waits for a person: `unpark` it, or `resume` it by hand.
        """
        source = self._known(agent)
        info = new_run(
            source, prompt, run_id=run_id, caller_id=caller_id, channel_id=channel_id, guild_id=guild_id, labels=labels
        )
        if run_id is None or self._given is None:
            return await self._executing.begin(source, info, left_with_caller=left_with_caller)
        reunion = Reunion(
            self._operations, self._executing, self._ends, worker_id=self._checkpoints.worker_id,
            resume=lambda run_id: self._resume(run_id, CLAIMABLE, left_with_caller), clock=self._clock,
        )  # fmt: skip
        return await reunion.meet(info, lambda: self._executing.begin(source, info, left_with_caller=left_with_caller))

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
                    agent, prompt, run_id=run_id, caller_id=caller_id, channel_id=channel_id,
                    guild_id=guild_id, labels=labels,
                )  # fmt: skip

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
        info = new_run(
            self._known(agent), prompt, run_id=run_id, caller_id=caller_id, channel_id=channel_id, guild_id=guild_id,
            labels=labels,
        )  # fmt: skip
        return await self._operations.submit(info)

    async def result(self, run_id: str) -> Result:
        """Wait for the end of a submitted run, whichever process drives it. Raises as `Operations.result` says."""
        return await self._operations.result(run_id)

    async def recover(self) -> RecoveryReport:
        """Go on with every run that is interrupted now, to its end."""
        return await self._recovery.recover()

    async def serve(self) -> None:
        """Be a worker: take queued and interrupted runs until the App shuts down."""
        await self._recovery.serve(self._stopping)

    async def resume(self, run_id: str, *, left_with_caller: bool = False) -> Result:
        """Go on with one interrupted, parked or failed run, here and now, to its end.

        Args:
            left_with_caller: as for `run`.

        Raises:
            CheckpointError: it is not there, is owned by a live worker, is over, or cannot be read.
        """
        # A person's wish is not a strike, and outweighs an earlier end.
        statuses = {*CLAIMABLE, Status.PARKED, Status.FAILED, Status.CANCELLED}
        return await self._resume(run_id, statuses, left_with_caller, by_hand=True)

    async def _resume(
        self, run_id: str, statuses: Collection[Status], left_with_caller: bool, *, by_hand: bool = False
    ) -> Result:
        record = await self._operations.record(run_id)
        agent = self.agent(record.agent_name)
        resumption = await self._recovery.take(record, statuses, by_hand=by_hand)
        if resumption is None:  # it has struck out
            return await self._operations.result(run_id)
        self._ends.forget(run_id)
        return await self._executing.resume(agent, resumption, left_with_caller=left_with_caller)

    async def cancel(self, run_id: str) -> None:
        """Cancel a run, also one that another process owns: its owner is asked, and ends it at once.

        The unfinished runs that it has started end with it.
        """
        live = self._executing.live(run_id)
        if live is not None:
            live.stop(RunCancelled(f"run {run_id} was cancelled"))
            return
        await self._operations.cancel(run_id)

    async def unpark(self, run_id: str, answers: Mapping[str, Any] | None = None) -> None:
        """Let a parked run go on. Raises as `Operations.unpark` says."""
        await self._operations.unpark(run_id, answers)

    async def fork(self, run_id: str, at_step: int, *, new_id: str | None = None) -> str:
        """Queue a new run that begins where `run_id` was after `at_step`. The old one is not touched."""
        return await self._operations.fork(run_id, at_step, new_id=new_id)

    def steer(self, run_id: str, text: str) -> None:
        """Put a message in front of the next step of a run that this process drives.

        It is saved with the run's next save, at the latest by a shutdown, and is said to a resumed run then. A process
        that is killed before that takes it along.

        Raises:
            RunNotFound: this process does not drive it.
            PayloadError: the text cannot be stored, such as half a surrogate pair. Nothing was changed.
        """
        live = self._executing.live(run_id)
        if live is None:
            raise RunNotFound(run_id)
        live.steer(text)

    def _known(self, agent: AgentSource | str) -> AgentSource:
        """The agent, which recovery will be able to find by its name."""
        known = self.agent(agent if isinstance(agent, str) else agent.name)
        if not isinstance(agent, str) and known is not agent:
            raise DefinitionError(f"another agent of this App is named {agent.name!r}: recovery would take that one")
        return known

    def _store(self) -> CheckpointStore:
        store = self._durable.store
        assert store is not None
        return store


async def _end(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _by_name(agents: Iterable[AgentSource]) -> dict[str, AgentSource]:
    table: dict[str, AgentSource] = {}
    for agent in agents:
        if agent.name in table:
            raise DefinitionError(f"two agents are named {agent.name!r}: interrupted runs find their agent by its name")
        table[agent.name] = agent
    return table
