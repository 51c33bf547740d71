"""Run or attach: a caller who asks for a known run id gets that run, never a second one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta

from holdfast.checkpoint.errors import (
    LimitReached,
    RunBusy,
    RunConflict,
    RunExists,
    RunNotClaimable,
    RunNotFound,
    StoreClosed,
    StoreError,
)
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, RunRecord, RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.clock import Clock
from holdfast.core.agents.agent import AgentSource
from holdfast.core.errors import ModelUnavailable, RunAlreadyRunning, RunLost, Shutdown
from holdfast.core.execution.attempt import OnCancel
from holdfast.core.execution.executor import Executor
from holdfast.core.run.info import RunInfo
from holdfast.core.run.mail import MailArrived
from holdfast.core.run.result import Result
from holdfast.core.run.waiting import RunWaiting
from holdfast.runtime.changes import POLL_INTERVAL, ChangeListener
from holdfast.runtime.janitor import Janitor
from holdfast.runtime.operations.outcomes import is_settled, raise_if_waiting, read_result
from holdfast.runtime.operations.store_services import RunHost, StoreServices
from holdfast.runtime.worker import Worker

#: The statuses from which a person may resume a run.
_MANUAL_STATUSES = frozenset(
    {*CLAIMABLE_STATUSES, RunStatus.WAITING, RunStatus.PARKED, RunStatus.FAILED, RunStatus.CANCELLED}
)

#: Errors of an execution after which its run is followed: it continues later, or elsewhere.
_CONTINUING = (RunLost, ModelUnavailable, MailArrived, RunWaiting)

#: The pause before looking up a run that this process has claimed but not started.
_CLAIMED_PAUSE = timedelta(milliseconds=5)
#: How long a caller waits if its clock is ahead of the store's: by its own clock the run is due.
_NOT_DUE_PAUSE = timedelta(milliseconds=200)


class RunAttacher(RunHost):
    """Starts a run, or attaches its caller to the run that has the same id."""

    def __init__(
        self,
        services: StoreServices,
        agents: Mapping[str, AgentSource],
        worker: Worker,
        janitor: Janitor,
        executor: Executor,
        *,
        clock: Clock,
    ) -> None:
        self._services, self._store, self._agents = services, services.store, agents
        self._worker, self._janitor, self._executor, self._clock = worker, janitor, executor, clock

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
        with _report_shutdown(info.run_id):
            record, is_due = None if is_new else await self._find(info), True
            if record is None:
                try:
                    return await self._start(agent, info, on_cancel)
                except RunExists as exc:
                    if exc.run_id != info.run_id:
                        raise  # a child
                except _CONTINUING:
                    record, is_due = await get_record(self._store, info.run_id), False
            if record is None:
                record = await self._services.submitter.get_same_request(info)
            return await self._follow(record, on_cancel, through_waits=through_waits, is_due=is_due)

    async def _find(self, info: RunInfo) -> RunRecord | None:
        """Return the record of the run with this id; `None` if there is none, or this process executes it."""
        if self._executor.get_attempt(info.run_id) is None:
            with suppress(RunNotFound):
                return await self._services.submitter.get_same_request(info)
        return None

    async def _start(self, agent: AgentSource, info: RunInfo, on_cancel: OnCancel) -> Result:
        """Start the run, or wait for the execution of this process.

        Raises:
            RunExists: it is in the store, and this process does not execute it.
        """
        if self._executor.get_attempt(info.run_id) is None:
            with suppress(RunAlreadyRunning):  # another caller has just started it
                return await self._executor.start(agent, info, on_cancel=on_cancel)
        return await self._join(info)

    async def _join(self, info: RunInfo) -> Result:
        """Wait for the execution of this process. The run may not be in the store yet.

        Raises:
            RunConflict: it has another agent, prompt or inputs. RunExists: it has just ended.
        """
        local = self._executor.get_attempt(info.run_id)
        if local is not None and not self._services.submitter.is_same_request(info, local.info):
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
        record = await get_record(self._store, run_id)
        if record.status is not RunStatus.DONE:
            try:
                return await self._worker.resume(record, _MANUAL_STATUSES, manual=True, on_cancel=on_cancel)
            except RunBusy as busy:
                if busy.owner != self._worker.worker_id:
                    raise
            except LimitReached:
                if record.status is not RunStatus.WAITING:
                    await self._services.requeuer.requeue(run_id)  # a worker takes it when a slot is free
            except (RunAlreadyRunning, RunNotClaimable, *_CONTINUING):
                pass
        with _report_shutdown(run_id):
            return await self._follow(await get_record(self._store, run_id), on_cancel)

    async def _follow(
        self, record: RunRecord, on_cancel: OnCancel, *, through_waits: bool = False, is_due: bool = False
    ) -> Result:
        """Wait while the run is executed, here or elsewhere, resume it when it is due, and return its result.

        Args:
            is_due: ignore the backoff of an interrupted run, once.
        """
        with self._services.changes.listen() as changed:
            while True:
                if not through_waits:
                    raise_if_waiting(record)
                result = await self._take_or_wait(record, on_cancel, changed, is_due=is_due)
                if result is not None:
                    return result
                record, is_due = await get_record(self._store, record.run_id), False

    async def on_posted(self, run_id: str) -> None:
        """Give the run its mail now, if this process executes it."""
        with suppress(StoreError):  # the mail is stored: the janitor delivers it
            await self._janitor.deliver_mail(run_id)

    async def advance(self, record: RunRecord, changed: ChangeListener) -> Exception | None:
        """Wait until the run may have changed. If it is due and has no owner, execute it here until it ends or waits.

        Returns the error of the execution, unless the run continues.
        """
        try:
            with _report_shutdown(record.run_id):
                await self._take_or_wait(record, "detach", changed)
        except Shutdown:
            raise
        except Exception as exc:  # of the run: its model or a tool may raise anything
            return exc
        return None

    async def _take_or_wait(
        self, record: RunRecord, on_cancel: OnCancel, changed: ChangeListener, *, is_due: bool = False
    ) -> Result | None:
        """Return the result of the run if it has ended, or ends here. Otherwise wait until it may have changed."""
        try:
            if (result := await self._take(record, on_cancel, changed, is_due=is_due)) is not None:
                return result
        except LimitReached:
            await changed.wait()
        except RunNotClaimable:
            await changed.wait(_NOT_DUE_PAUSE)  # another was faster, or by the store's clock it is not due
        except (RunAlreadyRunning, *_CONTINUING):
            pass  # it is executed elsewhere, or continues later
        except RunBusy as busy:
            await changed.wait(_CLAIMED_PAUSE if busy.owner == self._worker.worker_id else POLL_INTERVAL)
        if self._executor.draining:
            raise _make_shutdown_error(record.run_id)
        return None

    async def _take(
        self, record: RunRecord, on_cancel: OnCancel, changed: ChangeListener, *, is_due: bool
    ) -> Result | None:
        """Return the result of the run if it is executed here, has ended, or can be resumed now."""
        if (result := await self._executor.wait(record.run_id)) is not None:
            return result
        if is_settled(record):
            stored = await self._store.load(record.run_id)
            return read_result(stored, self._agents) if is_settled(stored.record) else None
        if record.status is RunStatus.WAITING and record.wake_at is None:  # only mail wakes it
            await changed.wait()
            return None
        delay = timedelta(0) if is_due else record.not_before - self._clock.now()
        if record.wake_at is not None:
            delay = record.wake_at - self._clock.now()
        if record.owner_alive or delay > timedelta(0):
            await changed.wait(POLL_INTERVAL if record.owner_alive else max(delay, _CLAIMED_PAUSE))
            return None
        return await self._worker.resume(record, CLAIMABLE_STATUSES, on_cancel=on_cancel)


@contextmanager
def _report_shutdown(run_id: str) -> Iterator[None]:
    """Raise `Shutdown` in place of the error that says that the App has closed the store."""
    try:
        yield
    except StoreClosed as exc:
        raise _make_shutdown_error(run_id) from exc


def _make_shutdown_error(run_id: str) -> Shutdown:
    return Shutdown(f"run {run_id} had not ended: this App is shutting down")
