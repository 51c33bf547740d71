"""Finds interrupted runs, claims them, and goes on with them: one pass, or a worker that never stops.

What an earlier process left behind goes on when the next one starts.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.claiming import restore_previous, run_in_background, shielded_with_undo
from holdfast.checkpoint.codec import Progress, decode
from holdfast.checkpoint.errors import CheckpointError, RecordDecodeError, RunDamaged, StoreClosed, StoreError
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import Release, RunFilter, RunRecord, RunStatus, StoredRun
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.agent import AgentSource
from holdfast.core.errors import MissingDefinition, RunCancelled, RunInterrupted, RunLost, RunParked
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.native import get_loop
from holdfast.core.info import RunInfo
from holdfast.core.ports import Resumption
from holdfast.core.result import Result
from holdfast.runtime.client import DEFAULT_RETENTION, RunClient

log = logging.getLogger("holdfast.worker")

#: Claims in a row that may end without a finished step before a run is parked.
MAX_STRIKES = 3

#: How long a worker waits for a sign from the store before it looks by itself: a death gives no sign.
POLL_INTERVAL = timedelta(seconds=2)


class RecoveryStatus(StrEnum):
    """What became of a run that recovery took."""

    COMPLETED = "completed"
    FAILED = "failed"
    PARKED = "parked"
    #: Stopped before its end, and left in the store for the next recovery.
    INTERRUPTED = "interrupted"
    #: What is stored could not be read. It was set aside as it is.
    DAMAGED = "damaged"


@dataclass(slots=True)
class RecoveryReport:
    """What one pass did: the runs it took, by what became of them."""

    statuses: dict[str, RecoveryStatus] = field(default_factory=dict)
    #: Why, for every run that did not complete.
    reasons: dict[str, str] = field(default_factory=dict)

    def runs_with(self, status: RecoveryStatus) -> list[str]:
        return [run_id for run_id, its in self.statuses.items() if its is status]

    def __str__(self) -> str:
        counts = {fate.value: len(self.runs_with(fate)) for fate in RecoveryStatus}
        told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        return f"recovered {len(self.statuses)} runs: {told}" if told else "nothing to recover"


class Worker:
    """Takes interrupted runs of known agents from a store and drives them with an executor."""

    def __init__(
        self,
        checkpoints: StoreCheckpoints,
        executor: Executor,
        agents: Mapping[str, AgentSource],
        *,
        concurrency: int = 16,
        retention: timedelta | None = None,
        on_end: Callable[[RunInfo, Result | Exception], None] = lambda info, end: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a recovery.

        Args:
            agents: by name. A run of an agent that is not among them is left for a process that knows it.
            concurrency: how many runs are loaded and driven at once.
            retention: how long the end of a submitted run is kept.
            on_end: told how each run ended that this drove to its end.
        """
        self._on_end, self._clock = on_end, clock
        self._checkpoints, self._executor, self._agents = checkpoints, executor, agents
        self._concurrency, self._retention = concurrency, retention

    @property
    def _store(self) -> CheckpointStore:
        assert self._checkpoints.store is not None, "an App without a store makes no Recovery"
        return self._checkpoints.store

    @property
    def _client(self) -> RunClient:
        retention = DEFAULT_RETENTION if self._retention is None else self._retention
        return RunClient(self._checkpoints, self._agents, retention=retention)

    async def recover(self) -> RecoveryReport:
        """Go on with every run that is interrupted now, to its end. Runs within their backoff are not.

        If this is cancelled, the runs under way are left for the next recovery.

        Raises:
            StoreError: the store cannot be asked for more of them, and none is under way any more.
        """
        report = RecoveryReport()
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                claims = await self._claim_while_running(running)
                running |= {asyncio.create_task(self._process(claim, report)) for claim in claims or ()}
                if not running:
                    return report
                timeout = POLL_INTERVAL.total_seconds() if claims is None else None
                _, running = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel_tasks(running)

    async def serve(self, stopping: asyncio.Event) -> None:
        """Take queued and interrupted runs until `stopping` is set, then wait for those under way.

        If this is cancelled, they are left for whoever recovers next.
        """
        running: set[asyncio.Task[None]] = set()
        stop = asyncio.create_task(stopping.wait())
        try:
            while not stopping.is_set():
                claims = await self._claim_or_wait(self._concurrency - len(running))
                running |= {asyncio.create_task(self._process(claim, RecoveryReport())) for claim in claims}
                full = len(running) >= self._concurrency
                running = await self._wait_for_work(running, stop, poll=not claims and not full, full=full)
            if running:
                await asyncio.wait(running)
        finally:
            stop.cancel()
            await _cancel_tasks(running)

    async def _wait_for_work(
        self, running: "set[asyncio.Task[None]]", stop: "asyncio.Task[bool]", *, poll: bool, full: bool
    ) -> "set[asyncio.Task[None]]":
        """Wait until there may be something to take and room to take it. Returns what still runs."""
        if not poll and not full:
            return {task for task in running if not task.done()}
        sign = asyncio.create_task(self._store.wait_for_change(POLL_INTERVAL)) if poll else None
        waited: set[asyncio.Task[None] | asyncio.Task[bool]] = {stop, *running}
        try:
            await asyncio.wait({*waited, *([sign] if sign else [])}, return_when=asyncio.FIRST_COMPLETED)
            if sign is not None and sign.done() and not sign.cancelled() and (trouble := sign.exception()) is not None:
                log.warning("could not wait for a sign of the store, will look by itself: %s", trouble)
                await asyncio.wait(waited, timeout=POLL_INTERVAL.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if sign is not None:
                sign.cancel()
                await asyncio.gather(sign, return_exceptions=True)
        return {task for task in running if not task.done()}

    async def _claim_next(self, room: int) -> list[Claim]:
        if room <= 0 or self._executor.draining:
            return []
        worker_id = self._checkpoints.worker_id
        taking = self._store.claim_next(worker_id, agents=list(self._agents), limit=room)
        claims: Sequence[Claim] = await shielded_with_undo(taking, self._release_claims)
        return list(claims)

    async def _release_claims(self, claims: Sequence[Claim]) -> None:
        """Nobody drives what was claimed: whoever asked for it was cancelled."""
        for claim in claims:
            await self._checkpoints.release_claim(claim, _restore_unclaimed(claim))

    async def _claim_while_running(self, running: "set[asyncio.Task[None]]") -> list[Claim] | None:
        """Claim more. `None`: the store does not answer, which is no reason to give up what is under way."""
        try:
            return await self._claim_next(self._concurrency - len(running))
        except StoreError as exc:
            if not running:
                raise
            log.warning("could not look for more runs to recover, will try again: %s", exc)
            return None

    async def _claim_or_wait(self, room: int) -> list[Claim]:
        try:
            return await self._claim_next(room)
        except StoreError as exc:
            log.warning("could not look for runs to take, will try again: %s", exc)
            await asyncio.sleep(POLL_INTERVAL.total_seconds())
            return []

    # -- one run ------------------------------------------------------------------------------------------------

    async def _process(self, claim: Claim, report: RecoveryReport) -> None:
        """Go on with a claimed run, to whatever end."""
        fate, reason = await self._resume(claim)
        report.statuses[claim.run_id] = fate
        if fate is not RecoveryStatus.COMPLETED:
            report.reasons[claim.run_id] = reason
            log.info("run %s: %s, %s", claim.run_id, fate, reason)

    async def _resume(self, claim: Claim) -> tuple[RecoveryStatus, str]:
        try:
            resumption = await self.prepare(claim)
            if resumption is None:
                return RecoveryStatus.PARKED, "poison"
        except (RunDamaged, RecordDecodeError) as exc:
            return await self._park_damaged(claim, str(exc))
        except RunLost as exc:
            return RecoveryStatus.INTERRUPTED, str(exc)
        except CheckpointError as exc:
            # A newer version, or a store that does not answer: nothing is wrong with the run.
            await self._checkpoints.release_claim(
                claim, _restore_unclaimed(claim, reason=str(exc), delay=MissingDefinition.retry_after)
            )
            return RecoveryStatus.INTERRUPTED, str(exc)
        except asyncio.CancelledError:
            run_in_background(self._checkpoints.release_claim(claim, _restore_unclaimed(claim)))
            raise
        except Exception as exc:  # of whatever codec: it cannot be read, and the others go on
            log.error("run %s cannot be read", claim.run_id, exc_info=exc)
            return await self._park_damaged(claim, f"{type(exc).__name__}: {exc}")
        return await self.execute(self._agents[resumption.info.agent_name], resumption)

    async def _park_damaged(self, claim: Claim, reason: str) -> tuple[RecoveryStatus, str]:
        await self._checkpoints.release_claim(claim, Release(status=RunStatus.PARKED, reason=f"damaged: {reason}"))
        return RecoveryStatus.DAMAGED, reason

    async def execute(self, agent: AgentSource, resumption: Resumption) -> tuple[RecoveryStatus, str]:
        """Drive a resumed run to its end and say what became of it."""
        try:
            self._on_end(resumption.info, await self._executor.resume(agent, resumption, on_cancel="interrupt"))
            return RecoveryStatus.COMPLETED, ""
        except RunParked as exc:
            return RecoveryStatus.PARKED, str(exc)
        except (RunInterrupted, RunLost) as exc:
            return RecoveryStatus.INTERRUPTED, str(exc)
        except Exception as exc:  # the run's own error: it is settled, and the others go on
            self._on_end(resumption.info, exc)
            return RecoveryStatus.FAILED, f"{type(exc).__name__}: {exc}"

    async def claim_and_load(
        self, record: RunRecord, statuses: Collection[RunStatus], *, manual: bool
    ) -> Resumption | None:
        """Claim one run and make it ready to go on; `None` if it has struck out and was parked.

        Raises:
            CheckpointError: it cannot be claimed, or not be loaded. Nothing was changed, but that a cancel which it was
                asked for has come into force.
        """
        cancelled: Release | None = None

        async def put_back(claim: Claim) -> None:
            await self._checkpoints.release_claim(
                claim, cancelled or restore_previous(record, claim, self._clock.now())
            )

        taking = self._store.claim(record.run_id, self._checkpoints.worker_id, statuses=statuses)
        claim = await shielded_with_undo(taking, put_back)
        try:
            if manual and record.cancel_requested:
                claim, cancelled = await self._client.reclaim_after_cancel(claim)
            return await self.prepare(claim, manual=manual)
        except RunLost:
            raise
        except asyncio.CancelledError:
            run_in_background(put_back(claim))
            raise
        except Exception:
            await put_back(claim)
            raise

    async def prepare(self, claim: Claim, *, manual: bool = False) -> Resumption | None:
        """What it takes to go on with a claimed run; `None` if it has struck out and was parked.

        A run that a person resumes by hand is neither parked for its strikes nor ended for an earlier cancel.

        Raises:
            CheckpointError: it cannot be loaded. Nothing was changed.
        """
        stored = await self._store.load(claim.run_id)
        agent = self._agents[stored.record.agent_name]
        resumption = self._checkpoints.resume(claim, stored, get_loop(agent).codec, retention=self._retention)
        if stored.record.cancel_requested and not manual:
            await self._client.cancel_children(claim.run_id)
            await resumption.checkpointer.fail(RunCancelled(f"run {claim.run_id} was cancelled before it was resumed"))
            raise RunLost(f"run {claim.run_id} was cancelled before it was resumed")
        if claim.strikes > MAX_STRIKES and not manual and not await self._children_made_progress(claim.run_id):
            await resumption.checkpointer.park(_format_poison_reason(claim, stored, agent, resumption))
            return None
        return resumption

    async def _children_made_progress(self, run_id: str) -> bool:
        """Whether a run below this one has finished a step in the lives that this one spent in a single step."""
        children = [child async for child in self._store.list_runs(RunFilter(parent_run_id=run_id, interrupted=True))]
        for child in children:
            if child.strikes < MAX_STRIKES or await self._children_made_progress(child.run_id):
                return True
        return False


def _restore_unclaimed(claim: Claim, *, reason: str = "", delay: timedelta = timedelta(0)) -> Release:
    """What leaves a run as if it had not been claimed: that is no strike."""
    return Release(status=RunStatus.INTERRUPTED, reason=reason, strikes=claim.strikes - 1, delay=delay)


def _format_poison_reason(claim: Claim, stored: StoredRun, agent: AgentSource, resumption: Resumption) -> str:
    """Why the run is parked, with where it was when its owners died."""
    progress = decode(stored.record.progress, Progress)
    state = resumption.state
    pending = [call for call in get_loop(agent).pending_calls(state.history) if call.call_id not in state.results]
    where = f" while calling {', '.join(call.tool for call in pending)}" if pending else ""
    last = f"; last error: {stored.record.reason}" if stored.record.reason else ""
    return (
        f"poison: {claim.strikes - 1} owners in a row died or gave up in step {progress.steps + 1}{where} "
        f"without finishing it{last}"
    )


async def _cancel_tasks(tasks: "set[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


#: Looked for again after so long at the latest: a clock that was wrong may have said that there is time.
_MAX_POLL_INTERVAL = timedelta(seconds=30)
_MIN_POLL_INTERVAL = timedelta(milliseconds=100)


class StartupRecovery:
    """Looks until nothing is left of what was there at the start.

    That is what can be taken at once; what is within its backoff; and the runs of workers that seem alive. A process
    that was killed in another container just now does so until its heartbeat is old enough.
    """

    def __init__(
        self,
        worker: Worker,
        checkpoints: StoreCheckpoints,
        executor: Executor,
        agents: Collection[str],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._worker, self._checkpoints, self._executor = worker, checkpoints, executor
        self._agents, self._clock = agents, clock
        #: Runs that others have driven since before the first look; `None` before it.
        self._remote_runs: set[str] | None = None
        self._poll_interval = POLL_INTERVAL

    async def recover(self) -> None:
        """Return when nothing is left to wait for, or the store is closed."""
        while not self._executor.draining:
            try:
                report = await self._worker.recover()
                if report.statuses or self._remote_runs is None:
                    log.info("%s", report)
                wait = await self._next_poll_delay()
            except StoreClosed:
                return
            except StoreError as exc:
                log.warning("could not look for runs to recover, will try again: %s", exc)
                wait = POLL_INTERVAL
            if wait is None:
                return
            await self._clock.sleep(min(wait, _MAX_POLL_INTERVAL))

    async def _next_poll_delay(self) -> timedelta | None:
        """How long until there may be something to take; `None` if nothing is left to wait for."""
        store = self._checkpoints.store
        assert store is not None, "an App without a store recovers nothing"
        now = self._clock.now()
        waits, elsewhere = list[timedelta](), set[str]()
        statuses = frozenset({RunStatus.QUEUED, RunStatus.INTERRUPTED, RunStatus.RUNNING})
        async for record in store.list_runs(RunFilter(statuses=statuses)):
            if record.agent_name not in self._agents:
                continue
            if record.is_interrupted:
                # What is due and was not taken is left to somebody else: a child to its parent.
                if record.not_before > now:
                    waits.append(max(record.not_before - now, _MIN_POLL_INTERVAL))
            elif record.owner != self._checkpoints.worker_id:
                elsewhere.add(record.run_id)
        self._remote_runs = elsewhere if self._remote_runs is None else self._remote_runs & elsewhere
        if self._remote_runs:
            waits.append(self._poll_interval)
            self._poll_interval = min(self._poll_interval * 2, _MAX_POLL_INTERVAL)
        return min(waits, default=None)
