"""The executor: admits runs, executes them side by side, and shuts down."""

import asyncio
import functools
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Unpack

from holdfast.clock import CLOCK, Clock
from holdfast.concurrency import (
    SHUTDOWN_STORE_TIMEOUT,
    close_with_timeout,
    run_in_background,
    run_with_timeout,
    shielded,
)
from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.tool_threads import ToolThreads
from holdfast.core.errors import (
    NotDurable,
    ProcessExit,
    RunAlreadyRunning,
    RunCancelled,
    RunError,
    RunFailed,
    RunLost,
    ShuttingDown,
    format_error,
)
from holdfast.core.execution.attempt import Attempt, OnCancel, Services, log
from holdfast.core.execution.lifecycle import StoredResult, execute, finalize, release_claim
from holdfast.core.execution.native_loop import NATIVE_LOOP
from holdfast.core.execution.saving import IntentTimer
from holdfast.core.execution.stop import Drain, ShutdownSignals
from holdfast.core.log import RunLog
from holdfast.core.metrics import RunMetrics
from holdfast.core.ports import Budget, Closeable, Ports, Resumption
from holdfast.core.redaction import Redact
from holdfast.core.run.info import RunInfo, RunOptions
from holdfast.core.run.prompt import Prompt
from holdfast.core.run.result import Result
from holdfast.core.run.status import AttemptEnd


