"""App: a client that also executes. Joins agents, a store and ports; opens and closes them."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, get_args

from holdfast.checkpoint.checkpoint_store import CheckpointStore
from holdfast.checkpoint.claims import request_cancel
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.store import RunStore
from holdfast.clock import CLOCK, Clock
from holdfast.concurrency import SHUTDOWN_STORE_TIMEOUT, close_with_timeout, end_forked_child, run_in_background
from holdfast.config import CheckpointSettings, WorkerSettings
from holdfast.core.agents.agent import AgentRepository, AgentSource
from holdfast.core.errors import DefinitionError, RunCancelled, Shutdown
from holdfast.core.execution.attempt import OnCancel
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.stop import ShutdownSignals, can_install_handlers
from holdfast.core.metrics import RunMetrics
from holdfast.core.observer import ObserverFactory
from holdfast.core.ports import Budget, Critic, RateLimiter, RunListener, Telemetry, ToolProvider
from holdfast.core.run.info import RunInfo, RunOptions, check_run_id
from holdfast.core.run.prompt import Prompt, make_request_digest
from holdfast.core.run.result import OutputT, Result
from holdfast.core.validation import check_choice, check_duration, check_labels
from holdfast.extras import require_extra
from holdfast.runtime.agent_registry import find_agent, resolve_agent
from holdfast.runtime.app_options import AppOptions, check_options, make_ports
from holdfast.runtime.blocking import exit_on_signal, report_resume, run_blocking
from holdfast.runtime.lifetime import Lifetime
from holdfast.runtime.operations.run_client import NO_STORE, NOT_OPEN, RunClient
from holdfast.runtime.parts import WorkingParts
from holdfast.runtime.run_map import BATCH_LABEL, BatchItem, run_batch
from holdfast.runtime.status_server import render_metrics
from holdfast.runtime.table_users import TableUsers
from holdfast.runtime.worker import RecoveryReport
from holdfast.stores.from_url import find_store, resolve_url

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from holdfast.batteries.schedule import Schedule
    from holdfast.web.auth import Authorize, Deciders

_CHECKPOINT_DEFAULTS = CheckpointSettings()


class App(RunClient):
    """Executes agents durably: joins agents, a store and ports. A `RunClient` that also executes.

    Used as `async with App(agents) as app:`. While it is open the App is a worker: it takes queued runs, and resumes
    the runs that earlier processes left. On exit it lets its runs reach their next step boundary and leaves them for
    the next worker.

    Args:
        agents: an interrupted run finds its agent here, by name. `Personas` is a repository of stored ones.
        store: a store, the URL of one, or a table of the host (`CheckpointStore`). `""` is the default
            (`HOLDFAST_STORE`, else SQLite under `.holdfast/`). `None` keeps runs in memory only.
        checkpoint: how runs are saved.
        worker: how this process executes stored runs, and how it stops. `False`: it takes no queued or interrupted
            runs, and executes only what `run`, `resume` and `recover` ask for.
        rate_limits: decides when runs may call their models, such as `RateLimits`.
        tools: offer further tools to every run, such as `Skills` or `AgentToolProvider`.
        schedule: cron jobs, such as `Schedule()`. Every App that takes runs submits those that are due.
        telemetry: traces and metrics: `holdfast.batteries.telemetry.OpenTelemetry()`.
    """

    def __init__(
        self,
        agents: Iterable[AgentSource | AgentRepository],
        store: RunStore | CheckpointStore | str | None = "",
        *,
        checkpoint: CheckpointSettings = _CHECKPOINT_DEFAULTS,
        worker: WorkerSettings | bool = True,
        audit: ObserverFactory | None = None,
        budget: Budget | None = None,
        rate_limits: RateLimiter | None = None,
        critic: Critic | None = None,
        listener: RunListener | None = None,
        tools: Iterable[ToolProvider] = (),
        schedule: "Schedule | None" = None,
        telemetry: Telemetry | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Join the parts.

        Raises:
            DefinitionError: two agents have the same name, or a setting has a wrong type.
            StoreError: the URL names no store.
        """
        clock = CLOCK.get() if clock is None else clock
        self.checkpoint_settings: Final = checkpoint
        self.worker_settings: Final = WorkerSettings(take_runs=worker) if isinstance(worker, bool) else worker
        self._options = AppOptions(
            agents=agents,
            store=store,
            checkpoint=checkpoint,
            worker=self.worker_settings,
            audit=audit,
            budget=budget,
            rate_limits=rate_limits,
            critic=critic,
            listener=listener,
            tools=tools,
            schedule=schedule,
            telemetry=telemetry,
            clock=clock,
        )
        registry = check_options(self._options)
        token = CLOCK.set(clock)  # a store that is made of its URL has the clock of its App
        try:
            stored = find_store(store, checkpoint.redact)
        finally:
            CLOCK.reset(token)
        super().__init__(stored, registry, settings=checkpoint, telemetry=telemetry, clock=clock)
        #: The ports of every run.
        self.ports: Final = make_ports(self._options, self._services, registry)
        batteries = (budget, rate_limits, audit, schedule, *registry.repositories, *self._options["tools"])
        self._table_users = TableUsers(batteries, self.store, self._clock)
        #: The counters of the runs that this process executes.
        self.metrics: Final = RunMetrics()
        if telemetry is not None:
            telemetry.export(self.metrics)
        self._schedule = schedule
        self._schedule_loop: asyncio.Task[None] | None = None
        self._signals: ShutdownSignals | None = None
        #: Set when the App opens.
        self._lifetime: Lifetime | None = None
        self._executor: Executor | None = None
        self._parts: WorkingParts | None = None

    # -- lifecycle ----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._open(take_runs=self.worker_settings.take_runs)
        return self

    async def _open(self, *, take_runs: bool) -> None:
        if self._lifetime is not None:
            self._lifetime.check_ended()
        self._lifetime = lifetime = Lifetime(self._close)
        self._signals = None
        try:
            await self._open_parts(take_runs=take_runs)
        except BaseException:
            self._lifetime = None
            if self._services is not None:
                await close_with_timeout("the store", self._services.checkpoints.close, self._clock)
            raise
        lifetime.start()
        if self.worker_settings.handle_signals and can_install_handlers():
            self._signals = ShutdownSignals(self.shutdown)

    async def _open_parts(self, *, take_runs: bool) -> None:
        executor = Executor(
            self.ports,
            clock=self._clock,
            require_durability=self.checkpoint_settings.require_durability,
            shutdown_exceptions=self.worker_settings.shutdown_exceptions,
            shutdown_timeout=self.worker_settings.shutdown_timeout,
            metrics=self.metrics,
            redact=self.checkpoint_settings.redact,
        )
        services = self._services
        if services is not None:
            await services.checkpoints.open(tuple(self.agents) if take_runs else ())
        await self._table_users.open()
        if services is not None:
            self._parts = await WorkingParts.open(
                services,
                executor,
                self.agents,
                self.worker_settings,
                self._clock,
                counts_runs=self._telemetry is not None,
            )
            self._host = self._parts.attacher
            if take_runs:
                self._parts.worker.start()
        self._was_opened = True
        self._executor = executor
        if self._schedule is not None:
            self._schedule.bind(self.submit, self.agents)
            if take_runs:
                self._start_schedule()

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        if self._lifetime is None or not self._lifetime.is_forked:
            await self.shutdown()
        elif error is not None:
            end_forked_child(error)

    async def shutdown(self, timeout: timedelta | None = None) -> None:
        """Stop taking runs, let those in progress reach their next step boundary, and close the store and the ports.

        An error while closing one of them is logged, and the others are still closed. May be called again; every
        call returns when the App is closed.
        """
        if timeout is not None:
            check_duration("timeout", timeout)
        self._open_executor.begin_shutdown()  # before anything is awaited: no run begins another step
        if self._lifetime is not None:
            await self._lifetime.end(timeout)

    async def _close(self, timeout: timedelta | None) -> None:
        executor = self._open_executor
        executor.begin_shutdown()
        if self._schedule_loop is not None:
            self._schedule_loop.cancel()
            await asyncio.wait([self._schedule_loop], timeout=SHUTDOWN_STORE_TIMEOUT.total_seconds())  # it marks fires
            self._schedule_loop = None
        if self._parts is not None:
            await self._parts.stop()
        # The executor drains its runs, then ends the claims of this process, then closes the store.
        await executor.shutdown(self.worker_settings.shutdown_timeout if timeout is None else timeout)
        if self._parts is not None:
            await self._parts.close()
        await self._table_users.close()
        if self._signals is not None:
            self._signals.remove()

    @property
    def _open_executor(self) -> Executor:
        if self._executor is None:
            raise DefinitionError(NOT_OPEN)
        return self._executor

    @property
    def _working(self) -> WorkingParts:
        if self._parts is None:
            raise DefinitionError(NO_STORE if self.store is None else NOT_OPEN)
        return self._parts

    def _start_schedule(self) -> None:
        if self._schedule is not None and self._schedule_loop is None:
            self._schedule_loop = run_in_background(self._schedule.loop())

    def replace(self, **changes: Unpack[AppOptions]) -> "App":
        """Return a new App, not open, with the same arguments except `changes`."""
        options: AppOptions = {**self._options, **changes}
        return App(**options)

    @property
    def store_url(self) -> str | None:
        """The URL of the store. `None` if the App was given a store instead of a URL, or none."""
        store = self._options["store"]
        return resolve_url(store) if isinstance(store, str) else None

    @property
    def has_schedule(self) -> bool:
        return self._schedule is not None

    @property
    def schedule(self) -> "Schedule":
        """The schedule that this App was given.

        Raises:
            DefinitionError: it was given none.
        """
        if self._schedule is None:
            raise DefinitionError("this App has no schedule: App(agents, schedule=Schedule())")
        return self._schedule

    def agent(self, name: str) -> AgentSource:
        """Return the agent of this name. Raises `DefinitionError` if there is none."""
        return find_agent(self.agents, name)

    # -- runs ---------------------------------------------------------------------------------------------------

    async def run(
        self,
        agent: AgentSource[OutputT] | str,
        prompt: Prompt = "",
        *,
        inputs: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        on_cancel: OnCancel = "detach",
        through_waits: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]:
        """Run an agent to its end.

        The run belongs to the App, not to the caller. If the caller is cancelled, by a timeout for example, the run
        continues while the App is open, and is interrupted when the App closes.

        Args:
            prompt: text, or content parts (pictures, files) that the agent accepts.
            inputs: structured data for the agent's code, as plain JSON data: `RunInfo.inputs`, `$NAME` in the prompts
                of phases, `current_call().inputs` in tools.
            on_cancel: `"cancel"` cancels the run that this call has started when the caller is cancelled.
            through_waits: keep waiting while the run waits for a person, a signal or a result from outside, which any
                process may send. Without it such a wait raises `RunWaiting`.

        Raises:
            RunError: the run did not end with an answer; the subclass says why.
            RunFailed: it failed, now or before. Its cause, `__cause__`, is the exception of the model, the tool or the
                bound that ended it, if this process has just executed it.
            DefinitionError: an argument has a wrong type, or the agent does not accept the content parts.
            RunConflict: a run with this id has another agent, prompt or inputs.
            RunParked: the run waits for a person: `unpark` or `resume` it.
            RunWaiting: it waits for a person, a signal or a result from outside.
        """
        check_choice("on_cancel", on_cancel, get_args(OnCancel))
        source = resolve_agent(self.agents, agent)
        info = RunInfo.create(source, prompt, run_id=run_id, inputs=inputs, **options)
        check_labels(info.labels)
        if self.store is None:
            return await self._open_executor.start(source, info, on_cancel=on_cancel)
        return await self._working.attacher.run(
            source, info, on_cancel, is_new=run_id is None, through_waits=through_waits
        )

    def run_sync(
        self,
        agent: AgentSource[OutputT] | str,
        prompt: Prompt = "",
        *,
        inputs: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        through_waits: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]:
        """`run` for code without an event loop. Opens the App, executes only this run and its children, and closes it.

        Ctrl-C leaves the run for the next start or the next worker: prints one line, and exits with 130. Says on stderr
        if it resumes a run.

        Raises:
            DefinitionError: the event loop of this thread runs, as in a notebook. Any other error: as for `run`.
        """

        async def main() -> Result[OutputT]:
            await self._open(take_runs=False)
            try:
                if self.store is not None and run_id is not None:
                    info = RunInfo.create(resolve_agent(self.agents, agent), prompt, run_id=run_id, inputs=inputs)
                    with suppress(RunNotFound):
                        report_resume(await self._stored.submitter.get_same_request(info))
                return await self.run(
                    agent, prompt, inputs=inputs, run_id=run_id, through_waits=through_waits, **options
                )
            finally:
                await self.shutdown()

        try:
            return run_blocking(main)
        except (Shutdown, KeyboardInterrupt) as exc:
            if self._signals is None or self._signals.received is None:
                raise
            exit_on_signal(exc, self._signals.received, can_start_again=run_id is not None and self.store is not None)

    def map(
        self,
        agent: AgentSource[OutputT] | str,
        inputs: Iterable[Prompt],
        *,
        id: str,
        concurrency: int = 16,
        ordered: bool = True,
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[BatchItem[OutputT], None]:
        """Run an agent for each input, several at a time. Yields the outcome of each, with its run id.

        Resumable: the same call with the same `id`, in this process or after a kill, resumes unfinished runs and yields
        the recorded results of the others. Its runs have the label `batch`.

        Args:
            id: of the batch. With an input it makes the id of that input's run.
            concurrency: how many runs are in progress at once.
            ordered: yield in the order of the inputs. Otherwise as they end.

        Raises:
            DefinitionError: an argument has a wrong type or value.
            RunInterrupted: the App shuts down, or its store does not answer. Other errors are in the items.
        """
        options["labels"] = {**(options.get("labels") or {}), BATCH_LABEL: check_run_id(id)}
        source = resolve_agent(self.agents, agent)

        def digest(prompt: Prompt) -> str:
            info = RunInfo.create(source, prompt)
            return make_request_digest(info.prompt, info.inputs)

        async def run(prompt: Prompt, run_id: str) -> Result[OutputT]:
            return await self.run(source, prompt, run_id=run_id, **options)

        return run_batch(run, digest, inputs, id, concurrency, ordered=ordered)

    async def render_metrics(self) -> str:
        """Return the metrics of this process and of its store in the text format of Prometheus."""
        counts = (await self.store.read_fleet()).counts if self.store is not None else ()
        return render_metrics(self.metrics, counts, self._clock.now())

    async def recover(self) -> RecoveryReport:
        """Resume every run that is interrupted now, and wait for its end. Runs within their backoff are skipped."""
        return await self._working.worker.recover()

    async def serve(self) -> None:
        """Wait until the App shuts down. It takes queued and interrupted runs, whatever its settings say.

        Returns too when it has taken `WorkerSettings.max_runs`, and they have ended.
        """
        worker = self._working.worker
        self._start_schedule()
        await worker.serve()

    async def find_problem(self) -> str:
        """Return why this App takes no runs now, for a health check; empty if it can.

        It drains, has taken `max_runs`, does not work (`worker=False`), or its store does not answer.
        """
        return await self._working.health.find_problem()

    async def resume(self, run_id: str, *, on_cancel: OnCancel = "detach") -> Result:
        """Resume one interrupted, parked, failed or cancelled run in this process, and wait for its end.

        A failed run continues after its last good step. A run that is done returns its recorded result.

        Args:
            on_cancel: as for `run`.

        Raises:
            RunBusy: another process executes it.
            CheckpointError: the run does not exist or cannot be read.
        """
        check_choice("on_cancel", on_cancel, get_args(OnCancel))
        return await self._working.attacher.resume(run_id, on_cancel)

    async def cancel(self, run_id: str) -> None:
        """As `RunClient.cancel`, durable when this returns. A run that this process executes is stopped at once."""
        run = self._open_executor.get_attempt(run_id)
        if run is None:
            await super().cancel(run_id)
            return
        run.stop(RunCancelled(f"run {run_id} was cancelled"))
        if self.store is not None:  # the process may die first, or the attempt may be about to end with a wait
            with suppress(RunNotFound):
                await request_cancel(await self._stored.get_claims(), run_id)

    # -- web ----------------------------------------------------------------------------------------------------

    def web(self, *, authorize: "Authorize | None" = None, deciders: "Deciders | None" = None) -> "Starlette":
        """Return the web UI of this App at `/`, and its HTTP API at `/api`. Needs the extra `web`.

        Mount it under any path while the App is open, or serve it alone: then it opens the App.

        Args:
            authorize: returns the sender of a request, or `None`. Without it only clients of a Unix socket are served.
            deciders: the names of those who decide for each audience of an approval, shown to those who may not.
        """
        with require_extra("web"):
            from holdfast.web.server import make_web

        return make_web(self, authorize=authorize, deciders=deciders)
