"""The executor: drives runs to their outcome and settles their checkpoints on every way out."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock, Timer
from holdfast.run.agent import Agent, AgentSource
from holdfast.run.drain import LAST_WORDS, Drain, close_in_time, within
from holdfast.run.errors import (
    DefinitionError,
    NotAdmitted,
    NotDurable,
    NotKnownHere,
    NotSaved,
    RunAlreadyLive,
    RunCancelled,
    RunError,
    RunFailed,
    RunInterrupted,
    RunLost,
    RuntimeExceeded,
)
from holdfast.run.history import History
from holdfast.run.info import RunInfo, new_run_id
from holdfast.run.intents import INTENT_DELAY, Intents
from holdfast.run.live import LiveRun
from holdfast.run.loop import Loop
from holdfast.run.native import loop_of
from holdfast.run.outcome import Result
from holdfast.run.phases import Pipeline
from holdfast.run.ports import Finished, Ports, Resumption, RunEvent
from holdfast.run.settling import give_back, settle
from holdfast.run.signals import on_first_signal
from holdfast.run.state import RunState
from holdfast.run.uninterrupted import uninterrupted
from holdfast.run.usage import Usage

log = logging.getLogger("holdfast.run")


class Executor:
    """Drives any number of runs side by side in one event loop."""

    def __init__(
        self,
        ports: Ports | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        required: bool = False,
        shutdown_types: tuple[type[BaseException], ...] = (),
    ) -> None:
        """Make an executor.

        Args:
            required: refuse a run that cannot be made durable, and interrupt one that cannot be saved. Without it a
                warning is logged and the run goes on.
            shutdown_types: exceptions by which the host's own code says that it shuts down: a run that ends with one
                keeps its checkpoint for recovery.
        """
        self._ports = ports or Ports()
        self._clock, self._required, self._shutdown_types = clock, required, shutdown_types
        self._intents = Intents(clock, INTENT_DELAY)
        self._live: dict[str, LiveRun] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._shutdown: asyncio.Task[None] | None = None

    # -- runs ---------------------------------------------------------------------------------------------------

    async def run(
        self,
        agent: AgentSource,
        prompt: str,
        *,
        run_id: str | None = None,
        caller_id: str = "",
        channel_id: str = "",
        guild_id: str = "",
        parent_run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> Result:
        """Drive a new run to its end.

        Raises:
            RunError: the run did not end with an answer; the kind says why. A model's or a port's own exception
                comes out as it is.
        """
        return await self.begin(
            agent,
            new_run(
                agent, prompt, run_id=run_id, caller_id=caller_id, channel_id=channel_id, guild_id=guild_id,
                parent_run_id=parent_run_id, labels=labels, inputs=inputs,
            ),
        )  # fmt: skip

    async def begin(self, agent: AgentSource, info: RunInfo, *, left_with_caller: bool = False) -> Result:
        """`run`, of a run that has its identity already.

        Args:
            left_with_caller: if the caller is cancelled, the run is not ended, but left for recovery.
        """
        live = LiveRun(info, RunState(), left_with_caller=left_with_caller, **self._for_live())
        return await self._conduct(agent, live)

    async def resume(self, agent: AgentSource, resumption: Resumption, *, left_with_caller: bool = False) -> Result:
        """Go on with an interrupted run, from its saved state and with no new input. Raises as `run` does.

        Args:
            left_with_caller: the caller is not who asked for the run: if it is cancelled, the run is left for recovery.
        """
        live = LiveRun(
            resumption.info,
            resumption.state,
            checkpointer=resumption.checkpointer,
            resumed=True,
            left_with_caller=left_with_caller,
            **self._for_live(),
        )
        if resumption.info.parent_run_id is None:
            run_id = resumption.info.run_id
            lost = RunLost(f"run {run_id} was lost to another worker, and claimed anew by this one")
            try:
                await self._end_older(run_id, lost)
            except BaseException:
                await uninterrupted(give_back(live))
                raise
        return await self._conduct(agent, live)

    async def _end_older(self, run_id: str, error: RunError) -> None:
        """A run is driven under its newest claim: what drives it under an older one is stopped with `error`."""
        while (older := self._live.get(run_id)) is not None and not self._draining:
            older.stop(error)
            await asyncio.wait([older.outcome])

    def live(self, run_id: str) -> LiveRun | None:
        """The run, if this executor drives it at the moment: to steer it, or to stop it."""
        return self._live.get(run_id)

    async def join(self, run_id: str) -> Result | None:
        """Wait for a run that this executor drives and return its result, or raise its error; `None`: no such run."""
        live = self._live.get(run_id)
        if live is None:
            return None
        result: Result = await asyncio.shield(live.outcome)
        return result

    @property
    def live_runs(self) -> frozenset[str]:
        return frozenset(self._live)

    @property
    def draining(self) -> bool:
        """Whether a shutdown has begun: no new runs are admitted."""
        return self._draining

    def _for_live(self) -> dict[str, Any]:
        return {
            "ports": self._ports,
            "clock": self._clock,
            "intents": self._intents,
            "required": self._required,
            "shutdown_types": self._shutdown_types,
        }

    async def _start_child(
        self, parent: LiveRun, agent: AgentSource, info: RunInfo, count: Callable[[Usage], None]
    ) -> Result:
        loop = loop_of(agent)
        # A call starts each child once, so one that is live was started by somebody else: by hand.
        await self._end_older(info.run_id, RunInterrupted(f"run {info.run_id} goes on under its parent"))
        if info.run_id in self._live:
            raise NotAdmitted(f"run {info.run_id} does not go on under its parent: this executor is shutting down")
        met = await self._rejoin(parent, info, loop)
        if isinstance(met, Finished):
            count(met.usage)
            if met.error is not None:
                raise RunFailed(f"child run {info.run_id} failed: {met.error}")
            return Result(run_id=info.run_id, output=loop.load_output(met.output), usage=met.usage, iterations=0)
        if met is None:
            live = LiveRun(info, RunState(), parent=parent, **self._for_live())
        else:
            live = LiveRun(
                met.info, met.state, checkpointer=met.checkpointer, resumed=True, parent=parent, **self._for_live()
            )
        try:
            return await self._conduct(agent, live)
        finally:
            count(live.state.usage)

    async def _rejoin(self, parent: LiveRun, info: RunInfo, loop: Loop) -> Resumption | Finished | None:
        """The child that an earlier life of the parent started, if there is one."""
        if self._ports.checkpoints is None or parent.checkpointer is None:
            return None
        try:
            return await self._ports.checkpoints.rejoin(info, loop.codec)
        except RunError:
            raise
        except Exception as exc:  # trouble with the store must never become the result of a tool
            raise NotSaved(f"run {info.run_id}, a child, could not be looked up: {exc}") from exc

    # -- one run, from admission to settlement ------------------------------------------------------------------

    async def _conduct(self, agent: AgentSource, live: LiveRun) -> Result:
        run_id = live.info.run_id
        already_live = run_id in self._live
        if self._draining or already_live:
            if live.checkpointer is not None:  # else nothing is awaited: whoever is refused finds the other still live
                giving = give_back(live)
                await uninterrupted(within(LAST_WORDS, giving, self._clock) if self._draining else giving)
            if already_live:
                raise RunAlreadyLive(run_id)
            raise NotAdmitted(f"run {run_id} was not begun: this executor is shutting down")
        self._live[run_id] = live
        self._idle.clear()
        error: BaseException | None = RunError(f"run {run_id} was not begun")
        result: tuple[Result, Any] | None = None
        try:
            task = asyncio.create_task(self._drive(agent, live), name=f"holdfast run {run_id}")
            live.runs_in(task)
            error, cancel = await _outcome(task, live)
            result = None if error is not None else task.result()
            live.settling = asyncio.ensure_future(settle(live, error, result))
            await uninterrupted(live.settling)
            if cancel is not None:
                raise cancel
            if error is not None:
                raise error
            assert result is not None
            return result[0]
        finally:
            _tell_others(live, error, result)
            del self._live[run_id]
            if not self._live:
                self._idle.set()
                self._intents.clear()

    async def _drive(self, source: AgentSource, live: LiveRun) -> tuple[Result, Any]:
        """The run itself: its result, and its output as it is stored."""
        timer: Timer | None = None
        try:
            await self._make_durable(live)
            if self._ports.audit is not None:
                live.recorder = self._ports.audit.begin(live.info, live.state)
                live.recorder.start(resumed=live.resumed)
            agent = await _built(source, live)
            loop = loop_of(agent)
            live.state.codec = loop.codec
            if live.resumed:
                await live.emit(RunEvent(kind="resumed", iteration=live.state.iteration))
            timer = self._watch(agent, live)
            if self._ports.budget is not None:
                await self._ports.budget.check(live.info, live.state)
            tools = await self._ports.palette.tools(live.info) if self._ports.palette is not None else ()
            pipeline = Pipeline(live, agent, loop, tools, self._start_child)
            output = await pipeline.run()
            stored = loop.dump_output(output)
            if self._ports.delivery is not None:
                await self._ports.delivery.output(live.info, output)
            return _result(live, output, pipeline.messages), stored
        finally:
            if timer is not None:
                timer.cancel()

    async def _make_durable(self, live: LiveRun) -> None:
        if live.checkpointer is not None or self._ports.checkpoints is None:
            return
        try:
            live.checkpointer = await self._ports.checkpoints.begin(live.info)
        except Exception as exc:  # a host's own factory may raise anything
            if live.is_left_by(exc):
                raise
            if self._required:
                raise NotDurable(f"run {live.info.run_id} was refused, it could not be made durable: {exc}") from exc
            log.warning("run %s goes on without durability: %s", live.info.run_id, exc, exc_info=exc)

    def _watch(self, agent: Agent, live: LiveRun) -> Timer | None:
        """Start what ends the run when it takes too long: a critic's watch, or the hard end."""
        limit = agent.bounds.max_runtime
        if self._ports.critic is not None:
            live.watch = self._ports.critic.begin(live.info, live.state, live, limit)
            live.is_watched = live.is_watched or live.watch is not None
        if limit is None or live.watch is not None:
            return None
        error = RuntimeExceeded(live.info.run_id, limit)
        return self._clock.call_later(max(limit - live.state.elapsed, timedelta(0)), lambda: live.stop(error))

    # -- shutdown -----------------------------------------------------------------------------------------------

    async def shutdown(self, grace: timedelta = timedelta(seconds=30)) -> None:
        """Stop admitting, let each run reach its next step boundary, and leave every checkpoint for recovery.

        Runs that have not reached one when `grace` is over are stopped where they are. The store is closed last. One
        that does not answer then is waited for no longer than a few seconds: its runs stay as they were last saved,
        and are recovered when this process has ended. Trouble with closing it is logged.

        May be called again; every call returns when the shutdown is done.
        """
        if self._shutdown is None:
            self._draining = True  # at once, not when the task gets its turn
            self._shutdown = asyncio.create_task(self._drain(grace))
        await asyncio.shield(self._shutdown)

    async def _drain(self, grace: timedelta) -> None:
        await Drain(self._live, self._idle, self._clock).finish(grace)
        if self._ports.checkpoints is not None:
            await close_in_time("the store", self._ports.checkpoints.close, self._clock)

    def shutdown_on_signals(self, grace: timedelta = timedelta(seconds=30)) -> None:
        """Shut down on SIGTERM and SIGINT. A second signal ends the process as it would have without this."""
        on_first_signal(lambda: self.shutdown(grace))