class Executor:
    """Executes any number of runs side by side in one event loop."""

    def __init__(
        self,
        ports: Ports | None = None,
        *,
        clock: Clock | None = None,
        require_durability: bool = False,
        shutdown_exceptions: tuple[type[BaseException], ...] = (),
        shutdown_timeout: timedelta = timedelta(seconds=30),
        metrics: RunMetrics | None = None,
        redact: Redact | None = None,
        log_attempts: bool = True,
    ) -> None:
        """Make an executor.

        Args:
            require_durability: refuse a run that cannot be made durable, and interrupt one that cannot be saved.
                Without it a warning is logged and the run continues.
            shutdown_exceptions: exceptions by which the host's own code announces a shutdown. A run that ends with one
                keeps its checkpoint for recovery.
            shutdown_timeout: for a shutdown that names none, such as that of a process which a tool ends.
            redact: as the store removes secrets; also from the errors that are logged.
            log_attempts: log how each attempt begins and ends.
        """
        self._shutdown_timeout, clock = shutdown_timeout, clock or CLOCK.get()
        metrics = RunMetrics() if metrics is None else metrics
        self._services = Services(
            executor=self,
            ports=ports or Ports(),
            clock=clock,
            intent_timer=IntentTimer(clock),
            default_loop=NATIVE_LOOP,
            threads=ToolThreads(),
            metrics=metrics,
            observers=(RunLog(redact), metrics) if log_attempts else (metrics,),
            require_durability=require_durability,
            shutdown_exceptions=shutdown_exceptions,
            redact=redact,
        )
        #: By run id.
        self._attempts: dict[str, Attempt] = {}
        #: Keeps them from being garbage-collected.
        self._supervisors: set[asyncio.Task[Result]] = set()
        #: Handed over, and not admitted or refused yet.
        self._entering: set[Attempt] = set()
        #: Set while no run is executing or being admitted.
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._shutdown_task: asyncio.Task[None] | None = None

    # -- runs ---------------------------------------------------------------------------------------------------

    async def run(
        self,
        agent: AgentSource,
        prompt: Prompt,
        *,
        run_id: str | None = None,
        parent_run_id: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        on_cancel: OnCancel = "detach",
        **labels: Unpack[RunOptions],
    ) -> Result:
        """Execute a new run to its end.

        Args:
            on_cancel: as for `start`.

        Raises:
            RunError: the run ended without an answer; the class says why. The cause of `RunFailed` is the exception
                that ended it.
        """
        info = RunInfo.create(agent, prompt, run_id=run_id, parent_run_id=parent_run_id, inputs=inputs, **labels)
        return await self.start(agent, info, on_cancel=on_cancel)

    async def start(self, agent: AgentSource, info: RunInfo, *, on_cancel: OnCancel = "detach") -> Result:
        """Execute a new run that already has its identity. Raises as `run` does.

        Args:
            on_cancel: what happens to the run if the caller is cancelled: it continues, or is cancelled too.
        """
        return await self._execute(agent, Attempt(info, self._services), on_cancel)

    async def resume(self, agent: AgentSource, resumption: Resumption, *, on_cancel: OnCancel = "detach") -> Result:
        """Continue an interrupted run from its saved state, with no new input. Raises as `run` does.

        Args:
            on_cancel: as for `start`.
        """
        info = resumption.info
        attempt = Attempt(info, self._services, resumption=resumption)
        self._enter(attempt)
        if not info.shares_parent_slot:
            lost = RunLost(f"run {info.run_id} was lost to another worker, and claimed again by this one")
            try:
                await self.stop_superseded(info.run_id, lost)
            except BaseException:
                await shielded(self._refuse(attempt))
                raise
        return await self._execute(agent, attempt, on_cancel)

    async def _execute(self, agent: AgentSource, attempt: Attempt, on_cancel: OnCancel) -> Result:
        """Execute the run in a task of this executor, which outlives the caller, and wait for it."""
        self._enter(attempt)
        task = asyncio.create_task(
            self.supervise(agent, attempt), name=f"holdfast supervisor of run {attempt.info.run_id}"
        )
        attempt.supervisor = task
        self._supervisors.add(task)
        task.add_done_callback(functools.partial(self._on_supervisor_done, attempt))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError as cancel:
            # An event loop that ends cancels all tasks, the supervisor too. No caller asked for that.
            if on_cancel == "cancel" and not task.cancelling():
                attempt.stop(cancel)
                await shielded(asyncio.wait([task]), suppress_cancel=True)
            raise

    def _on_supervisor_done(self, attempt: Attempt, task: "asyncio.Task[Result]") -> None:
        self._supervisors.discard(task)
        if attempt in self._entering:  # cancelled before it began
            run_in_background(self._refuse(attempt))
        if not task.cancelled():
            task.exception()  # retrieved: the caller may have left

    async def stop_superseded(self, run_id: str, error: RunError) -> None:
        """Stop with `error` any execution of this run that holds an older claim."""
        while (older := self._attempts.get(run_id)) is not None and not self._draining:
            older.stop(error)
            await asyncio.wait([older.outcome])

    def get_attempt(self, run_id: str) -> Attempt | None:
        """Return the attempt of this run that this executor executes now: to nudge or to stop it."""
        return self._attempts.get(run_id)

    async def wait(self, run_id: str) -> Result | None:
        """Wait for a run of this executor. Return its result or raise its error; `None` if there is no such run."""
        attempt = self._attempts.get(run_id)
        if attempt is None:
            return None
        result: Result = await asyncio.shield(attempt.outcome)
        return result

    @property
    def active_run_ids(self) -> frozenset[str]:
        return frozenset(self._attempts)

    @property
    def metrics(self) -> RunMetrics:
        """The counters of its runs."""
        return self._services.metrics

    @property
    def budget(self) -> Budget | None:
        return self._services.ports.budget

    @property
    def draining(self) -> bool:
        """Whether a shutdown has begun: no new runs are admitted."""
        return self._draining

    async def supervise(self, agent: AgentSource, attempt: Attempt) -> Result:
        """Admit the run, execute it to its end and finalize its checkpoint. Raises as `run` does.

        Raises:
            RunAlreadyRunning: this executor executes a run with this id. The claim of this one was released.
            ShuttingDown: a shutdown has begun. The claim was released.
        """
        run_id = attempt.info.run_id
        try:
            await self._admit(attempt)
            self._attempts[run_id] = attempt
            self._idle.clear()
        finally:
            self._leave(attempt)
        error: BaseException | None = RunError(f"run {run_id} was not started")
        result: StoredResult | None = None
        try:
            # Only a stop of the run cancels it, which waits for a write in flight.
            task = run_in_background(execute(attempt, agent), name=f"holdfast run {run_id}")
            attempt.bind_task(task)
            cancel = await _wait_for_task(task, attempt)
            error = attempt.get_error(task)
            result = task.result() if error is None else None
            attempt.saver.finalize_task = run_in_background(finalize(attempt, error, result))
            await shielded(attempt.saver.finalize_task)
            error = _make_failure(attempt, attempt.saver.finalize_task.result())
            result = result if error is None else None
        finally:
            _resolve_outcome(attempt, error, result)
            del self._attempts[run_id]
            self._leave(attempt)
        if isinstance(error, ProcessExit) and not attempt.is_child:
            log.error("run %s: %s. The other runs of this process are interrupted, and it exits", run_id, error)
            await self.shutdown()
            raise error.exception
        if cancel is not None:
            raise cancel
        if result is None:
            raise error or RunError(f"run {run_id} has no result")
        return result[0]

    def _enter(self, attempt: Attempt) -> None:
        self._entering.add(attempt)
        self._idle.clear()

    def _leave(self, attempt: Attempt) -> None:
        self._entering.discard(attempt)
        if not self._attempts:
            self._services.intent_timer.clear()
            if not self._entering:
                self._idle.set()

    async def _refuse(self, attempt: Attempt) -> None:
        """Release the claim of a run whose caller or supervisor was cancelled before it began."""
        try:
            await release_claim(attempt)
        finally:
            self._leave(attempt)

    async def _admit(self, attempt: Attempt) -> None:
        run_id, draining = attempt.info.run_id, self._draining
        already_running = run_id in self._attempts
        if not draining and not already_running:
            return
        if attempt.checkpointer is not None:  # without one nothing is awaited: the other execution is still there
            release = release_claim(attempt)
            timeout = SHUTDOWN_STORE_TIMEOUT
            await shielded(run_with_timeout(timeout, release, self._services.clock) if draining else release)
        if already_running:
            raise RunAlreadyRunning(run_id)
        raise ShuttingDown(f"run {run_id} was not started: this executor is shutting down")

    # -- shutdown -----------------------------------------------------------------------------------------------

    def begin_shutdown(self) -> None:
        """Admit no more runs, and stop each at its next step boundary."""
        self._draining = True
        for attempt in self._attempts.values():
            attempt.drain()

    async def shutdown(self, timeout: timedelta | None = None) -> None:
        """Admit no more runs, let each reach its next step boundary, and leave every checkpoint to recovery.

        Runs that have not reached one after `timeout` are stopped within their step. The store is closed last. If it
        does not answer for some seconds, its runs stay as last saved and are recovered when this process has ended.
        An error of closing it is logged.

        A tool in a thread cannot be stopped. After `timeout` the log names those that have not returned, and after
        another `BLOCKED_TOOL_TIMEOUT` their runs are abandoned: recovery resumes them when this process has ended.

        May be called again; every call returns when the shutdown is finished.
        """
        self.begin_shutdown()
        if self._shutdown_task is None:
            self._shutdown_task = run_in_background(self._drain(self._shutdown_timeout if timeout is None else timeout))
        await asyncio.shield(self._shutdown_task)

    async def _drain(self, timeout: timedelta) -> None:
        clock, ports = self._services.clock, self._services.ports
        drain = Drain(self._attempts, self._idle, self._services.threads, clock)
        await drain.finish(timeout)
        # Before the store: they may keep their last rows in it.
        closed_first: tuple[object, ...] = (*ports.observers, ports.budget, ports.rate_limiter)
        for port in closed_first:
            if isinstance(port, Closeable):
                await close_with_timeout(type(port).__name__, port.close, clock)
        if ports.checkpoints is not None:
            close = functools.partial(ports.checkpoints.close, keep_claims=True)
            await close_with_timeout("the store", close if drain.gave_up else ports.checkpoints.close, clock)

    def shutdown_on_signals(self, timeout: timedelta | None = None) -> None:
        """Shut down on SIGTERM and SIGINT. A second signal has the effect it had before this call."""
        ShutdownSignals(functools.partial(self.shutdown, timeout))


