"""App: joins agents, a store and ports."""

import asyncio
import builtins
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, get_args

from holdfast.checkpoint.checkpoint_store import CheckpointStore
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.store import RunStore
from holdfast.clock import CLOCK, Clock
from holdfast.concurrency import close_with_timeout, end_forked_child, run_in_background
from holdfast.config import CheckpointSettings, WorkerSettings
from holdfast.core.agents.agent import AgentRepository, AgentSource
from holdfast.core.errors import DefinitionError, RunCancelled
from holdfast.core.execution.attempt import OnCancel
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.stop import can_install_handlers, install_signal_handlers
from holdfast.core.metrics import RunMetrics
from holdfast.core.observer import ObserverFactory
from holdfast.core.ports import (
    Budget,
    Critic,
    Ports,
    RateLimiter,
    RunListener,
    Telemetry,
    ToolProvider,
    ToolProviders,
)
from holdfast.core.run.info import RunInfo, RunOptions
from holdfast.core.run.prompt import Prompt
from holdfast.core.run.result import OutputT, Result
from holdfast.core.run.run_events import Event, StatusChanged
from holdfast.core.run.waiting import Answer, WaitingCall
from holdfast.core.trace_context import annotate_submit
from holdfast.core.validation import check_choice, check_duration, check_labels
from holdfast.runtime.agent_registry import AgentRegistry, find_agent, resolve_agent
from holdfast.runtime.changes import ChangeSignal
from holdfast.runtime.conversations import CONVERSATION_LABEL, Conversation
from holdfast.runtime.lifetime import Lifetime
from holdfast.runtime.operations.forking import Fork
from holdfast.runtime.operations.run_client import RunClient
from holdfast.runtime.operations.verdicts import PICK, Verdict, read_verdict, record_verdict
from holdfast.runtime.options import AppOptions, check_options, check_sequence, find_store
from holdfast.runtime.parts import StoreParts
from holdfast.runtime.reading.run_views import RunDetails, RunList, RunQuery, get_run, list_runs
from holdfast.runtime.status_server import render_metrics
from holdfast.runtime.streams.hub import EventHub
from holdfast.runtime.table_users import TableUsers
from holdfast.runtime.worker import RecoveryReport
from holdfast.stores.from_url import resolve_url

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from holdfast.batteries.schedule import Schedule
    from holdfast.web.auth import Authorize

_CHECKPOINT_DEFAULTS = CheckpointSettings()


