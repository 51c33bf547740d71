"""App: the one place where the parts are joined."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from holdfast.checkpoint.errors import CheckpointError, RunNotFound, StoreError
from holdfast.checkpoint.factory import Checkpoints
from holdfast.checkpoint.handle import HandleSettings
from holdfast.checkpoint.lifecycle import CLAIMABLE, Status
from holdfast.checkpoint.opening import store_from_url
from holdfast.checkpoint.operations import Operations
from holdfast.checkpoint.record import RunFilter
from holdfast.checkpoint.recovery import Recovery, RecoveryReport
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.run.agent import AgentSource
from holdfast.run.errors import DefinitionError, RunCancelled, RunInterrupted
from holdfast.run.executor import Executor
from holdfast.run.info import RunInfo, new_run_id
from holdfast.run.outcome import Result
from holdfast.run.ports import Audit, Budget, Critic, Delivery, Palette, Ports
from holdfast.run.signals import on_first_signal, unclaimed

log = logging.getLogger("holdfast.app")

#: How long a cancel that another process asked for may go unnoticed.
_LOOK = timedelta(seconds=1)
_HOUSEKEEPING = timedelta(seconds=30)


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
        retention: timedelta = timedelta(days=7),
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
            grace: how long runs may take at exit to reach their next step boundary.
            signals: shut down on SIGTERM and SIGINT, unless somebody else handles them: every run is left for recovery,
                and a second signal ends the process.
            required: refuse a run that cannot be made durable.
            throttle: lose at most this much progress, for fewer writes.
            max_bytes: park a run whose transcript grows beyond this.
            keep_failed: keep failed runs for so long, to be resumed by hand.
            retention: how long the ends of submitted runs are kept.
        """
        self._agents = _by_name(agents)
        given = store_from_url(store or None) if isinstance(store, str) else store
        settings = HandleSettings(throttle=throttle, max_bytes=max_bytes, keep_failed=keep_failed)
        self._checkpoints = Checkpoints(given, settings=settings, clock=clock)
        self._ports = Ports(
            checkpoints=self._checkpoints if given is not None else None,
            audit=audit, budget=budget, critic=critic, delivery=delivery, palette=palette,
        )  # fmt: skip
        self._given, self._recover_at_entry, self._grace = given, recover, grace
        self._clock, self._required = clock, required
        self._concurrency, self._retention = concurrency, retention
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
            self._housekeeping = asyncio.create_task(self._keep_house(self._given))
            if self._recover_at_entry:
                self._recovering = asyncio.create_task(self._recover_in_background(self._given))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def shutdown(self, grace: timedelta | None = None) -> None:
        """Stop taking runs, bring those under way to their next step boundary, and close the store last."""
        self._stopping.set()
        await _end(self._housekeeping)
        # Recovered runs come to their boundary like any other; only then may what waits for them be ended.
        await self._executing.shutdown(self._grace if grace is None else grace)
        await _end(self._recovering)
        self._unhandle_signals()

    @property
    def _executing(self) -> Executor:
        if self._executor is None:
            raise DefinitionError("the App is not open: use it as `async with app:`")
        return self._executor

    @property
    def _operations(self) -> Operations:
        assert self._executing
        return Operations(self._durable, self._agents)

    @property
    def _recovery(self) -> Recovery:
        return Recovery(
            self._durable, self._executing, self._agents, concurrency=self._concurrency, retention=self._retention
        )

    @property
    def _durable(self) -> Checkpoints:
        if self._given is None:
            raise DefinitionError("this App has no store: give it one to submit, recover or resume runs")
        return self._checkpoints

    @property
    def store(self) -> CheckpointStore | None:
        """The store that the runs of this App are in."""
        return self._given

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
    ) -> Result:
        """Run an agent to its end, in this process.

        Raises:
            RunError: the run did not end with an answer; the kind says why. A model's own exception comes out as it is.
        """
        return await self._executing.run(
            self._known(agent), prompt, run_id=run_id, caller_id=caller_id, channel_id=channel_id,
            guild_id=guild_id, labels=labels,
        )  # fmt: skip

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
        """
        known = self._known(agent)
        info = RunInfo(
            run_id=new_run_id() if run_id is None else run_id,
            agent_name=known.name,
            agent_id=getattr(known, "agent_id", ""),
            caller_id=caller_id,
            channel_id=channel_id,
            guild_id=guild_id,
            model_tier=getattr(known, "model_tier", ""),
            labels=dict(labels or {}),
            inputs={"prompt": prompt},
        )
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

    async def resume(self, run_id: str) -> Result:
        """Go on with one interrupted, parked or failed run, here and now, to its end.

        Raises:
            CheckpointError: it is not there, is owned by a live worker, is over, or cannot be read.
        """
        store = self._store()
        statuses = {*CLAIMABLE, Status.PARKED, Status.FAILED, Status.CANCELLED}
        record = await self._operations.record(run_id)
        agent = self.agent(record.agent_name)
        claim = await store.claim(run_id, self._checkpoints.worker_id, statuses=statuses)
        # A person's wish is not a strike.
        resumption = await self._recovery.resumption(claim, by_hand=True)
        assert resumption is not None
        return await self._executing.resume(agent, resumption)

    async def cancel(self, run_id: str) -> None:
        """Cancel a run, also one that another process owns: its owner is asked, and ends it at once."""
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

        Raises:
            RunNotFound: this process does not drive it.
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

    # -- in the background --------------------------------------------------------------------------------------

    async def _recover_in_background(self, store: CheckpointStore) -> None:
        """What was left behind goes on, and what is within its backoff as soon as that is over."""
        while not self._stopping.is_set():
            try:
                log.info("%s", await self.recover())
                waits = await self._next_backoff(store)
            except RunInterrupted:
                return
            except StoreError as exc:
                log.warning("recovery could not look for runs, will try again: %s", exc)
                waits = _HOUSEKEEPING
            if waits is None:
                return
            await self._clock.sleep(waits)

    async def _next_backoff(self, store: CheckpointStore) -> timedelta | None:
        now = self._clock.now()
        waits = [
            max(record.not_before - now, timedelta(milliseconds=100))
            async for record in store.records(RunFilter(interrupted=True))
            if record.agent_name in self._agents and record.not_before > now
        ]
        return min(waits, default=None)

    async def _keep_house(self, store: CheckpointStore) -> None:
        """One small look at the store for all runs of this process: cancels, expired results, unsettled ends."""
        last = self._clock.monotonic() - _HOUSEKEEPING.total_seconds()
        while True:
            try:
                await store.changed(_LOOK)
                for run_id in await store.cancels(self._checkpoints.worker_id):
                    live = self._executing.live(run_id)
                    if live is not None:
                        live.stop(RunCancelled(f"run {run_id} was cancelled"))
                if self._clock.monotonic() - last >= _HOUSEKEEPING.total_seconds():
                    last = self._clock.monotonic()
                    await self._checkpoints.settle_again()
                    while await store.purge():
                        pass
            except CheckpointError as exc:
                log.warning("housekeeping failed, will try again: %s", exc)
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _LOOK.total_seconds())


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
