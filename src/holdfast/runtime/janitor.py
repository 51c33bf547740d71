"""What a process looks after in its store beside its runs, at a cost that does not grow with their number."""

import logging
from datetime import timedelta

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import RunCancelled
from holdfast.core.execution.executor import Executor

log = logging.getLogger("holdfast.janitor")

#: How long a cancel that another process asked for may go unnoticed where the store gives no sign.
POLL_INTERVAL = timedelta(seconds=1)
#: However many signs the store gives, it is not asked more often than this.
MIN_POLL_INTERVAL = timedelta(milliseconds=50)
#: How often expired results are purged, and ends that the store refused are offered again.
PURGE_INTERVAL = timedelta(seconds=30)


class Janitor:
    """One small look at the store for all runs of a process."""

    def __init__(self, checkpoints: StoreCheckpoints, executor: Executor, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._checkpoints, self._executor, self._clock = checkpoints, executor, clock
        self._purged_at = clock.monotonic() - PURGE_INTERVAL.total_seconds()

    async def run(self) -> None:
        """Look after the store until cancelled. Trouble with the store is logged; the next look tries again."""
        assert self._checkpoints.store is not None, "there is nothing to look after without a store"
        while True:
            try:
                await self._checkpoints.store.wait_for_change(POLL_INTERVAL)
                await self.tick()
            except CheckpointError as exc:
                log.warning("housekeeping failed, will try again: %s", exc)
                await self._clock.sleep(POLL_INTERVAL)
            await self._clock.sleep(MIN_POLL_INTERVAL)

    async def tick(self) -> None:
        """End the runs that another process asked to cancel; now and then, sweep."""
        store = self._checkpoints.store
        assert store is not None
        for run_id in await store.pending_cancellations(self._checkpoints.worker_id):
            live = self._executor.get_run(run_id)
            if live is not None:
                live.stop(RunCancelled(f"run {run_id} was cancelled"))
        if self._clock.monotonic() - self._purged_at >= PURGE_INTERVAL.total_seconds():
            self._purged_at = self._clock.monotonic()
            await self._checkpoints.retry_pending_releases()
            while await store.purge():
                pass