def new_run(
    agent: AgentSource,
    prompt: str,
    *,
    run_id: str | None = None,
    caller_id: str = "",
    channel_id: str = "",
    guild_id: str = "",
    parent_run_id: str | None = None,
    labels: Mapping[str, str] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> RunInfo:
    """Who and what a new run of `agent` is."""
    return RunInfo(
        run_id=new_run_id() if run_id is None else run_id,
        agent_name=agent.name,
        agent_id=getattr(agent, "agent_id", ""),
        caller_id=caller_id,
        channel_id=channel_id,
        guild_id=guild_id,
        model_tier=getattr(agent, "model_tier", ""),
        parent_run_id=parent_run_id,
        labels=dict(labels or {}),
        inputs={**(inputs or {}), "prompt": prompt},
    )


async def _built(source: AgentSource, live: LiveRun) -> Agent:
    try:
        return await source.build(live.info)
    except DefinitionError as exc:
        if not live.resumed:
            raise
        # It could be built when the run began, by a process that had what this one lacks.
        raise NotKnownHere(f"run {live.info.run_id}: its agent cannot be built here: {exc}") from exc


def _result(live: LiveRun, output: Any, messages: History) -> Result:
    state = live.state
    return Result(
        run_id=live.info.run_id,
        output=output,
        usage=state.usage,
        iterations=state.iteration,
        phases=tuple(state.phases),
        messages=messages,
    )


async def _outcome(
    task: "asyncio.Task[Any]", live: LiveRun
) -> tuple[BaseException | None, asyncio.CancelledError | None]:
    """Wait for the run's task: the error it ended with, and the cancel of the caller, which stops the run first."""
    cancel: asyncio.CancelledError | None = None
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError as exc:
        cancel = exc
        if not task.done() or task.cancelled():  # by whoever cancels all tasks
            live.stop_with_caller(cancel)
            await uninterrupted(asyncio.wait([task]), swallow=True)
    stopped_by = live.stopped_by
    # A run that came to its end before it could be interrupted did so. What else it made of being stopped is no matter.
    if stopped_by and (task.cancelled() or task.exception() or not isinstance(stopped_by, RunInterrupted)):
        return stopped_by, cancel
    error = None if task.cancelled() else task.exception()
    if live.left_for is not None and (task.cancelled() or (error is not None and not live.is_left_by(error))):
        return live.left_for, cancel  # nor is what a call of its own made of the run being left
    if task.cancelled():
        return RunCancelled(f"run {live.info.run_id} was cancelled from within: its own code let out a cancel"), cancel
    return error, cancel


def _tell_others(live: LiveRun, error: BaseException | None, result: tuple[Result, Any] | None) -> None:
    """Whoever else waits for the run was not cancelled with its caller, and is told how the run itself ended."""
    if error is None:
        assert result is not None
        live.outcome.set_result(result[0])
        return
    cancelled = isinstance(error, asyncio.CancelledError)
    live.outcome.set_exception(RunCancelled(f"run {live.info.run_id} was cancelled") if cancelled else error)
    live.outcome.exception()  # seen: nobody has to wait for it
