"""What a process looks after in its store beside its runs, at a cost that does not grow with their number."""

import logging
from datetime import timedelta

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.factory import Checkpoints
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.run.errors import RunCancelled
from holdfast.run.executor import Executor

log = logging.getLogger("holdfast.housekeeping")

#: How long a cancel that another process asked for may go unnoticed where the store gives no sign.
LOOK = timedelta(seconds=1)
#: However many signs the store gives, it is not asked more often than this.
PAUSE = timedelta(milliseconds=50)
#: How often expired results are purged, and ends that the store refused are offered again.
SWEEP = timedelta(seconds=30)


class Housekeeping:
    """One small look at the store for all runs of a process."""

    def __init__(self, checkpoints: Checkpoints, executor: Executor, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._checkpoints, self._executor, self._clock = checkpoints, executor, clock
        self._swept = clock.monotonic() - SWEEP.total_seconds()

    async def keep(self) -> None:
        """Look after the store until cancelled. Trouble with the store is logged; the next look tries again."""
        assert self._checkpoints.store is not None, "there is nothing to look after without a store"
        while True:
            try:
                await self._checkpoints.store.changed(LOOK)
                await self.look()
            except CheckpointError as exc:
                log.warning("housekeeping failed, will try again: %s", exc)
                await self._clock.sleep(LOOK)
            await self._clock.sleep(PAUSE)

    async def look(self) -> None:
        """End the runs that another process asked to cancel; now and then, sweep."""
        store = self._checkpoints.store
        assert store is not None
        for run_id in await store.cancels(self._checkpoints.worker_id):
            live = self._executor.live(run_id)
            if live is not None:
                live.stop(RunCancelled(f"run {run_id} was cancelled"))
        if self._clock.monotonic() - self._swept >= SWEEP.total_seconds():
            self._swept = self._clock.monotonic()
            await self._checkpoints.settle_again()
            while await store.purge():
                pass