class App:
    """Agents, a store and ports, joined: runs that survive.

    Used as `async with App(agents) as app:`. While it is open the App is a worker: it takes queued runs, and resumes
    the runs that earlier processes left. On exit it lets its runs reach their next step boundary and leaves them for
    the next worker.
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

        Raises:
            DefinitionError: two agents have the same name, or a setting has a wrong type.
            StoreError: the URL names no store.
        """
        if isinstance(worker, bool):
            worker = WorkerSettings(take_runs=worker)
        clock = CLOCK.get() if clock is None else clock
        given, providers = check_sequence("agents", agents), check_sequence("tools", tools)
        #: The agents, by name.
        self.agents: Final = AgentRegistry(given)
        self.checkpoint_settings: Final = checkpoint
        self.worker_settings: Final = worker
        self._options = AppOptions(
            agents=given,
            store=store,
            checkpoint=checkpoint,
            worker=worker,
            audit=audit,
            budget=budget,
            rate_limits=rate_limits,
            critic=critic,
            listener=listener,
            tools=providers,
            schedule=schedule,
            telemetry=telemetry,
            clock=clock,
        )
        check_options(self._options)
        #: The store of this App, which redacts if the settings say so.
        self.store: Final = find_store(store, checkpoint)
        self._checkpoints: StoreCheckpoints | None = None
        self._hub: EventHub | None = None
        if self.store is not None:
            self._checkpoints = StoreCheckpoints(self.store, settings=checkpoint, clock=clock)
            self._changes = ChangeSignal(self.store, clock)
            self._hub = EventHub(self._checkpoints, self._changes, redacts=checkpoint.redact is not None, clock=clock)
        observers = (audit, telemetry, None if self._hub is None else self._hub.live)
        #: The ports of every run.
        self.ports: Final = Ports(
            checkpoints=self._checkpoints,
            observers=tuple(each for each in observers if each is not None),
            budget=budget,
            rate_limiter=rate_limits,
            critic=critic,
            listener=listener,
            extra_tools=ToolProviders(providers) if providers else None,
        )
        self._telemetry = telemetry
        self._schedule = schedule
        self._schedule_loop: asyncio.Task[None] | None = None
        batteries = (budget, rate_limits, audit, schedule, *self.agents.repositories, *providers)
        self._table_users = TableUsers(batteries, self.store, clock)
        #: The counters of the runs that this process executes.
        self.metrics: Final = RunMetrics()
        if telemetry is not None:
            telemetry.export(self.metrics)
        self._clock = clock
        self._remove_signal_handlers: Callable[[], None] | None = None
        #: Set when the App opens.
        self._lifetime: Lifetime | None = None
        self._executor: Executor | None = None
        self._parts: StoreParts | None = None

    # -- lifecycle ----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._open(take_runs=self.worker_settings.take_runs)
        return self

    async def _open(self, *, take_runs: bool) -> None:
        self._check_not_open()
        self._lifetime = lifetime = Lifetime(self._close)
        try:
            await self._open_parts(take_runs=take_runs)
        except BaseException:
            self._lifetime = None
            if self._checkpoints is not None:
                await close_with_timeout("the store", self._checkpoints.close, self._clock)
            raise
        lifetime.start()
        if self.worker_settings.handle_signals and can_install_handlers():
            self._remove_signal_handlers = install_signal_handlers(self.shutdown)

    def _check_not_open(self) -> None:
        """Raise `DefinitionError` if the App is open. An event loop that was closed has taken it along."""
        if self._lifetime is None or not self._lifetime.is_open:
            return
        if self._lifetime.loop is not asyncio.get_running_loop():
            raise DefinitionError("the App is open in another event loop: use App.replace() for a second one")
        raise DefinitionError("the App is open already: share it, or use App.replace() for a second one")

    async def _open_parts(self, *, take_runs: bool) -> None:
        executor = Executor(
            self.ports,
            clock=self._clock,
            require_durability=self.checkpoint_settings.require_durability,
            shutdown_exceptions=self.worker_settings.shutdown_exceptions,
            shutdown_timeout=self.worker_settings.shutdown_timeout,
            metrics=self.metrics,
        )
        if self._checkpoints is not None:
            await self._checkpoints.open()
        try:
            await self._table_users.open()
        except BaseException:
            if self._checkpoints is not None:
                await close_with_timeout("the store", self._checkpoints.close, self._clock)
            raise
        if self._checkpoints is not None and self._hub is not None:
            for limit in self.worker_settings.concurrency_limits:
                await self._checkpoints.store.set_limit(limit.kind, limit.name, limit.max_runs, default=True)
            self._changes.open()
            self._hub.open()
            self._parts = StoreParts.open(
                self._checkpoints,
                executor,
                self._hub,
                self._changes,
                self.agents,
                self.worker_settings,
                self._clock,
                counts_runs=self._telemetry is not None,
            )
            if take_runs:
                self._parts.worker.start()
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

        An error while closing one of them is logged, and the others are closed all the same. May be called again; every
        call returns when the App is closed.
        """
        executor = self._open_executor
        if timeout is not None:
            check_duration("timeout", timeout)
        executor.begin_shutdown()  # before anything is awaited: no run begins another step
        if self._lifetime is not None:
            await self._lifetime.end(timeout)

    async def _close(self, timeout: timedelta | None) -> None:
        executor = self._open_executor
        executor.begin_shutdown()
        if self._schedule_loop is not None:
            self._schedule_loop.cancel()
            self._schedule_loop = None
        if self._parts is not None:
            self._parts.worker.stop()
            await self._parts.janitor.close()
        # The executor drains its runs, then ends the claims of this process, then closes the store.
        await executor.shutdown(self.worker_settings.shutdown_timeout if timeout is None else timeout)
        if self._parts is not None:
            await self._parts.worker.close()
            await self._parts.health.close()
            await self._parts.hub.close()
            await self._changes.close()
        await self._table_users.close()
        if self._remove_signal_handlers is not None:
            self._remove_signal_handlers()

    @property
    def _open_executor(self) -> Executor:
        if self._executor is None:
            raise DefinitionError("the App is not open: use it as `async with app:`")
        return self._executor

    @property
    def _stored(self) -> StoreParts:
        if self.store is None:
            raise DefinitionError("this App has no store: give it one to submit, recover or resume runs")
        if self._parts is None:
            raise DefinitionError("the App is not open: use it as `async with app:`")
        return self._parts

    @property
    def _client(self) -> RunClient:
        return self._stored.client

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
        """Return the agent of this name.

        Raises:
            DefinitionError: there is none.
        """
        return find_agent(self.agents, name)

    # -- runs ---------------------------------------------------------------------------------------------------

    async def run(
        self,
        agent: AgentSource[OutputT] | str,
        prompt: Prompt,
        *,
        inputs: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        on_cancel: OnCancel = "detach",
        through_waits: bool = False,
        **labels: Unpack[RunOptions],
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
            RunError: the run did not end with an answer; the subclass says why. An exception of the model is raised
                unchanged.
            DefinitionError: an argument has a wrong type, or the agent does not accept the content parts.
            RunFailed: the run with this id has failed before.
            RunConflict: a run with this id has another agent, prompt or inputs.
            RunParked: the run waits for a person: `unpark` or `resume` it.
            RunWaiting: it waits for a person, a signal or a result from outside.
        """
        check_choice("on_cancel", on_cancel, get_args(OnCancel))
        source = resolve_agent(self.agents, agent)
        info = RunInfo.create(source, prompt, run_id=run_id, inputs=inputs, **labels)
        check_labels(info.labels)
        if self.store is None:
            return await self._open_executor.start(source, info, on_cancel=on_cancel)
        return await self._stored.attacher.run(
            source, info, on_cancel, is_new=run_id is None, through_waits=through_waits
        )

    def run_sync(
        self,
        agent: AgentSource[OutputT] | str,
        prompt: Prompt,
        *,
        inputs: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        through_waits: bool = False,
        **labels: Unpack[RunOptions],
    ) -> Result[OutputT]:
        """`run` for code without an event loop. Opens the App, executes only this run and its children, and closes it.

        Ctrl-C leaves the run for the next worker.
        """

        async def main() -> Result[OutputT]:
            await self._open(take_runs=False)
            try:
                return await self.run(
                    agent, prompt, inputs=inputs, run_id=run_id, through_waits=through_waits, **labels
                )
            finally:
                await self.shutdown()

        return asyncio.run(main())

    async def submit(
        self,
        agent: AgentSource | str,
        prompt: Prompt,
        *,
        inputs: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        not_before: datetime | None = None,
        connection: Any = None,
        **labels: Unpack[RunOptions],
    ) -> str:
        """Queue a run for any worker, this App included. Durable when this returns.

        Idempotent: the id of an earlier run with the same agent and prompt attaches to it, whatever its status.

        Args:
            prompt: as for `run`.
            inputs: as for `run`.
            not_before: workers leave the run alone until then.
            connection: your own connection to the store's PostgreSQL database (psycopg, asyncpg or SQLAlchemy), in a
                transaction. The run exists if and only if that transaction commits.

        Raises:
            DefinitionError: as for `run`; or the connection cannot be used.
            RunConflict: a run with this id has another agent, prompt or inputs.
        """
        info = RunInfo.create(resolve_agent(self.agents, agent), prompt, run_id=run_id, inputs=inputs, **labels)
        port_data = annotate_submit(self._telemetry, info)
        return await self._client.submit(info, not_before, connection, port_data=port_data)

    async def result(self, run_id: str, *, through_waits: bool = False) -> Result:
        """Wait for the result of a run, in whichever process it is executed. Raises as `RunClient.result`.

        Args:
            through_waits: as for `run`.
        """
        return await self._client.result(run_id, through_waits=through_waits)

    async def render_metrics(self) -> str:
        """Return the metrics of this process and of its store in the text format of Prometheus."""
        counts = (await self.store.read_fleet()).counts if self.store is not None else ()
        return render_metrics(self.metrics, counts, self._clock.now())

    async def recover(self) -> RecoveryReport:
        """Resume every run that is interrupted now, and wait for its end. Runs within their backoff are skipped."""
        return await self._stored.worker.recover()

    async def serve(self) -> None:
        """Wait until the App shuts down. It takes queued and interrupted runs, whatever its settings say.

        Returns too when it has taken `WorkerSettings.max_runs`, and they have ended.
        """
        worker = self._stored.worker
        self._start_schedule()
        await worker.serve()

    async def find_problem(self) -> str:
        """Return why this App takes no runs now, for a health check; empty if it can.

        It drains, has taken `max_runs`, does not work (`worker=False`), or its store does not answer.
        """
        return await self._stored.health.find_problem()

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
        return await self._stored.attacher.resume(run_id, on_cancel)

    async def cancel(self, run_id: str) -> None:
        """Cancel a run and its unfinished children. If another process owns it, ask that process to."""
        run = self._open_executor.get_attempt(run_id)
        if run is not None:
            run.stop(RunCancelled(f"run {run_id} was cancelled"))
            return
        await self._client.cancel(run_id)

    async def unpark(self, run_id: str, resolutions: Mapping[str, Any] | None = None) -> None:
        """Leave a parked run to recovery. Arguments and errors as for `RunClient.unpark`."""
        await self._client.unpark(run_id, resolutions)

    async def requeue(self, run_id: str) -> None:
        """Leave a parked, failed or cancelled run to any worker, which resumes it. Durable when this returns.

        Raises as `RunClient.requeue`.
        """
        await self._client.requeue(run_id)

    async def pick(self, run_id: str, result: str, *, by: str = "") -> None:
        """Record which of several results a person has picked. The newest pick counts. Durable when this returns.

        Args:
            run_id: a fan-out, a run with forks, or the parent of several runs.
            result: the id of a model of the fan-out, or the id of a run. Empty takes the pick back.

        Raises:
            RunNotFound: there is no such run.
        """
        await self._client.get_record(run_id)
        await record_verdict(self._client.store, run_id, PICK, result, by=by)

    async def get_pick(self, run_id: str) -> Verdict | None:
        """Return the newest pick among the results of a run; `None` if there is none."""
        return await read_verdict(self._client.store, run_id, PICK)

    async def fork(
        self,
        run_id: str,
        at_step: int,
        *,
        edited: Prompt | None = None,
        results: Mapping[str, Any] | None = None,
        new_id: str | None = None,
    ) -> str:
        """Queue a new run that starts with the state of `run_id` after `at_step`. The old run is not changed.

        Args:
            edited: replaces the prompt, if `at_step` is 1, or the messages that the run got before this step, which is
                run again. The number of the next step adds a message after the last one.
            results: replace results of the step's calls, by call id.
            new_id: of the new run; random by default.

        Raises as `RunClient.fork`.
        """
        return await self._client.fork(
            run_id, Fork(at_step=at_step, new_id=new_id, edited=edited, results=dict(results or {}))
        )

    # -- mail ---------------------------------------------------------------------------------------------------

    async def send(self, run_id: str, content: Prompt, *, id: str | None = None) -> str:
        """Send a message to a run, whichever process executes it. Durable when this returns.

        The run reads it before its next step, exactly once. Returns the id of the message. Sending with the same `id`
        again changes nothing.

        Args:
            content: text, or content parts (pictures, files) that the agent of the run accepts.

        Raises:
            RunNotFound: there is no such run. RunEnded: it is done, failed or cancelled.
            DefinitionError: the content is neither, or the agent does not accept these parts.
        """
        mail_id = await self._stored.mailer.send(run_id, await self._client.dump_message(run_id, content), id)
        await self._stored.janitor.deliver_mail(run_id)
        return mail_id

    async def signal(self, run_id: str, name: str, payload: Any = None, *, id: str | None = None) -> str:
        """Send a signal to a run: a call of the tool `wait_for` with this name returns the payload.

        The signal may come before the wait. Raises as `send`.
        """
        mail_id = await self._stored.mailer.signal(run_id, name, payload, id)
        await self._stored.janitor.deliver_mail(run_id)
        return mail_id

    async def pending(
        self,
        *,
        agent: str | None = None,
        caller: str | None = None,
        tool: str | None = None,
        older_than: timedelta | None = None,
    ) -> builtins.list[WaitingCall]:
        """Return the calls of all runs that only `answer` ends: they wait for a person, or for an external result."""
        return await self._stored.mailer.list_pending(agent=agent, caller=caller, tool=tool, older_than=older_than)

    async def answer(
        self, run_id: str, call_id: str, answer: Answer, *, by: str = "", via: str = "", digest: str | None = None
    ) -> None:
        """Answer a call that waits for a person. Durable when this returns; applied exactly once.

        Args:
            answer: `Approve` (with other arguments, if given), `Deny` (the model reads the reason) or `Value`.
            by: who decided.
            via: where, such as `slack`.
            digest: of the arguments that the person saw. Others are refused.

        Raises:
            NotWaiting: no such call waits. AlreadyAnswered: another answer was first.
            CheckpointError: the arguments are not those of `digest`.
        """
        await self._stored.mailer.answer(run_id, call_id, answer, by=by, via=via, digest=digest)

    async def complete_call(self, token: str, result: Any) -> None:
        """Give the result of a call whose tool returned `Deferred`. The token is `current_call().completion_token`.

        Raises:
            NotWaiting: the token is not valid, or the wait is over. AlreadyAnswered: there is a result already.
        """
        await self._stored.mailer.complete_call(token, result)

    # -- conversations ------------------------------------------------------------------------------------------

    def conversation(
        self, agent: AgentSource[OutputT] | str, key: str, **labels: Unpack[RunOptions]
    ) -> Conversation[OutputT]:
        """Return the conversation of this agent with this key, from any process. It begins with its first message.

        Args:
            key: such as the id of a chat or a user.
            labels: of the conversation, if this call begins it.

        Raises:
            DefinitionError: the agent is not known, or the key is not text.
        """
        parts = self._stored
        check_labels(labels.get("labels") or {})
        return Conversation(
            resolve_agent(self.agents, agent),
            key,
            labels,
            client=parts.client,
            attacher=parts.attacher,
            janitor=parts.janitor,
        )

    async def conversations(self, *, limit: int = 50, cursor: str | None = None, **query: Unpack[RunQuery]) -> RunList:
        """Return a page of conversations, newest first. Arguments and errors as for `list`."""
        query["labels"] = {**(query.get("labels") or {}), **CONVERSATION_LABEL}
        return await self.list(limit=limit, cursor=cursor, **query)

    # -- reading runs -------------------------------------------------------------------------------------------

    async def get(self, run_id: str) -> RunDetails:
        """Return a run's status, progress, times and pending calls, whichever process executes it.

        Raises:
            RunNotFound: there is no such run, or its retention has passed.
            RunDamaged: its journal is corrupt.
        """
        return await get_run(self._stored.checkpoints.store, run_id)

    async def list(self, *, limit: int = 50, cursor: str | None = None, **query: Unpack[RunQuery]) -> RunList:
        """Return a page of runs, newest first.

        Args:
            cursor: the `cursor` of the page before.
            query: `status`, `agent`, `caller`, `parent`, `labels`, `since` and `until`; all that are given have to fit.

        Raises:
            DefinitionError: an argument has a wrong type or value.
            InvalidCursor: the cursor is not one that this store has returned.
        """
        return await list_runs(self._stored.checkpoints.store, limit=limit, cursor=cursor, **query)

    # -- watching runs ------------------------------------------------------------------------------------------

    def events(self, run_id: str, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Watch a run, whichever process executes it: an async iterator of `holdfast.events`.

        First come the durable events after the cursor, each exactly once and in order, then the present status and the
        draft of the reply under way, then live events. The stream ends when the run is done, failed or cancelled. That
        of a conversation continues between turns.

        Args:
            after: the `cursor` of an event that this method has returned. `None`: from the beginning.

        Raises:
            RunNotFound: there is no such run. RunDamaged: its journal is corrupt.
            InvalidCursor: the cursor is not one of this run.
            ReaderTooSlow: events were not taken in time. Watch again with its `cursor`.
            StoreClosed: the App was closed.
        """
        return self._stored.hub.stream(run_id, after)

    def watch(self, **query: Unpack[RunQuery]) -> AsyncGenerator[StatusChanged, None]:
        """Watch the status of many runs: an async iterator that ends with the App.

        First comes the status of each run that fits and is not terminal, then each change. A watcher that is slow gets
        the present status of a run, not each change in between.

        Args:
            query: as for `list`. With `status`, only changes to these statuses.

        Raises:
            DefinitionError: an argument has a wrong type or value.
            StoreClosed: the App was closed.
        """
        return self._stored.hub.watch(**query)

    # -- web ----------------------------------------------------------------------------------------------------

    def web(self, *, authorize: "Authorize | None" = None) -> "Starlette":
        """Return the web UI of this App at `/`, and its HTTP API at `/api`. Needs the extra `web`.

        Mount it under any path while the App is open, or serve it alone: then it opens the App.

        Args:
            authorize: returns the sender of a request, or `None`. Without it only clients of a Unix socket are served.
        """
        from holdfast.web.server import make_web

        return make_web(self, authorize=authorize)