async def _wait_for_task(task: "asyncio.Task[Any]", attempt: Attempt) -> asyncio.CancelledError | None:
    """Wait for the run's task. Return the cancellation of this task, which stops the run first."""
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError as cancel:
        if not task.done() or task.cancelled():  # cancelled together with its caller: all tasks were
            attempt.on_supervisor_cancelled(cancel)
            await shielded(asyncio.wait([task]), suppress_cancel=True)
        return cancel
    return None


def _make_failure(attempt: Attempt, error: BaseException | None) -> BaseException | None:
    """Return `RunFailed` with `error` as its cause if the run has failed, as a later caller gets it; else `error`."""
    if error is None or attempt.stop_state.classify_error(error) is not AttemptEnd.FAILED:
        return error
    was_refused = isinstance(error, RunError) and (error.is_elsewhere or isinstance(error, NotDurable))
    if attempt.info.conversation or was_refused:  # a turn has failed; there is no run that has
        return error
    failed = RunFailed(attempt.info.run_id, format_error(error))
    failed.__cause__ = error
    return failed


def _resolve_outcome(attempt: Attempt, error: BaseException | None, result: StoredResult | None) -> None:
    """Give the run's outcome to other tasks that wait for it: they were not cancelled with its caller."""
    if result is not None:
        attempt.outcome.set_result(result[0])
        return
    if error is None or isinstance(error, asyncio.CancelledError):
        error = RunCancelled(f"run {attempt.info.run_id} was cancelled")
    attempt.outcome.set_exception(error)
    attempt.outcome.exception()  # retrieved: no task has to wait for it
