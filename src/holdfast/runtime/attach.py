"""Run or attach: a caller who asks for a known run id gets that run, never a second one."""

from contextlib import suppress
from datetime import timedelta

from holdfast.checkpoint.errors import LimitReached, RunBusy, RunConflict, RunExists, RunNotClaimable, StoreClosed
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, RunRecord, RunStatus, StoredRun
from holdfast.clock import Clock
from holdfast.core.agents.agent import AgentSource
from holdfast.core.errors import MailArrived, ModelUnavailable, RunAlreadyRunning, RunLost, Shutdown
from holdfast.core.execution.attempt import OnCancel
from holdfast.core.execution.executor import Executor
from holdfast.core.run.info import RunInfo
from holdfast.core.run.result import Result
from holdfast.core.run.waiting import RunWaiting
from holdfast.runtime.operations.run_client import RunClient, is_settled
from holdfast.runtime.worker import Worker

#: The statuses from which a person may resume a run.
_MANUAL_STATUSES = frozenset(
    {*CLAIMABLE_STATUSES, RunStatus.WAITING, RunStatus.PARKED, RunStatus.FAILED, RunStatus.CANCELLED}
)

#: Errors of an execution after which its run is followed: it continues later, or elsewhere.
_CONTINUING = (RunLost, ModelUnavailable, MailArrived, RunWaiting)

#: The pause before a run is looked up that this process has claimed but not started.
_CLAIMED_PAUSE = timedelta(milliseconds=5)


