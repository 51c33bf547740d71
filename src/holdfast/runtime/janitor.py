"""The janitor: applies cancel requests, delivers mail, retries failed releases, purges runs; once for all runs."""

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta

from holdfast.batteries.budget import Budget
from holdfast.checkpoint.errors import CheckpointError, RunNotFound, StoreClosed
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.store import END
from holdfast.checkpoint.workers import measure_queues
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import RunCancelled
from holdfast.core.execution.executor import Executor
from holdfast.db.tables import TablesError
from holdfast.runtime.changes import POLL_INTERVAL, ChangeSignal
from holdfast.runtime.operations.mailing import Mailer
from holdfast.runtime.operations.verdicts import purge_verdicts

log: logging.Logger = logging.getLogger("holdfast.janitor")

#: The shortest time between two polls of the store, however many notifications it sends.
MIN_POLL_INTERVAL = timedelta(milliseconds=50)
#: How often expired runs are purged, failed releases are retried and runs are counted.
PURGE_INTERVAL = timedelta(seconds=30)
#: How often missed parents are woken and verdicts purged. Rarely: it reads all interrupted runs.
WAKE_INTERVAL = timedelta(minutes=5)


class Janitor:
    """Polls the store once for all runs of a process."""

    def __init__(
        self,
        checkpoints: StoreCheckpoints,
        executor: Executor,
        changes: ChangeSignal,
        *,
        clock: Clock = SYSTEM_CLOCK,
        counts_runs: bool = False,
    ) -> None:
        """Make a janitor.

        Args:
            counts_runs: count the runs of the store for the metrics of the executor.
        """
        self._counts_runs, self._changes = counts_runs, changes
        self._checkpoints, self._executor, self._clock = checkpoints, executor, clock
        self._store = checkpoints.store
        self._mailer = Mailer(self._store, clock=clock)
        self._task: asyncio.Task[None] | None = None
        self._purged_at = clock.monotonic() - PURGE_INTERVAL.total_seconds()
        #: The run whose verdicts are looked at next.
        self._next_verdict = ""
        #: Runs that wait for it are resumed when a limit was raised.
        self._budget = executor.budget if isinstance(executor.budget, Budget) else None
        self._woken_at = clock.monotonic() - WAKE_INTERVAL.total_seconds()

    def start(self) -> None:
        """Start `run` in the background."""
        if self._budget is not None:
            self._budget.bind(self._mailer.wake_over_budget)
        self._task = asyncio.create_task(self.run())

    async def close(self) -> None:
        """End the background task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run(self) -> None:
        """Tick until the store is closed. Another store error is logged, and the next tick retries."""
        with self._changes.listen() as changed:
            while True:
                await changed.wait()
                try:
                    await self.tick()
                except StoreClosed:
                    return
                except (CheckpointError, TablesError) as exc:
                    log.warning("a poll of the store failed, will retry: %s", exc)
                    await self._clock.sleep(POLL_INTERVAL)
                await self._clock.sleep(MIN_POLL_INTERVAL)

    async def tick(self) -> None:
        """Stop the runs that another process asked to cancel, and deliver mail. Sometimes retry releases and purge."""
        pending = await self._store.pending(self._checkpoints.worker_id)
        for run_id in pending.cancels:
            run = self._executor.get_attempt(run_id)
            if run is not None:
                run.stop(RunCancelled(f"run {run_id} was cancelled"))
        for run_id in pending.mail:
            await self.deliver_mail(run_id)
        now = self._clock.monotonic()
        if now - self._purged_at >= PURGE_INTERVAL.total_seconds():
            self._purged_at = now
            await self._checkpoints.claims.retry_pending_releases()
            while await self._store.purge():
                pass
            if self._counts_runs:
                await self._count_runs()
            if self._budget is not None:
                await self._budget.wake_if_raised()
        if now - self._woken_at >= WAKE_INTERVAL.total_seconds():
            self._woken_at = now
            await self._mailer.wake_missed_parents()
            self._next_verdict = await purge_verdicts(self._store, self._next_verdict)

    async def _count_runs(self) -> None:
        metrics, counts = self._executor.metrics, (await self._store.read_fleet()).counts
        metrics.stored_runs = {(each.agent_name, each.status.value): each.count for each in counts}
        metrics.queues = measure_queues(counts, self._clock.now())

    async def deliver_mail(self, run_id: str) -> None:
        """Give the run its unread mail, if this process executes it."""
        run = self._executor.get_attempt(run_id)
        if run is not None:
            with suppress(RunNotFound):  # it has ended meanwhile
                run.mailbox.deliver((await self._store.load(run_id, after=END)).mail)
