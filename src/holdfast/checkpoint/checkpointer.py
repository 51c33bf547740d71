"""The handle of one run on a store: saves what is new, throttled, and settles the run at its end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.codec import Outcome, Progress, RunMeta, decode, encode
from holdfast.checkpoint.delta import Delta, Watermark
from holdfast.checkpoint.errors import StoreUnavailable, TranscriptTooLarge
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import NewRun, Release, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import SYSTEM_CLOCK, Clock, Timer
from holdfast.config import CheckpointSettings
from holdfast.core.errors import RunCancelled, RunLost, format_error
from holdfast.core.message import NO_USAGE, Usage
from holdfast.core.state import RunState

log = logging.getLogger("holdfast.checkpoint")

_T = TypeVar("_T")

#: A claim that was proven by a write so recently need not be proven again before a `once` tool starts.
CLAIM_CHECK_TTL = timedelta(seconds=1)


#: Before a store that did not answer is asked again. The pauses after it grow.
_INITIAL_BACKOFF = timedelta(milliseconds=50)


class CheckpointerOwner(Protocol):
    """Does the work that outlives one checkpointer, or concerns other runs."""

    def add_pending_release(self, retry: Callable[[], Awaitable[None]]) -> None:
        """Call `retry` later: the store did not take the end of a run."""
        ...

    async def cancel_children(self, run_id: str) -> None:
        """Cancel the unfinished child runs of a run that is about to be cancelled."""
        ...


class StoreCheckpointer:
    """A `Checkpointer` on a store. Belongs to one event loop; its methods may be called concurrently.

    A call that was begun has to be seen through (`holdfast.concurrency`): a handle whose write was cancelled
    half-way does not know any more what the store has.
    """

    def __init__(
        self,
        store: CheckpointStore,
        meta: RunMeta,
        worker_id: str,
        *,
        settings: CheckpointSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        keep_result: bool = False,
        retention: timedelta | None = None,
        owner: CheckpointerOwner | None = None,
    ) -> None:
        """The handle of a run that is not in the store yet: its first save puts it there.

        Args:
            keep_result: the run's end stays in the store, for somebody else to read; for `retention` if that is given.
            owner: retries a failed release, and cancels child runs.
        """
        self._store, self._meta, self._worker_id = store, meta, worker_id
        self._settings, self._clock = settings or CheckpointSettings(), clock
        self._throttled = self._settings.save_interval > timedelta(0)
        self._keep_result, self._retention = keep_result, retention
        self._claim: Claim | None = None
        self._watermark = Watermark()
        self._progress = b""
        self._lock = asyncio.Lock()
        self._closed = False
        self._saved_at: float | None = None
        #: When the last write was sent, and the last that the store took: since then the claim may have been lost.
        self._sent_at = 0.0
        self._claim_checked_at: float | None = None
        #: The newest state that the throttle held back, and what will write it.
        self._deferred: RunState | None = None
        self._timer: Timer | None = None
        self._flush_tasks: set[asyncio.Task[None]] = set()
        self._latest_state: RunState | None = None
        self._progressed = False
        self._owner = owner
        self._pending_release: Callable[[], Awaitable[None]] | None = None

    @classmethod
    def resume(
        cls, claim: Claim, watermark: Watermark, progress: bytes, store: CheckpointStore, meta: RunMeta, **options: Any
    ) -> "StoreCheckpointer":
        """The handle of a run that was claimed and loaded. `mark` and `progress` say what the store has of it."""
        handle = cls(store, meta, claim.worker_id, **options)
        handle._claim, handle._watermark, handle._progress = claim, watermark, progress
        return handle

    @property
    def claim(self) -> Claim | None:
        """The claim under which this handle writes. Its token never changes."""
        return self._claim

    # -- saving -------------------------------------------------------------------------------------------------

    def save(self, state: RunState, *, force: bool = False) -> Coroutine[Any, Any, None]:
        """Write what is new since the last successful save, in one atomic, fenced write.

        Inside the throttle window the save is held back, and the newest held back is written when the window closes.
        The first save is never throttled, an urgent one neither. When the write fails, nothing moves: the next save
        sends all of it. After the run was settled a save does nothing.
        """
        if self._closed:
            return _no_op()
        self._latest_state = state
        if self._throttled and not force and (wait := self._seconds_until_save()) > 0:
            self._defer(state, timedelta(seconds=wait))
            return _no_op()
        return self._write(state, retry=force)

    def _seconds_until_save(self) -> float:
        """Seconds until the throttle lets the next save through."""
        if self._saved_at is None:
            return 0.0
        return self._saved_at + self._settings.save_interval.total_seconds() - self._clock.monotonic()

    def _defer(self, state: RunState, wait: timedelta) -> None:
        self._deferred = state
        if self._timer is None:
            self._timer = self._clock.call_later(wait, self._start_flush)

    def _start_flush(self) -> None:
        self._timer = None
        task = asyncio.get_running_loop().create_task(self._flush())
        self._flush_tasks.add(task)
        task.add_done_callback(self._flush_tasks.discard)

    async def _flush(self) -> None:
        if self._deferred is None or self._closed:
            return
        try:
            await self._write(self._deferred, retry=False)
        except Exception as exc:  # nobody waits for this one; the next save will raise what does not pass
            log.warning("run %s: a throttled save failed, the next one carries it: %s", self._meta.run_id, exc)

    async def _write(self, state: RunState, *, retry: bool) -> None:
        await self._lock.acquire()
        try:
            if self._closed:
                return
            # Before the first wait: what is held back while this is written is newer than what is written.
            if self._throttled:
                self._clear_deferred()
            delta = Delta(self._watermark, state, self._meta, self._clock)
            if self._claim is not None and delta.is_empty(self._watermark):
                return
            if self._settings.max_transcript_bytes is not None and self._is_too_large(delta):
                raise TranscriptTooLarge(
                    self._meta.run_id, delta.next_watermark.size, self._settings.max_transcript_bytes
                )
            try:
                await self._send(delta)
            except StoreUnavailable as exc:
                if not retry:
                    raise
                await self._retry_until_timeout(partial(self._send, delta), error=exc)
            self._watermark, self._progress = delta.next_watermark, delta.progress
            self._progressed = self._progressed or delta.step_finished
            self._claim_checked_at = self._sent_at
            if self._throttled:
                self._saved_at = self._clock.monotonic()
        except Exception:
            if self._throttled:
                self._defer(state, self._settings.save_interval)
            raise
        finally:
            self._lock.release()

    def _is_too_large(self, delta: Delta) -> bool:
        cap = self._settings.max_transcript_bytes
        return cap is not None and delta.next_watermark.size > cap

    def _send(self, delta: Delta) -> Awaitable[None]:
        self._sent_at = self._clock.monotonic()
        if self._claim is None:
            return self._create(delta)
        write = Append(
            entries=delta.entries, progress=delta.progress, rewrite=delta.rewrite, step_finished=delta.step_finished
        )
        return self._store.append(self._claim, write)

    async def _create(self, delta: Delta) -> None:
        run = NewRun(
            run_id=self._meta.run_id,
            agent_name=self._meta.agent_name,
            caller_id=self._meta.caller_id,
            parent_run_id=self._meta.parent_run_id,
            meta=encode(self._meta.summary()),
            progress=delta.progress,
            entries=delta.entries,
        )
        self._claim = await self._store.create(run, worker_id=self._worker_id)

    def _clear_deferred(self) -> None:
        self._deferred = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def verify_claim(self) -> None:
        """Prove by a fenced write that the claim still holds, unless a write has just done so."""
        if self._claim is None or self._closed:
            return
        # Once more if the answer came late: the claim may be lost by then. A store that is always so slow is believed.
        for _ in range(2):
            if (
                self._claim_checked_at is not None
                and self._clock.monotonic() - self._claim_checked_at < CLAIM_CHECK_TTL.total_seconds()
            ):
                return
            async with self._lock:
                await self._retry_until_timeout(self._check_claim)

    async def _check_claim(self) -> None:
        assert self._claim is not None
        self._sent_at = self._clock.monotonic()
        await self._store.append(self._claim, Append(entries=(), progress=self._progress))
        self._claim_checked_at = self._sent_at

    # -- settling -----------------------------------------------------------------------------------------------

    async def complete(self, output: Any, usage: Usage) -> None:
        """The run succeeded: it is removed, or its result is kept for whoever asked for it."""
        if not self._keep_result:
            await self._finalize(self._remove)
            return
        outcome = encode(Outcome(output=output, usage=usage))
        await self._finalize(partial(self._release_claim, RunStatus.DONE, outcome=outcome, retention=self._retention))

    async def fail(self, error: BaseException, *, may_have_children: bool = False) -> None:
        """The run failed or was cancelled: it is removed, or kept aside to be resumed by hand.

        Once it is over, recovery goes on with its children by themselves. So those of a cancelled run end before it.
        """
        cancelled = isinstance(error, RunCancelled | asyncio.CancelledError)
        keep = self._settings.failed_retention
        if keep is None and not self._keep_result:
            await self._finalize(self._remove)
            return
        text = format_error(error)
        status = RunStatus.CANCELLED if cancelled else RunStatus.FAILED
        outcome = encode(Outcome(error=text, usage=self._current_usage()))
        # A child's end is kept until its parent has recorded it, however long the parent is down.
        how_long = self._retention if self._keep_result and keep is None else keep
        owner = self._owner if cancelled and may_have_children else None

        async def end() -> None:
            if owner is not None:
                await owner.cancel_children(self._meta.run_id)
            await self._release_claim(status, reason=text, outcome=outcome, retention=how_long)

        await self._finalize(end)

    def _current_usage(self) -> Usage:
        if self._latest_state is not None:
            return self._latest_state.usage
        return decode(self._progress, Progress).usage if self._progress else NO_USAGE

    async def park(self, reason: str) -> None:
        """The run waits for a person or a condition."""
        await self._finalize(partial(self._release_claim, RunStatus.PARKED, reason=reason))

    async def release(self, reason: str = "", delay: timedelta = timedelta(0)) -> None:
        """Leave the run for recovery, which waits for `delay`. A clean stop is no strike."""
        if self._deferred is not None:
            try:
                await self.save(self._deferred, force=True)
            except Exception as exc:  # the run has to be left even so
                log.warning("run %s: its last moments were not saved: %s", self._meta.run_id, exc)
        strikes = 0 if self._progressed or self._claim is None else max(0, self._claim.strikes - 1)
        await self._finalize(
            partial(self._release_claim, RunStatus.INTERRUPTED, reason=reason, strikes=strikes, delay=delay)
        )

    async def _finalize(self, write: Callable[[], Awaitable[None]]) -> None:
        if self._closed:
            return
        # From here on no save writes anything: what is under way is waited for, what comes later does nothing.
        self._closed = True
        self._clear_deferred()
        await self._write_final(write)

    async def _write_final(self, write: Callable[[], Awaitable[None]]) -> None:
        try:
            async with self._lock:
                if self._claim is not None:
                    await self._retry_until_timeout(write)
        except RunLost:
            raise
        except BaseException:  # a host's own store may raise anything, and whoever waits here may be cancelled
            # Until somebody settles it, the run stays with this live worker, where no recovery looks for it.
            self._pending_release = write
            if self._owner is not None:
                self._owner.add_pending_release(self.retry_release)
            raise

    async def retry_release(self) -> None:
        """Repeat what the store would not take when the run ended. Raises as it did then."""
        async with self._lock:
            if self._pending_release is not None and self._claim is not None:
                await self._pending_release()
                self._pending_release = None

    async def _remove(self) -> None:
        assert self._claim is not None
        await self._store.remove(self._meta.run_id, claim=self._claim)

    async def _release_claim(
        self,
        status: RunStatus,
        *,
        reason: str = "",
        outcome: bytes | None = None,
        strikes: int = 0,
        delay: timedelta = timedelta(0),
        retention: timedelta | None = None,
    ) -> None:
        assert self._claim is not None
        entries, progress = self._unsaved_delta()
        if outcome is not None:
            seq = self._watermark.next_seq + len(entries)
            entries = [*entries, Entry(seq=seq, kind=EntryKind.OUTCOME, body=outcome)]
        # No store has to be able to keep half a surrogate pair or a NUL.
        shown = reason.encode(errors="replace").decode().replace("\0", "\ufffd")
        ending = Release(
            status=status,
            reason=shown,
            entries=entries,
            progress=progress,
            strikes=strikes,
            delay=delay,
            retention=retention,
        )
        await self._store.release(self._claim, ending)

    def _unsaved_delta(self) -> tuple[list[Entry], bytes | None]:
        """What the run did since its last save, if it can be stored as it is."""
        if self._latest_state is None:
            return [], None
        try:
            delta = Delta(self._watermark, self._latest_state, self._meta, self._clock)
        except Exception as exc:  # of whatever codec; the run ends even so
            log.warning("run %s: its last moments were not saved: %s", self._meta.run_id, exc)
            return [], None
        if delta.rewrite or self._is_too_large(delta):
            return [], None
        return list(delta.entries), delta.progress

    # -- trouble ------------------------------------------------------------------------------------------------

    async def _retry_until_timeout(
        self, work: Callable[[], Awaitable[None]], error: StoreUnavailable | None = None
    ) -> None:
        """Do `work`, which may have `failed` already, again and again while the store does not answer."""
        pause = _INITIAL_BACKOFF
        end = self._clock.monotonic() + self._settings.store_timeout.total_seconds()
        while True:
            if error is not None:
                if self._clock.monotonic() + pause.total_seconds() > end:
                    raise error
                await self._clock.sleep(pause)
                pause = min(pause * 2, timedelta(seconds=2))
            try:
                await work()
                return
            except StoreUnavailable as exc:
                error = exc


async def _no_op() -> None:
    """What a save does that has nothing to do."""


class NullCheckpointer:
    """The handle when there is no store: every method succeeds and does nothing."""

    async def save(self, state: RunState, *, force: bool = False) -> None:
        return

    async def verify_claim(self) -> None:
        return

    async def complete(self, output: Any, usage: Usage) -> None:
        return

    async def fail(self, error: BaseException, *, may_have_children: bool = False) -> None:
        return

    async def park(self, reason: str) -> None:
        return

    async def release(self, reason: str = "", delay: timedelta = timedelta(0)) -> None:
        return
