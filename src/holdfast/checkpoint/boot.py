"""What an earlier process left behind goes on when the next one starts."""

import logging
from collections.abc import Collection
from datetime import timedelta

from holdfast.checkpoint.errors import StoreClosed, StoreError
from holdfast.checkpoint.factory import Checkpoints
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import RunFilter
from holdfast.checkpoint.recovery import POLL, Recovery
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.run.executor import Executor

log = logging.getLogger("holdfast.recovery")

#: Looked for again after so long at the latest: a clock that was wrong may have said that there is time.
_AT_LATEST = timedelta(seconds=30)
_AT_SOONEST = timedelta(milliseconds=100)


class BootRecovery:
    """Looks until nothing is left of what was there at the start.

    That is what can be taken at once; what is within its backoff; and the runs of workers that seem alive. A process
    that was killed in another container just now does so until its heartbeat is old enough.
    """

    def __init__(
        self,
        recovery: Recovery,
        checkpoints: Checkpoints,
        executor: Executor,
        agents: Collection[str],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._recovery, self._checkpoints, self._executor = recovery, checkpoints, executor
        self._agents, self._clock = agents, clock
        #: Runs that others have driven since before the first look; `None` before it.
        self._elsewhere: set[str] | None = None
        self._pause = POLL

    async def recover(self) -> None:
        """Return when nothing is left to wait for, or the store is closed."""
        while not self._executor.draining:
            try:
                report = await self._recovery.recover()
                if report.fates or self._elsewhere is None:
                    log.info("%s", report)
                wait = await self._next_look()
            except StoreClosed:
                return
            except StoreError as exc:
                log.warning("could not look for runs to recover, will try again: %s", exc)
                wait = POLL
            if wait is None:
                return
            await self._clock.sleep(min(wait, _AT_LATEST))

    async def _next_look(self) -> timedelta | None:
        """How long until there may be something to take; `None` if nothing is left to wait for."""
        store = self._checkpoints.store
        assert store is not None, "an App without a store recovers nothing"
        now = self._clock.now()
        waits, elsewhere = list[timedelta](), set[str]()
        statuses = frozenset({Status.QUEUED, Status.INTERRUPTED, Status.RUNNING})
        async for record in store.records(RunFilter(statuses=statuses)):
            if record.agent_name not in self._agents:
                continue
            if record.interrupted:
                # What is due and was not taken is left to somebody else: a child to its parent.
                if record.not_before > now:
                    waits.append(max(record.not_before - now, _AT_SOONEST))
            elif record.owner != self._checkpoints.worker_id:
                elsewhere.add(record.run_id)
        self._elsewhere = elsewhere if self._elsewhere is None else self._elsewhere & elsewhere
        if self._elsewhere:
            waits.append(self._pause)
            self._pause = min(self._pause * 2, _AT_LATEST)
        return min(waits, default=None)
