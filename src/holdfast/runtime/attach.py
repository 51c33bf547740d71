"""Run or attach: a caller who asks for a known run id gets that run, never a second one."""

from collections.abc import Awaitable
from datetime import timedelta

from holdfast.checkpoint.errors import CheckpointError, RunBusy, RunConflict, RunExists, RunNotClaimable, RunNotFound
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, RunRecord, RunStatus, StoredRun
from holdfast.clock import Clock
from holdfast.core.agent import AgentSource
from holdfast.core.errors import RunAlreadyRunning, RunInterrupted, RunLost, RunParked
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.run import OnCancel
from holdfast.core.info import RunInfo
from holdfast.core.result import Result
from holdfast.runtime.client import RunClient
from holdfast.runtime.outcomes import RecentOutcomes
from holdfast.runtime.worker import Worker

#: The first pause before a run is looked up again that this process has claimed but not started. The pauses double.
_POLL_INTERVAL = timedelta(milliseconds=1)
#: The upper bound of the pauses: a claim whose release fails is held until a retry succeeds.
_MAX_POLL_INTERVAL = timedelta(seconds=1)


class RunAttacher:
    """Starts a run, or attaches its caller to the run that has the same id."""

    def __init__(
        self, client: RunClient, worker: Worker, executor: Executor, outcomes: RecentOutcomes, *, clock: Clock
    ) -> None:
        self._client, self._worker, self._executor = client, worker, executor
        self._outcomes, self._clock = outcomes, clock

    async def run_or_attach(self, agent: AgentSource, info: RunInfo, on_cancel: OnCancel) -> Result:
        """Return the result of the run with this id, which is started if there is none.

        Raises:
            RunConflict: it has another agent, prompt or inputs. RunBusy: a live worker elsewhere owns it. RunParked: it
                waits for a person. Any other error: the run's own.
        """
        with self._outcomes.watching(info.run_id):
            while True:
                if self._executor.get_run(info.run_id) is not None:
                    return await self._attach_local(info)
                if (earlier := await self._find_existing(info, on_cancel)) is not None:
                    return earlier
                try:
                    return await self._execute(info, self._executor.start(agent, info, on_cancel=on_cancel))
                except RunAlreadyRunning:
                    # Another caller of this process was first. Nothing was awaited since, so its run is still there.
                    return await self._attach_local(info)
                except RunExists as exc:
                    if exc.run_id != info.run_id:
                        raise
                    # Another process was first: attach to its run.

    async def _execute(self, info: RunInfo, run: Awaitable[Result]) -> Result:
        """Execute the run here, and keep its outcome for other callers who wait for it."""
        try:
            result = await run
        except (RunParked, RunInterrupted, RunLost, RunAlreadyRunning, CheckpointError):
            raise  # the run is not finished, or it was not this one that ended
        except Exception as exc:
            self._outcomes.record_transient(info, exc)
            raise
        self._outcomes.record_transient(info, result)
        return result

    async def _attach_local(self, info: RunInfo) -> Result:
        run = self._executor.get_run(info.run_id)
        if run is None:
            raise RunAlreadyRunning(info.run_id)
        if run.info.agent_name != info.agent_name or run.info.request_key not in self._client.equivalent_requests(info):
            raise RunConflict(info.run_id, run.info.agent_name)
        result = await self._executor.wait(info.run_id)
        if result is None:
            raise RunAlreadyRunning(info.run_id)
        return result

    async def _find_existing(self, info: RunInfo, on_cancel: OnCancel) -> Result | None:
        """Return the result of the run that has this id already; `None` if there is none."""
        try:
            stored = await self._client.load_same_request(info)
        except RunNotFound:
            return self._lookup_outcome(info)
        try:
            return await self._resume_existing(info, stored, on_cancel)
        except RunNotFound:
            # It ended and was removed meanwhile. To start it again would repeat its effects.
            if (result := self._lookup_outcome(info)) is not None:
                return result
            raise

    def _lookup_outcome(self, info: RunInfo) -> Result | None:
        return self._outcomes.lookup(info, self._client.equivalent_requests(info))

    async def _resume_existing(self, info: RunInfo, stored: StoredRun, on_cancel: OnCancel) -> Result:
        pause = _POLL_INTERVAL
        known: StoredRun | RunRecord = stored
        while True:
            if (result := await self._executor.wait(info.run_id)) is not None:
                return result
            record = known.record if isinstance(known, StoredRun) else known
            if record.is_terminal or record.status is RunStatus.PARKED:
                if isinstance(known, StoredRun):
                    return self._client.read_result(known)
                return await self._client.result(info.run_id)
            try:
                return await self._execute(info, self._worker.resume(known, CLAIMABLE_STATUSES, on_cancel=on_cancel))
            except RunBusy as busy:
                if busy.owner != self._worker.worker_id:
                    raise
            except (RunAlreadyRunning, RunNotClaimable):
                pass
            # The worker of this process has claimed the run and is about to execute it, or has just ended it.
            await self._clock.sleep(pause)
            pause = min(pause * 2, _MAX_POLL_INTERVAL)
            known = await self._client.get_record(info.run_id)