class RunAttacher:
    """Starts a run, or attaches its caller to the run that has the same id."""

    def __init__(self, client: RunClient, worker: Worker, executor: Executor, *, clock: Clock) -> None:
        self._client, self._worker, self._executor, self._clock = client, worker, executor, clock

    async def run(
        self, agent: AgentSource, info: RunInfo, on_cancel: OnCancel, *, is_new: bool, through_waits: bool = False
    ) -> Result:
        """Return the result of the run with this id, which is started if there is none.

        Args:
            is_new: the id was made for this run, so the store need not be asked for it.
            through_waits: keep waiting while the run waits for a person, a signal or a result from outside.

        Raises:
            RunConflict: it has another agent, prompt or inputs. RunParked: it waits for a person. RunNotFound: it was
                removed while the caller waited. Any other error: the run's own.
        """
        try:
            try:
                return await self._start(agent, info, on_cancel, is_new=is_new)
            except RunExists as exc:
                if exc.run_id != info.run_id:
                    raise  # a child
                known: RunRecord | StoredRun = await self._client.load_same_request(info)
            except _CONTINUING:
                known = await self._client.get_record(info.run_id)
        except StoreClosed as exc:
            raise _make_shutdown_error(info.run_id) from exc
        return await self._follow(known, on_cancel, through_waits=through_waits)

    async def _start(self, agent: AgentSource, info: RunInfo, on_cancel: OnCancel, *, is_new: bool) -> Result:
        """Start the run, or wait for the execution of this process.

        Raises:
            RunExists: it is in the store, and this process does not execute it.
        """
        if not is_new and self._executor.get_run(info.run_id) is None and await self._client.exists(info.run_id):
            raise RunExists(info.run_id)
        if self._executor.get_run(info.run_id) is None:
            with suppress(RunAlreadyRunning):  # another caller has just started it
                return await self._executor.start(agent, info, on_cancel=on_cancel)
        return await self._join(info)

    async def _join(self, info: RunInfo) -> Result:
        """Wait for the execution of this process. The run may not be in the store yet.

        Raises:
            RunConflict: it has another agent, prompt or inputs. RunExists: it has just ended.
        """
        local = self._executor.get_run(info.run_id)
        if local is not None and not self._client.is_same_request(info, local.info):
            raise RunConflict(info.run_id, local.info.agent_name)
        result = await self._executor.wait(info.run_id)
        if result is None:
            raise RunExists(info.run_id)
        return result

    async def resume(self, run_id: str, on_cancel: OnCancel) -> Result:
        """Resume a run by hand, also a parked, failed or cancelled one, and return its result.

        Raises:
            RunBusy: another process executes it. Any other error: as for `run`.
        """
        record = await self._client.get_record(run_id)
        if record.status is not RunStatus.DONE:
            try:
                return await self._worker.resume(record, _MANUAL_STATUSES, manual=True, on_cancel=on_cancel)
            except RunBusy as busy:
                if busy.owner != self._worker.worker_id:
                    raise
            except LimitReached:
                if record.status is not RunStatus.WAITING:
                    await self._client.requeue(run_id)  # a worker takes it when a slot is free
            except (RunAlreadyRunning, RunNotClaimable, *_CONTINUING):
                pass
        return await self._follow(await self._client.get_record(run_id), on_cancel)

    async def _follow(
        self, known: RunRecord | StoredRun, on_cancel: OnCancel, *, through_waits: bool = False
    ) -> Result:
        """Wait while the run is executed, here or elsewhere, resume it when it is due, and return its result."""
        run_id = (known.record if isinstance(known, StoredRun) else known).run_id
        try:
            while True:
                if not through_waits:
                    self._client.raise_if_waiting(known.record if isinstance(known, StoredRun) else known)
                try:
                    if (result := await self._take(known, on_cancel)) is not None:
                        return result
                except LimitReached:
                    await self._client.wait_for_change()
                except (RunAlreadyRunning, RunNotClaimable, *_CONTINUING):
                    pass  # it is executed elsewhere, or continues later
                except RunBusy as busy:
                    mine = busy.owner == self._worker.worker_id
                    await (self._clock.sleep(_CLAIMED_PAUSE) if mine else self._client.wait_for_change())
                if self._executor.draining:
                    raise _make_shutdown_error(run_id)
                known = await self._client.get_record(run_id)
        except StoreClosed as exc:
            raise _make_shutdown_error(run_id) from exc

    async def advance(self, record: RunRecord) -> Exception | None:
        """Wait until the run may have changed. If it is due and has no owner, execute it here until it ends or waits.

        Returns the error of the execution, unless the run continues.
        """
        try:
            await self._take(record, "detach")
        except RunBusy as busy:
            mine = busy.owner == self._worker.worker_id
            await (self._clock.sleep(_CLAIMED_PAUSE) if mine else self._client.wait_for_change())
        except LimitReached:
            await self._client.wait_for_change()
        except (RunAlreadyRunning, RunNotClaimable, *_CONTINUING):
            pass
        except StoreClosed as exc:
            raise _make_shutdown_error(record.run_id) from exc
        except Exception as exc:  # of the run: its model or a tool may raise anything
            return exc
        if self._executor.draining:
            raise _make_shutdown_error(record.run_id)
        return None

    async def _take(self, known: RunRecord | StoredRun, on_cancel: OnCancel) -> Result | None:
        """Return the result of the run if it is executed here, has ended, or can be resumed now."""
        record = known.record if isinstance(known, StoredRun) else known
        if (result := await self._executor.wait(record.run_id)) is not None:
            return result
        if is_settled(record):
            if isinstance(known, StoredRun):
                return self._client.read_result(known)
            return await self._client.result(record.run_id)
        # A caller that has the journal asks for the first time: it need not wait for the backoff.
        delay = timedelta(0) if isinstance(known, StoredRun) else record.not_before - self._clock.now()
        if record.wake_at is not None:
            delay = record.wake_at - self._clock.now()
        if record.status is RunStatus.WAITING and record.wake_at is None:  # only mail wakes it
            await self._client.wait_for_change()
            return None
        if record.owner_alive or delay > timedelta(0):
            await self._client.wait_for_change(max(delay, _CLAIMED_PAUSE) if not record.owner_alive else None)
            return None
        return await self._worker.resume(known, CLAIMABLE_STATUSES, on_cancel=on_cancel)


def _make_shutdown_error(run_id: str) -> Shutdown:
    return Shutdown(f"run {run_id} had not ended: this App is shutting down")
