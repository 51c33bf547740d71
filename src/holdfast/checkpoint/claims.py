"""Claims: this process as a worker of a store. It claims, releases and cancels runs, with retries."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast.checkpoint.codec import Outcome, decode, decode_begin, encode
from holdfast.checkpoint.errors import (
    ClaimLost,
    RecordDecodeError,
    RunBusy,
    RunDamaged,
    RunNotClaimable,
    RunNotFound,
    StoreClosed,
    StoreError,
    StoreUnavailable,
    UnknownVersion,
    UnreadMail,
)
from holdfast.checkpoint.finishing import make_notice, wake_parents
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import Release, RunFilter, RunStatus, StoredRun, restore_previous
from holdfast.checkpoint.store import RunStore, get_record, iter_runs
from holdfast.checkpoint.workers import Claim, WorkerIdentity, this_process
from holdfast.clock import Clock
from holdfast.concurrency import run_in_background
from holdfast.config import CheckpointSettings, Retention
from holdfast.core.errors import RunCancelled, RunLost, format_error
from holdfast.ids import make_id

T = TypeVar("T")

log: logging.Logger = logging.getLogger("holdfast.checkpoint")

#: The first pause before a write is retried. The pauses double.
_INITIAL_BACKOFF = timedelta(milliseconds=50)
_MAX_BACKOFF = timedelta(seconds=2)


class ClaimUse:
    """A period in which a worker stays registered. As a context manager it ends with the block."""

    def __init__(self, claims: "Claims") -> None:
        self._claims = claims
        self.has_ended = False
        claims.enter()

    def end(self) -> None:
        """End it, once."""
        if not self.has_ended:
            self.has_ended = True
            self._claims.leave()

    def __enter__(self) -> None:
        return

    def __exit__(self, *error: object) -> None:
        self.end()


class Claims:
    """One worker of a store, from its registration to its deregistration. Belongs to one event loop.

    A claim is always in use, being released, or being retried: `close` waits for all of them before it deregisters
    the worker. Otherwise a run would keep a dead owner, which counts as a strike.
    """

    def __init__(self, store: RunStore, settings: CheckpointSettings, clock: Clock) -> None:
        self.store, self.settings, self.clock = store, settings, clock
        #: New for every open.
        self.worker_id: str = f"w-{make_id()}"
        #: The agents whose runs this worker takes, as the store has them.
        self.agents: tuple[str, ...] = ()
        #: Failed releases of runs that this process no longer executes.
        self._pending_releases: dict[Callable[[], Awaitable[None]], None] = {}
        self._retry: asyncio.Task[None] | None = None
        #: Uses of claims that end soon.
        self._uses = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self._is_closing = False

    async def register(self, agents: tuple[str, ...]) -> None:
        """Register the worker, or replace the agents whose runs it takes. Raises what the store raises."""
        worker = WorkerIdentity(worker_id=self.worker_id, process=this_process(), agents=agents)
        await self.store.register_worker(worker)
        self.agents = agents

    async def announce(self, agents: tuple[str, ...]) -> None:
        """Replace the agents whose runs the worker takes, if they are others. The next call retries one that fails."""
        if agents != self.agents:
            with suppress(StoreError):
                await asyncio.shield(self.start(self.register(agents)))

    # -- claiming -----------------------------------------------------------------------------------------------

    def use(self) -> "ClaimUse":
        """Keep the worker registered until the use ends, which claims runs and releases them or hands them over.

        Raises:
            StoreClosed: the worker is being deregistered.
        """
        if self._is_closing and not self._uses:
            raise StoreClosed("this process takes no more runs: its App is closing")
        return ClaimUse(self)

    def enter(self) -> None:
        """Count another use."""
        self._uses += 1
        self._unused.clear()

    def leave(self) -> None:
        """Count the end of a use."""
        self._uses -= 1
        if not self._uses:
            self._unused.set()

    async def claim(self, claiming: Awaitable[T], undo: Callable[[T], Coroutine[Any, Any, None]]) -> T:
        """Return what the store grants. If the caller is cancelled first, undo it when it arrives.

        A store may grant a claim after its caller was cancelled. Without the undo the run would keep a live owner that
        does not execute it.
        """
        task = self.start(_await(claiming))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.start(_undo_when_done(task, undo))
            raise

    async def claim_with_status(self, run_id: str, status: RunStatus, undo: Release) -> Claim:
        """Claim a run of this status. If the caller is cancelled meanwhile, end the claim with `undo`."""
        claiming = self.store.claim(run_id, self.worker_id, statuses={status})
        return await self.claim(claiming, partial(self.release_claim, release=undo))

    async def restore(self, claim: Claim) -> None:
        """Release a claim that was not used, as if it had never been taken."""
        await self.release_claim(claim, restore_previous(claim))

    async def restore_all(self, claims: Sequence[Claim]) -> None:
        """As `restore`, for several."""
        for claim in claims:
            await self.restore(claim)

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start `work`, which `close` waits for and a cancel of all tasks does not reach."""
        self.enter()
        task = run_in_background(work)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        self.leave()
        if not task.cancelled():
            task.exception()  # retrieved: the caller may have left

    # -- releasing ----------------------------------------------------------------------------------------------

    def add_pending_release(self, retry: Callable[[], Awaitable[None]]) -> None:
        """Register `retry` with `retry_pending_releases`."""
        self._pending_releases[retry] = None

    async def release(self, claim: Claim, release: Release) -> None:
        """Release a claim that has no checkpointer. `retry_pending_releases` repeats a release that failed."""
        await self._release(partial(self._write_release, claim, release))

    async def release_durably(self, claim: Claim, release: Release) -> None:
        """As `release`. Repeats it while the store is unavailable, until `store_timeout`."""
        write = partial(self._write_release, claim, release)
        timeout = self.settings.store_timeout
        await retry_while_unavailable(partial(self._release, write), timeout, self.clock)

    async def _write_release(self, claim: Claim, release: Release) -> None:
        """Release the claim. If the mail that the run would wait for has come meanwhile, any worker resumes the run."""
        try:
            await self.store.release(claim, release)
        except UnreadMail:
            ready = msgspec.structs.replace(release, status=RunStatus.INTERRUPTED, wake_at=None, wake_on=())
            await self.store.release(claim, ready)

    async def _release(self, write: Callable[[], Awaitable[None]]) -> None:
        self._pending_releases[write] = None  # first: this call may be cancelled, or run while the store closes
        await write()
        self._pending_releases.pop(write, None)

    async def release_claim(self, claim: Claim, release: Release) -> None:
        """Release a claim that this process will not use. A store error is logged, and the release is retried later."""
        try:
            await self.release(claim, release)
        except (RunLost, StoreClosed):
            pass  # another worker owns the run, or will once this worker is deregistered
        except Exception as exc:  # a host's own store may raise anything
            log.warning("run %s: could not release its claim, will retry: %s", claim.run_id, exc)

    async def wake_parents(self, run_id: str) -> None:
        """Notify the runs above one that the end of a run has woken. After an error the janitor of any App does it."""
        try:
            await wake_parents(self.store, run_id)
        except Exception as exc:  # a host's own store may raise anything
            log.warning("run %s: the runs above it could not be notified, will retry: %s", run_id, exc)

    async def retry_pending_releases(self) -> None:
        """Repeat the releases that failed. Until they succeed, this live worker owns runs that it does not execute.

        A retry outlives its caller: otherwise recovery would take half of a cancelled tree. There is one at a time.
        """
        if self._retry is None or self._retry.done():
            self._retry = run_in_background(self._retry_each())
        await asyncio.shield(self._retry)

    async def _retry_each(self) -> None:
        for write in list(self._pending_releases):
            try:
                await write()
            except RunLost:
                pass  # another worker owns the run
            except Exception as exc:  # a host's own store may raise anything
                log.warning("could not release a claim, will retry: %s", exc)
                continue
            self._pending_releases.pop(write, None)

    # -- leaving ------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Grant no further claims, wait until none is in use, and retry failed releases.

        Call this before the worker is deregistered: after it, a run that has ended would count as interrupted.
        """
        self._is_closing = True
        await self._unused.wait()
        self.enter()  # a retry may cancel child runs
        try:
            if self._retry is not None:
                await asyncio.wait([self._retry])  # it may not know of the releases that failed last
            await self.retry_pending_releases()
        finally:
            self.leave()

    async def deregister(self) -> None:
        """Deregister the worker: others take its runs. Raises what the store raises."""
        await self.store.deregister_worker(self.worker_id)


async def retry_while_unavailable(work: Callable[[], Awaitable[None]], timeout: timedelta, clock: Clock) -> None:
    """Do `work`. Repeat it while the store is unavailable, with increasing delays, until `timeout`."""
    pause = _INITIAL_BACKOFF
    deadline: float | None = None
    while True:
        try:
            await work()
            return
        except StoreUnavailable:
            now = clock.monotonic()
            if deadline is None:
                deadline = now + timeout.total_seconds()
            if now + pause.total_seconds() > deadline:
                raise
        await clock.sleep(pause)
        pause = min(pause * 2, _MAX_BACKOFF)


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _undo_when_done(task: "asyncio.Task[T]", undo: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is None:
        await undo(task.result())


async def cancel_run(claims: Claims, run_id: str, *, is_repeated: bool = True) -> None:
    """Cancel a run without a live owner, or ask its owner to. Its unfinished child runs are cancelled first.

    A run that may have steps to undo is left to a worker, which undoes them and ends it. If it is parked and its cancel
    was requested before this call (`is_repeated`), it is cancelled as it is: it could not be undone.

    Raises:
        RunNotFound: there is no such run. RunNotClaimable: it is terminal already.
    """
    retention = claims.settings.retention
    with claims.use():
        try:
            claim, undo = await _claim(claims, run_id)
        except RunBusy:
            await request_cancel(claims, run_id)
            return
        try:
            requested = is_repeated and (await get_record(claims.store, run_id)).cancel_requested
            await cancel_children(claims, run_id)
            stored = await claims.store.load(run_id)
            release = _make_release(stored, retention, claim)
            progress = decode(stored.record.progress, Progress)
            if progress.undo_on_cancel and not (requested and undo.status is RunStatus.PARKED):
                await claims.store.request_cancel(run_id)
                release = Release(status=RunStatus.INTERRUPTED, reason="cancelled: a worker undoes its steps")
        except (RunDamaged, RecordDecodeError, UnknownVersion) as exc:
            await claims.release_durably(claim, make_cancelled_release(f"cancelled; {exc}", retention))
        except asyncio.CancelledError:
            claims.start(claims.release_claim(claim, undo))
            raise
        except BaseException:
            await claims.release_claim(claim, undo)
            raise
        else:
            try:
                await claims.release_durably(claim, release)
            except ClaimLost:
                # A parent that is cancelled at this moment may have attached to it. That is not the loss of the parent.
                await request_cancel(claims, run_id)
                return
            if release.notify is not None:
                await claims.wake_parents(release.notify.run_id)
            is_removed = release.status is RunStatus.CANCELLED and not retention.cancelled
            if is_removed and stored.record.parent_run_id is None:
                await claims.store.remove(run_id)


async def request_cancel(claims: Claims, run_id: str) -> None:
    """Ask the live owner of a run to cancel it. Durable when this returns: if the owner dies, the next one does it.

    Raises:
        RunNotFound: there is no such run. RunNotClaimable: it has ended meanwhile.
    """
    await claims.store.request_cancel(run_id)
    record = await get_record(claims.store, run_id)
    if record.status in (RunStatus.WAITING, RunStatus.PARKED):
        with suppress(RunNotClaimable):  # it has ended since, and not as done: its cancel was requested
            await cancel_run(claims, run_id, is_repeated=False)  # its owner has left it meanwhile
    elif record.status in (RunStatus.DONE, RunStatus.FAILED):
        raise RunNotClaimable(run_id, record.status, record.reason)


async def cancel_children(claims: Claims, run_id: str, *, continues: bool = False) -> None:
    """Cancel the unfinished children of a run that the caller has claimed and will cancel next, or that continues.

    Recovery leaves them alone meanwhile, because their parent is not terminal. If this process dies midway, the
    recorded cancel request makes the next owner cancel the run.
    """
    children = [child async for child in iter_runs(claims.store, RunFilter(parent_run_id=run_id))]
    if children and not continues:
        await claims.store.request_cancel(run_id)
    for child in children:
        if continues and child.background:
            continue
        if child.is_terminal:
            await cancel_children(claims, child.run_id)
            continue
        with suppress(RunNotFound, RunNotClaimable):  # it has ended meanwhile
            await cancel_run(claims, child.run_id)


async def cancel_background(claims: Claims, run_id: str) -> None:
    """Cancel the unfinished children in the background of a run that is about to end.

    If this process dies midway, the run is resumed, ends again, and cancels the rest.
    """
    async for child in iter_runs(claims.store, RunFilter(parent_run_id=run_id)):
        if child.background and not child.is_terminal:
            with suppress(RunNotFound, RunNotClaimable):  # it has ended meanwhile
                await cancel_run(claims, child.run_id)


async def cancel_child_if_requested(claims: Claims, run_id: str) -> None:
    """Cancel a child that was about to stop when its cancel was requested: only its parent would resume it."""
    try:
        if (await get_record(claims.store, run_id)).cancel_requested:
            await cancel_run(claims, run_id, is_repeated=False)
            await claims.wake_parents(run_id)
    except Exception as exc:  # a store may raise anything; the request stays
        log.warning("run %s: its cancel is left to its parent: %s", run_id, exc)


def make_cancelled_release(reason: str, retention: Retention) -> Release:
    """Return the release that records a cancel without an outcome."""
    return Release(status=RunStatus.CANCELLED, reason=reason, retention=retention.cancelled)


async def _claim(claims: Claims, run_id: str) -> tuple[Claim, Release]:
    """Claim a run without a live owner. Returns the claim, and the release that undoes it."""
    try:
        claim = await claims.claim(claims.store.claim(run_id, claims.worker_id), claims.restore)
    except RunNotClaimable as exc:
        if exc.status not in (RunStatus.PARKED, RunStatus.WAITING):
            raise
        record = await get_record(claims.store, run_id)
        waited = Release(
            status=RunStatus(exc.status), despite_cancel=record.cancel_requested, reason=record.reason,
            wake_at=record.wake_at, wake_on=record.wake_on,
        )  # fmt: skip
        return await claims.claim_with_status(run_id, waited.status, waited), waited
    return claim, restore_previous(claim)


def _make_release(stored: StoredRun, retention: Retention, claim: Claim) -> Release:
    """Return the release that records the cancel and its outcome.

    Raises:
        CheckpointError: the run cannot be read.
    """
    info, record = decode_begin(stored).info, stored.record
    text = format_error(RunCancelled(f"run {record.run_id} was cancelled"))
    usage = decode(record.progress, Progress).usage
    outcome = encode(Outcome(error=text, usage=usage))
    return Release(
        status=RunStatus.CANCELLED,
        reason=text,
        entries=[Entry(seq=record.next_seq, kind=EntryKind.OUTCOME, body=outcome)],
        retention=retention.cancelled,
        notify=make_notice(info, RunStatus.CANCELLED, usage, claim.token),
    )
