"""The executor: drives runs to their outcome and settles their checkpoints on every way out."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock, Timer
from holdfast.concurrency import shielded
from holdfast.core.agent import Agent, AgentSource
from holdfast.core.errors import (
    DefinitionError,
    MissingDefinition,
    NotDurable,
    RunAlreadyRunning,
    RunCancelled,
    RunError,
    RunFailed,
    RunInterrupted,
    RunLost,
    RuntimeExceeded,
    SaveFailed,
    ShuttingDown,
)
from holdfast.core.execution.intent_timer import INTENT_DELAY, IntentTimer
from holdfast.core.execution.loop import Loop
from holdfast.core.execution.native import get_loop
from holdfast.core.execution.pipeline import Pipeline
from holdfast.core.execution.run import OnCancel, RunExecution, finalize, release_claim
from holdfast.core.execution.shutdown import (
    SHUTDOWN_STORE_TIMEOUT,
    Drain,
    close_with_timeout,
    install_signal_handlers,
    run_with_timeout,
)
from holdfast.core.info import RunInfo, new_run_id
from holdfast.core.message import Usage
from holdfast.core.ports import ChildOutcome, Ports, Resumption, RunEvent
from holdfast.core.result import Result
from holdfast.core.state import History, RunState

log = logging.getLogger("holdfast.run")


class Executor:
    """Drives any number of runs side by side in one event loop."""

    def __init__(
        self,
        ports: Ports | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        require_durability: bool = False,
        shutdown_exceptions: tuple[type[BaseException], ...] = (),
    ) -> None:
        """Make an executor.

        Args:
            required: refuse a run that cannot be made durable, and interrupt one that cannot be saved. Without it a
                warning is logged and the run goes on.
            shutdown_exceptions: exceptions by which the host's own code announces a shutdown. A run that ends with one
                keeps its checkpoint for recovery.
        """
        self._ports = ports or Ports()
        self._clock, self._require_durability, self._shutdown_exceptions = (
            clock,
            require_durability,
            shutdown_exceptions,
        )
        self._intent_timer = IntentTimer(clock, INTENT_DELAY)
        self._runs: dict[str, RunExecution] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._shutdown_task: asyncio.Task[None] | None = None

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
        return await self.start(
            agent,
            create_run_info(
                agent,
                prompt,
                run_id=run_id,
                caller_id=caller_id,
                channel_id=channel_id,
                guild_id=guild_id,
                parent_run_id=parent_run_id,
                labels=labels,
                inputs=inputs,
            ),
        )

    async def start(self, agent: AgentSource, info: RunInfo, *, on_cancel: OnCancel = "cancel") -> Result:
        """`run`, of a run that has its identity already.

        Args:
            on_cancel: if the caller is cancelled, the run is not ended, but left for recovery.
        """
        live = RunExecution(info, RunState(), on_cancel=on_cancel, **self._run_options())
        return await self._supervise(agent, live)

    async def resume(self, agent: AgentSource, resumption: Resumption, *, on_cancel: OnCancel = "cancel") -> Result:
        """Go on with an interrupted run, from its saved state and with no new input. Raises as `run` does.

        Args:
            on_cancel: the caller is not who asked for the run: if it is cancelled, the run is left for recovery.
        """
        live = RunExecution(
            resumption.info,
            resumption.state,
            checkpointer=resumption.checkpointer,
            resumed=True,
            on_cancel=on_cancel,
            **self._run_options(),
        )
        if resumption.info.parent_run_id is None:
            run_id = resumption.info.run_id
            lost = RunLost(f"run {run_id} was lost to another worker, and claimed anew by this one")
            try:
                await self._stop_superseded(run_id, lost)
            except BaseException:
                await shielded(release_claim(live))
                raise
        return await self._supervise(agent, live)

    async def _stop_superseded(self, run_id: str, error: RunError) -> None:
        """A run is driven under its newest claim: what drives it under an older one is stopped with `error`."""
        while (older := self._runs.get(run_id)) is not None and not self._draining:
            older.stop(error)
            await asyncio.wait([older.outcome])

    def get_run(self, run_id: str) -> RunExecution | None:
        """The run, if this executor drives it at the moment: to steer it, or to stop it."""
        return self._runs.get(run_id)

    async def wait(self, run_id: str) -> Result | None:
        """Wait for a run that this executor drives and return its result, or raise its error; `None`: no such run."""
        live = self._runs.get(run_id)
        if live is None:
            return None
        result: Result = await asyncio.shield(live.outcome)
        return result

    @property
    def active_run_ids(self) -> frozenset[str]:
        return frozenset(self._runs)

    @property
    def draining(self) -> bool:
        """Whether a shutdown has begun: no new runs are admitted."""
        return self._draining

    def _run_options(self) -> dict[str, Any]:
        return {
            "ports": self._ports,
            "clock": self._clock,
            "intent_timer": self._intent_timer,
            "require_durability": self._require_durability,
            "shutdown_exceptions": self._shutdown_exceptions,
        }

    async def _start_child(
        self, parent: RunExecution, agent: AgentSource, info: RunInfo, add_usage: Callable[[Usage], None]
    ) -> Result:
        loop = get_loop(agent)
        # A call starts each child once, so one that is live was started by somebody else: by hand.
        await self._stop_superseded(info.run_id, RunInterrupted(f"run {info.run_id} goes on under its parent"))
        if info.run_id in self._runs:
            raise ShuttingDown(f"run {info.run_id} does not go on under its parent: this executor is shutting down")
        met = await self._attach_child(parent, info, loop)
        if isinstance(met, ChildOutcome):
            add_usage(met.usage)
            if met.error is not None:
                raise RunFailed(f"child run {info.run_id} failed: {met.error}")
            return Result(run_id=info.run_id, output=loop.load_output(met.output), usage=met.usage, steps=0)
        if met is None:
            live = RunExecution(info, RunState(), parent=parent, **self._run_options())
        else:
            live = RunExecution(
                met.info, met.state, checkpointer=met.checkpointer, resumed=True, parent=parent, **self._run_options()
            )
        try:
            return await self._supervise(agent, live)
        finally:
            add_usage(live.state.usage)

    async def _attach_child(self, parent: RunExecution, info: RunInfo, loop: Loop) -> Resumption | ChildOutcome | None:
        """The child that an earlier life of the parent started, if there is one."""
        if self._ports.checkpoints is None or parent.checkpointer is None:
            return None
        try:
            return await self._ports.checkpoints.attach_child(info, loop.codec)
        except RunError:
            raise
        except Exception as exc:  # trouble with the store must never become the result of a tool
            raise SaveFailed(f"run {info.run_id}, a child, could not be looked up: {exc}") from exc

    # -- one run, from admission to settlement ------------------------------------------------------------------

    async def _supervise(self, agent: AgentSource, run: RunExecution) -> Result:
        run_id = run.info.run_id
        already_live = run_id in self._runs
        if self._draining or already_live:
            if run.checkpointer is not None:  # else nothing is awaited: whoever is refused finds the other still live
                giving = release_claim(run)
                await shielded(
                    run_with_timeout(SHUTDOWN_STORE_TIMEOUT, giving, self._clock) if self._draining else giving
                )
            if already_live:
                raise RunAlreadyRunning(run_id)
            raise ShuttingDown(f"run {run_id} was not begun: this executor is shutting down")
        self._runs[run_id] = run
        self._idle.clear()
        error: BaseException | None = RunError(f"run {run_id} was not begun")
        result: tuple[Result, Any] | None = None
        try:
            task = asyncio.create_task(self._execute(agent, run), name=f"holdfast run {run_id}")
            run.bind_task(task)
            error, cancel = await _await_outcome(task, run)
            result = None if error is not None else task.result()
            run.finalize_task = asyncio.ensure_future(finalize(run, error, result))
            await shielded(run.finalize_task)
            if cancel is not None:
                raise cancel
            if error is not None:
                raise error
            assert result is not None
            return result[0]
        finally:
            _resolve_outcome(run, error, result)
            del self._runs[run_id]
            if not self._runs:
                self._idle.set()
                self._intent_timer.clear()

    async def _execute(self, source: AgentSource, run: RunExecution) -> tuple[Result, Any]:
        """The run itself: its result, and its output as it is stored."""
        timer: Timer | None = None
        try:
            await self._open_checkpointer(run)
            if self._ports.audit is not None:
                run.recorder = self._ports.audit.begin(run.info, run.state)
                run.recorder.start(resumed=run.resumed)
            agent = await _build_agent(source, run)
            loop = get_loop(agent)
            run.state.codec = loop.codec
            if run.resumed:
                await run.emit(RunEvent(kind="resumed", step=run.state.steps))
            timer = self._start_watch(agent, run)
            if self._ports.budget is not None:
                await self._ports.budget.check(run.info, run.state)
            tools = await self._ports.extra_tools.tools(run.info) if self._ports.extra_tools is not None else ()
            pipeline = Pipeline(run, agent, loop, tools, self._start_child)
            output = await pipeline.run()
            stored = loop.dump_output(output)
            if self._ports.listener is not None:
                await self._ports.listener.on_output(run.info, output)
            return _make_result(run, output, pipeline.messages), stored
        finally:
            if timer is not None:
                timer.cancel()

    async def _open_checkpointer(self, run: RunExecution) -> None:
        if run.checkpointer is not None or self._ports.checkpoints is None:
            return
        try:
            run.checkpointer = await self._ports.checkpoints.begin(run.info)
        except Exception as exc:  # a host's own factory may raise anything
            if run.is_resumable_after(exc):
                raise
            if self._require_durability:
                raise NotDurable(f"run {run.info.run_id} was refused, it could not be made durable: {exc}") from exc
            log.warning("run %s goes on without durability: %s", run.info.run_id, exc, exc_info=exc)

    def _start_watch(self, agent: Agent, run: RunExecution) -> Timer | None:
        """Start what ends the run when it takes too long: a critic's watch, or the hard end."""
        limit = agent.bounds.max_runtime
        if self._ports.critic is not None:
            run.watch = self._ports.critic.begin(run.info, run.state, run, limit)
            run.has_listeners = run.has_listeners or run.watch is not None
        if limit is None or run.watch is not None:
            return None
        error = RuntimeExceeded(run.info.run_id, limit)
        return self._clock.call_later(max(limit - run.state.elapsed, timedelta(0)), lambda: run.stop(error))

    # -- shutdown -----------------------------------------------------------------------------------------------

    async def shutdown(self, timeout: timedelta = timedelta(seconds=30)) -> None:
        """Stop admitting, let each run reach its next step boundary, and leave every checkpoint for recovery.

        Runs that have not reached one when `grace` is over are stopped where they are. The store is closed last. One
        that does not answer then is waited for no longer than a few seconds: its runs stay as they were last saved,
        and are recovered when this process has ended. Trouble with closing it is logged.

        May be called again; every call returns when the shutdown is done.
        """
        if self._shutdown_task is None:
            self._draining = True  # at once, not when the task gets its turn
            self._shutdown_task = asyncio.create_task(self._drain(timeout))
        await asyncio.shield(self._shutdown_task)

    async def _drain(self, timeout: timedelta) -> None:
        await Drain(self._runs, self._idle, self._clock).finish(timeout)
        if self._ports.checkpoints is not None:
            await close_with_timeout("the store", self._ports.checkpoints.close, self._clock)

    def shutdown_on_signals(self, timeout: timedelta = timedelta(seconds=30)) -> None:
        """Shut down on SIGTERM and SIGINT. A second signal ends the process as it would have without this."""
        install_signal_handlers(lambda: self.shutdown(timeout))


