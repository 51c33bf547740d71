"""The worker: finds runs that are due in the store, claims and executes them."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

from holdfast.checkpoint.claims import ClaimUse, cancel_children, make_cancelled_release
from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.errors import CheckpointError, RecordDecodeError, RunDamaged, StoreClosed, StoreError
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import Release, RunFilter, RunRecord, RunStatus, StoredRun, restore_previous
from holdfast.checkpoint.store import get_record, iter_runs
from holdfast.checkpoint.workers import Claim
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.concurrency import run_in_background
from holdfast.core.agents.agent import AgentSource
from holdfast.core.errors import (
    MissingDefinition,
    RunCancelled,
    RunFailed,
    RunInterrupted,
    RunLost,
    RunParked,
    format_error,
)
from holdfast.core.execution.attempt import OnCancel
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.native_loop import get_loop
from holdfast.core.log import log_parked
from holdfast.core.ports import Leave, Resumption
from holdfast.core.run.result import Result
from holdfast.core.run.status import AttemptEnd
from holdfast.core.run.waiting import RunWaiting
from holdfast.runtime.agent_registry import find_agent
from holdfast.runtime.changes import POLL_INTERVAL
from holdfast.runtime.operations.outcomes import wait_for_result
from holdfast.runtime.operations.requeueing import reclaim_after_cancel
from holdfast.runtime.operations.store_services import StoreServices
from holdfast.runtime.operations.stored_background import has_outlived_parent

log: logging.Logger = logging.getLogger("holdfast.worker")

#: Claims in a row that may end without a finished step before a run is parked.
MAX_STRIKES = 3


class RecoveryStatus(StrEnum):
    """The outcome of a run that the worker executed."""

    COMPLETED = "completed"
    FAILED = "failed"
    #: For a time or for mail; it resumes by itself.
    WAITING = "waiting"
    PARKED = "parked"
    #: Stopped before its end; it stays in the store for the next recovery.
    INTERRUPTED = "interrupted"
    #: Its journal cannot be read. It was parked unchanged.
    DAMAGED = "damaged"


@dataclass(slots=True)
class RecoveryReport:
    """The runs that one pass executed, and the outcome of each."""

    statuses: dict[str, RecoveryStatus] = field(default_factory=dict)
    #: The reason, for every run that did not complete.
    reasons: dict[str, str] = field(default_factory=dict)

    def runs_with(self, status: RecoveryStatus) -> list[str]:
        return [run_id for run_id, found in self.statuses.items() if found is status]

    def __str__(self) -> str:
        counts = {status.value: len(self.runs_with(status)) for status in RecoveryStatus}
        summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        runs = "1 run" if len(self.statuses) == 1 else f"{len(self.statuses)} runs"
        return f"recovered {runs}: {summary}" if summary else "nothing to recover"


class _NotExecuted(Exception):
    """A claimed run is not executed here, and its claim has ended."""

    def __init__(self, status: RecoveryStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Worker:
    """Claims due runs of known agents and executes them, `concurrency` at once."""

    def __init__(
        self,
        services: StoreServices,
        executor: Executor,
        agents: Mapping[str, AgentSource],
        *,
        concurrency: int = 16,
        max_runs: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a worker.

        Args:
            agents: by name. A run of another agent is left for a process that knows it.
            max_runs: how many the loop takes in all.
        """
        self._services, self._checkpoints, self._executor = services, services.checkpoints, executor
        self._agents, self._store, self._clock, self._concurrency = agents, services.store, clock, concurrency
        self._max_runs, self._claims = max_runs, services.checkpoints.claims
        #: Runs that the loop has taken.
        self._taken = 0
        self._is_stopping = False
        #: Woken also when a run has ended, and by `stop`.
        self._changed = services.changes.listen()
        self._task: asyncio.Task[None] | None = None

    @property
    def worker_id(self) -> str:
        """The id under which this process claims runs."""
        return self._claims.worker_id

    @property
    def is_taking_runs(self) -> bool:
        """Whether the loop takes further runs."""
        stopped = self._task is None or self._task.done() or self._is_stopping or self._executor.draining
        return not stopped and not self._is_exhausted

    @property
    def _is_exhausted(self) -> bool:
        return self._max_runs is not None and self._taken >= self._max_runs

    def _count_room(self, running: int) -> int:
        """Return how many further runs the loop may take."""
        room = self._concurrency - running
        return room if self._max_runs is None else min(room, self._max_runs - self._taken)

    # -- the loop -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take runs in the background until `stop`, each as soon as it is due."""
        self._task = asyncio.create_task(self._loop())

    async def serve(self) -> None:
        """Take runs until `stop`, then wait for those in progress.

        If this is cancelled, no further runs are taken, unless they were taken before this call too.
        """
        started_here = self._task is None or self._task.done()
        if started_here:
            self.start()
        task = self._task
        if task is None:
            return
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._is_stopping and not _is_cancelled():
                return  # `close` has ended the loop within a claim
            if started_here:
                await _cancel_tasks({task})
            raise

    def stop(self) -> None:
        """Take no further runs."""
        self._is_stopping = True
        self._changed.wake()

    async def close(self) -> None:
        """End the loop. Runs in progress belong to the executor."""
        if self._task is not None:
            await _cancel_tasks({self._task})

    async def _loop(self) -> None:
        running: set[asyncio.Task[None]] = set()
        try:
            with self._changed:
                while not self._is_stopping and (running or not self._is_exhausted):
                    with self._claims.use():
                        claims = await self._try_claim(self._count_room(len(running)))
                        self._taken += len(claims or ())
                        running |= {self._start(claim, RecoveryReport()) for claim in claims or ()}
                        await self._claims.announce(() if self._is_exhausted else tuple(self._agents))
                    if not claims or self._count_room(len(running)) <= 0:
                        await self._changed.wait()
                    running = {task for task in running if not task.done()}
            if running:
                await asyncio.wait(running)
        except StoreClosed:
            return
        finally:
            await _cancel_tasks(running)

    async def recover(self) -> RecoveryReport:
        """Execute every run that is interrupted now, to its end. Runs within their backoff are skipped.

        If this is cancelled, the runs in progress continue.

        Raises:
            StoreError: the store fails while no run is in progress.
        """
        report = RecoveryReport()
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                with self._claims.use():
                    claims = await self._try_claim(self._concurrency - len(running), raise_error=not running)
                    running |= {self._start(claim, report) for claim in claims or ()}
                if not running:
                    return report
                timeout = POLL_INTERVAL.total_seconds() if claims is None else None
                _, running = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel_tasks(running)

    async def _try_claim(self, room: int, *, raise_error: bool = False) -> Sequence[Claim] | None:
        """Claim up to `room` due runs. Returns `None` if the store does not answer."""
        if room <= 0 or self._executor.draining:
            return []
        claiming = self._store.claim_next(self.worker_id, agents=list(self._agents), limit=room)
        try:
            return await self._claims.claim(claiming, self._claims.restore_all)
        except StoreError as exc:
            if raise_error or isinstance(exc, StoreClosed):
                raise
            log.warning("could not claim runs, will retry: %s", exc)
            return None

    # -- one run ------------------------------------------------------------------------------------------------

    def _start(self, claim: Claim, report: RecoveryReport) -> "asyncio.Task[None]":
        """Load and execute a claimed run in a task that only this worker cancels."""
        use = self._claims.use()
        task = run_in_background(self._process(claim, use, report))
        task.add_done_callback(partial(self._on_processed, claim, use))
        return task

    def _on_processed(self, claim: Claim, use: ClaimUse, task: "asyncio.Task[None]") -> None:
        if not use.has_ended:  # cancelled before the executor had the run
            self._claims.start(self._claims.restore(claim))
            use.end()
        self._changed.wake()

    async def _process(self, claim: Claim, use: ClaimUse, report: RecoveryReport) -> None:
        """Load and execute a claimed run, and report its outcome."""
        try:
            resumption = await self._load_claimed(claim)
            use.end()  # the executor has the run now: nothing is awaited before that
            status, reason = await self._execute(self._agents[resumption.info.agent_name], resumption)
        except _NotExecuted as exc:
            use.end()
            status, reason = exc.status, exc.reason
        report.statuses[claim.run_id] = status
        if status is not RecoveryStatus.COMPLETED:
            report.reasons[claim.run_id] = reason

    async def _load_claimed(self, claim: Claim) -> Resumption:
        """Load a claimed run.

        Raises:
            _NotExecuted: it cannot be executed here. Its claim was released.
        """
        try:
            resumption = await self._prepare(claim)
        except (RunDamaged, RecordDecodeError) as exc:
            raise await self._park_damaged(claim, str(exc)) from exc
        except RunLost as exc:
            raise _NotExecuted(RecoveryStatus.INTERRUPTED, str(exc)) from exc
        except CheckpointError as exc:  # a newer version, or a store that does not answer: the run itself is fine
            await self._claims.release_claim(
                claim, restore_previous(claim, reason=str(exc), delay=MissingDefinition.retry_after)
            )
            log.warning("run %s cannot be resumed now: %s", claim.run_id, exc)
            raise _NotExecuted(RecoveryStatus.INTERRUPTED, str(exc)) from exc
        except Exception as exc:  # an adapter's codec may raise anything; the other runs continue
            log.error("run %s cannot be read", claim.run_id, exc_info=exc)
            raise await self._park_damaged(claim, f"{type(exc).__name__}: {exc}") from exc
        if resumption is None:
            raise _NotExecuted(RecoveryStatus.PARKED, "poison")
        if self._executor.draining:
            await self._claims.restore(claim)
            raise _NotExecuted(RecoveryStatus.INTERRUPTED, "this process is shutting down")
        return resumption

    async def _park_damaged(self, claim: Claim, reason: str) -> "_NotExecuted":
        release = Release(status=RunStatus.PARKED, reason=f"damaged: {reason}")
        try:
            if (await get_record(self._store, claim.run_id)).cancel_requested:
                await cancel_children(self._claims, claim.run_id)
                release = make_cancelled_release(f"cancelled; {reason}", self._claims.settings.retention)
        except RunDamaged:  # it is not known whether its cancel was requested
            release = Release(status=RunStatus.PARKED, despite_cancel=True, reason=release.reason)
        await self._claims.release_claim(claim, release)
        log_parked(claim.run_id, "", 0, f"damaged: {reason}")
        return _NotExecuted(RecoveryStatus.DAMAGED, reason)

    async def _execute(self, agent: AgentSource, resumption: Resumption) -> tuple[RecoveryStatus, str]:
        """Execute a resumed run to its end, and record its outcome."""
        try:
            await self._executor.resume(agent, resumption)
            return RecoveryStatus.COMPLETED, ""
        except RunParked as exc:
            return RecoveryStatus.PARKED, str(exc)
        except RunWaiting as exc:
            return RecoveryStatus.WAITING, str(exc)
        except (RunInterrupted, RunLost) as exc:
            return RecoveryStatus.INTERRUPTED, str(exc)
        except RunFailed as exc:
            return RecoveryStatus.FAILED, exc.error
        except Exception as exc:  # of a turn: it is finished, and the other runs continue
            return RecoveryStatus.FAILED, format_error(exc)

    async def resume(
        self,
        record: RunRecord,
        statuses: Collection[RunStatus],
        *,
        manual: bool = False,
        on_cancel: OnCancel = "detach",
    ) -> Result:
        """Claim one run and execute it to its end.

        Args:
            record: the record of the run, as last read.
            manual: a person asks for it: ignore an earlier outcome, a pending cancel request and the strike limit.

        Raises:
            CheckpointError: it cannot be claimed or loaded. It is unchanged, except that a pending cancel is recorded.
            LimitReached: a concurrency limit of the run is reached.
        """
        agent = find_agent(self._agents, record.agent_name)
        with self._claims.use():
            resumption = await self._claim_and_load(record, statuses, manual=manual)
        if resumption is None:
            return await wait_for_result(self._store, self._services.changes, self._agents, record.run_id)
        return await self._executor.resume(agent, resumption, on_cancel=on_cancel)

    async def _claim_and_load(
        self, record: RunRecord, statuses: Collection[RunStatus], *, manual: bool
    ) -> Resumption | None:
        """Claim and load one run; `None` if it has exceeded the strike limit and was parked."""
        cancelled: Release | None = None

        async def put_back(claim: Claim) -> None:
            await self._claims.release_claim(claim, cancelled or restore_previous(claim, record, now=self._clock.now()))

        claiming = self._store.claim(record.run_id, self.worker_id, statuses=statuses, within_limits=True)
        claim = await self._claims.claim(claiming, put_back)
        try:
            if manual and record.cancel_requested:
                claim, cancelled = await reclaim_after_cancel(self._claims, claim)
            return await self._prepare(claim, manual=manual)
        except RunLost:
            raise
        except asyncio.CancelledError:
            self._claims.start(put_back(claim))
            raise
        except Exception:
            await put_back(claim)
            raise

    async def _prepare(self, claim: Claim, *, manual: bool = False) -> Resumption | None:
        """Load a claimed run; `None` if it has exceeded the strike limit and was parked.

        A run that a person resumes by hand is neither parked for its strikes nor ended for an earlier cancel.

        Raises:
            CheckpointError: it cannot be loaded. Nothing was changed.
        """
        stored = await self._checkpoints.load(claim.run_id)
        agent = self._agents[stored.record.agent_name]
        resumption = self._checkpoints.resume(claim, stored, get_loop(agent).codec)
        if claim.strikes > 1:
            self._executor.metrics.get(agent.name).strikes += 1
        is_outlived = not manual and await has_outlived_parent(self._store, stored.record)
        is_cancelled = is_outlived or (stored.record.cancel_requested and not manual)
        if is_cancelled and not resumption.state.undo_on_cancel:
            await resumption.checkpointer.fail(RunCancelled(f"run {claim.run_id} was cancelled before it was resumed"))
            raise RunLost(f"run {claim.run_id} was cancelled before it was resumed")
        if claim.strikes > MAX_STRIKES and not manual and not await self._children_made_progress(claim.run_id):
            reason = _format_poison_reason(claim, stored, agent, resumption)
            await resumption.checkpointer.leave(Leave(AttemptEnd.PARKED, despite_cancel=is_cancelled, reason=reason))
            log_parked(claim.run_id, agent.name, resumption.state.steps, reason)
            return None
        return replace(resumption, is_cancelled=is_cancelled)

    async def _children_made_progress(self, run_id: str) -> bool:
        """Whether a child has finished a step during the attempts that this run spent in one step."""
        children = [child async for child in iter_runs(self._store, RunFilter(parent_run_id=run_id, interrupted=True))]
        for child in children:
            if child.strikes < MAX_STRIKES or await self._children_made_progress(child.run_id):
                return True
        return False


def _format_poison_reason(claim: Claim, stored: StoredRun, agent: AgentSource, resumption: Resumption) -> str:
    """Return why the run is parked: the step and the tool calls in which its owners died."""
    progress = decode(stored.record.progress, Progress)
    state = resumption.state
    pending = [call for call in get_loop(agent).pending_calls(state.history) if call.call_id not in state.results]
    where = f" while calling {', '.join(call.tool for call in pending)}" if pending else ""
    last = f"; {state.faults.exit_error}" if state.faults.exit_step == progress.steps + 1 else ""
    return (
        f"poison: {claim.strikes - 1} owners in a row died or gave up in step {progress.steps + 1}{where} "
        f"without finishing it{last}"
    )


def _is_cancelled() -> bool:
    """Whether the current task was cancelled, not one that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _cancel_tasks(tasks: "set[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