def create_run_info(
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


async def _build_agent(source: AgentSource, run: RunExecution) -> Agent:
    try:
        return await source.build(run.info)
    except DefinitionError as exc:
        if not run.resumed:
            raise
        # It could be built when the run began, by a process that had what this one lacks.
        raise MissingDefinition(f"run {run.info.run_id}: its agent cannot be built here: {exc}") from exc


def _make_result(run: RunExecution, output: Any, messages: History) -> Result:
    state = run.state
    return Result(
        run_id=run.info.run_id,
        output=output,
        usage=state.usage,
        steps=state.steps,
        phases=tuple(state.phases),
        messages=messages,
    )


async def _await_outcome(
    task: "asyncio.Task[Any]", run: RunExecution
) -> tuple[BaseException | None, asyncio.CancelledError | None]:
    """Wait for the run's task: the error it ended with, and the cancel of the caller, which stops the run first."""
    cancel: asyncio.CancelledError | None = None
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError as exc:
        cancel = exc
        if not task.done() or task.cancelled():  # by whoever cancels all tasks
            run.on_caller_cancelled(cancel)
            await shielded(asyncio.wait([task]), suppress_cancel=True)
    stopped_by = run.stop_error
    # A run that came to its end before it could be interrupted did so. What else it made of being stopped is no matter.
    if stopped_by and (task.cancelled() or task.exception() or not isinstance(stopped_by, RunInterrupted)):
        return stopped_by, cancel
    error = None if task.cancelled() else task.exception()
    if run.interrupting_error is not None and (
        task.cancelled() or (error is not None and not run.is_resumable_after(error))
    ):
        return run.interrupting_error, cancel  # nor is what a call of its own made of the run being left
    if task.cancelled():
        return RunCancelled(f"run {run.info.run_id} was cancelled from within: its own code let out a cancel"), cancel
    return error, cancel


def _resolve_outcome(run: RunExecution, error: BaseException | None, result: tuple[Result, Any] | None) -> None:
    """Whoever else waits for the run was not cancelled with its caller, and is told how the run itself ended."""
    if error is None:
        assert result is not None
        run.outcome.set_result(result[0])
        return
    cancelled = isinstance(error, asyncio.CancelledError)
    run.outcome.set_exception(RunCancelled(f"run {run.info.run_id} was cancelled") if cancelled else error)
    run.outcome.exception()  # seen: nobody has to wait for it
