"""StoreCheckpointer: saves one run to a store, proves its claim, and ends it."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from holdfast.checkpoint.claims import (
    Claims,
    cancel_background,
    cancel_child_if_requested,
    cancel_children,
    retry_while_unavailable,
)
from holdfast.checkpoint.codec import RecentConversations, decode, encode
from holdfast.checkpoint.delta import (
    Delta,
    RecordedInTransaction,
    Watermark,
    forget_consumed,
    is_rewritten,
    make_last_delta,
)
from holdfast.checkpoint.errors import CheckpointError, StoreUnavailable, TranscriptTooLarge, UnreadMail
from holdfast.checkpoint.finishing import Ending, end_done, end_failed, end_left, make_notice, make_release
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.progress import AttemptLog, Progress
from holdfast.checkpoint.record import NewRun, RunRecord, RunStatus
from holdfast.checkpoint.store import END
from holdfast.checkpoint.workers import Claim
from holdfast.clock import Timer
from holdfast.concurrency import run_in_background
from holdfast.core.errors import RunLost, SaveFailed
from holdfast.core.ports import Leave, Transactions
from holdfast.core.run.info import RunInfo
from holdfast.core.run.mail import MailArrived
from holdfast.core.run.messages import NO_USAGE, Usage
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd

log: logging.Logger = logging.getLogger("holdfast.checkpoint")

#: A successful write proves the claim for this long: no check is needed before a `once` tool starts.
CLAIM_PROOF_TTL = timedelta(seconds=1)
_PROOF_TTL_S = CLAIM_PROOF_TTL.total_seconds()


class StoreCheckpointer:
    """A `Checkpointer` on a store. Belongs to one event loop; its methods may be called concurrently.

    Callers shield each call (`holdfast.concurrency`): after a cancelled write the checkpointer does not know what
    the store holds.
    """

    def __init__(self, claims: Claims, info: RunInfo, *, recent: RecentConversations | None = None) -> None:
        """Make the checkpointer of a new run. The first save puts the run into the store.

        Args:
            claims: the worker that executes the run.
            recent: keeps the journal of a conversation for its next turn.
        """
        self._claims, self._info, self._recent = claims, info, recent
        self._store, self._settings, self._clock = claims.store, claims.settings, claims.clock
        self._interval_s = self._settings.save_interval.total_seconds()
        self.owner: str = claims.worker_id
        self.transactions: Transactions = claims.store.transactions
        #: `None` before the first save. Its token never changes.
        self.claim: Claim | None = None
        #: What the store holds.
        self._watermark = Watermark()
        self._progress = b""
        self._attempts = AttemptLog.begin(claims.worker_id, self._clock.now())
        #: A step was finished under this claim.
        self._progressed = False
        #: Known if the run was resumed.
        self._created_at: datetime | None = None
        #: When the last write was sent, and when the proof of the claim by a successful write expires.
        self._sent_at = 0.0
        self.proven_until: float = math.inf
        self._is_writing = False
        #: Resolved when the write in flight has ended. `None`: no caller waits for that.
        self._write_ended: asyncio.Future[None] | None = None
        self._closed = False
        self._latest_state: RunState | None = None
        #: The time until which saves are deferred, the newest deferred state, and the timer of its write.
        self._deferred_until = -math.inf
        self._deferred: RunState | None = None
        self._timer: Timer | None = None
        self._flush_tasks: set[asyncio.Task[None]] = set()
        #: How the claim ends, and whether the store has taken that.
        self._ending: Ending | None = None
        self._is_released = False

    @classmethod
    def resume(
        cls,
        claims: Claims,
        claim: Claim,
        watermark: Watermark,
        record: RunRecord,
        info: RunInfo,
        state: RunState,
        attempts: AttemptLog,
        *,
        recent: RecentConversations | None = None,
    ) -> "StoreCheckpointer":
        """Make the checkpointer of a claimed run, of which the store holds `watermark` and `record`.

        Args:
            state: the run as it was loaded. Its end is written even if it was not saved before.
        """
        checkpointer = cls(claims, info, recent=recent)
        checkpointer.claim, checkpointer._watermark, checkpointer._attempts = claim, watermark, attempts
        checkpointer._progress, checkpointer._created_at = record.progress, record.created_at
        checkpointer._latest_state = state
        checkpointer.proven_until = -math.inf
        return checkpointer

    @property
    def next_seq(self) -> int:
        """The number of the next journal entry."""
        return self._watermark.next_seq

    # -- saving -------------------------------------------------------------------------------------------------

    async def save(self, state: RunState, *, force: bool = False) -> None:
        """Write the delta since the last successful save, in one atomic, fenced write.

        Within the save interval the save is deferred: a timer writes the newest deferred state. The first save and a
        forced one are never deferred. After a failed write the next save sends the whole delta again. After the run
        is finalized a save does nothing.
        """
        if self._closed:
            return
        self._latest_state = state
        if self._interval_s and not force and (wait := self._deferred_until - self._clock.monotonic()) > 0:
            self._defer(state, timedelta(seconds=wait))
            return
        if self._is_writing and not await self._wait_for_write():
            return
        if self._interval_s:
            self._clear_deferred()  # before the write: a state deferred during it is newer than the written one
        self._is_writing = True
        try:
            if (delta := self._make_delta(state)) is not None:
                try:
                    await self._send(delta)
                except StoreUnavailable:
                    if not self._settings.store_timeout or not (force or self._settings.require_durability):
                        raise
                    await self._retry(partial(self._send, delta))
                self._on_saved(state, delta)
        except UnreadMail as exc:
            unread = (await self._store.load(self._info.run_id, after=END)).mail
            raise MailArrived(f"run {self._info.run_id} reads its mail first", unread) from exc
        except Exception:
            if self._interval_s:
                self._defer(state, self._settings.save_interval)
            raise
        finally:
            self._end_write()

    async def transact(
        self, state: RunState, function: Callable[[Any], Any], record: Callable[[Any], Callable[[], None]]
    ) -> Any:
        """Call `function` and save its result in one transaction of the store. Other saves of the run wait for it."""
        if self.claim is None:
            await self.save(state, force=True)
        if not await self._wait_for_write() or self.claim is None:
            raise RunLost(f"run {self._info.run_id} has ended")
        self._is_writing, self._latest_state, self._sent_at = True, state, self._clock.monotonic()
        recorded = RecordedInTransaction(record, partial(self._make_delta, state))
        try:
            value = await self._store.transact(self.claim, function, recorded.make_write)
            self._on_saved(state, recorded.delta)
            return value
        except BaseException as exc:
            recorded.remove()
            if isinstance(exc, CheckpointError) and not isinstance(exc, RunLost):
                raise SaveFailed(f"run {self._info.run_id} could not be saved and waits for recovery: {exc}") from exc
            raise
        finally:
            self._end_write()

    def _make_delta(self, state: RunState) -> Delta | None:
        """Return what is new since the last save; `None` if nothing is."""
        now = self._clock.now()
        attempts = self._attempts.at_create() if self.claim is None else self._attempts.at_save(now)
        delta = Delta(self._watermark, state, self._info, now, attempts)
        if not delta.write.entries and not delta.has_other_changes(self._watermark):
            return None
        limit = self._settings.max_transcript_bytes
        if limit is not None and delta.next_watermark.size > limit:
            raise TranscriptTooLarge(self._info.run_id, delta.next_watermark.size, limit)
        return delta

    def _send(self, delta: Delta) -> Awaitable[None]:
        self._sent_at = self._clock.monotonic()
        return self._create(delta) if self.claim is None else self._store.append(self.claim, delta.write)

    async def _create(self, delta: Delta) -> None:
        run = NewRun.create(self._info, delta.write.progress, delta.write.entries)
        self.claim = await self._store.create(run, worker_id=self._claims.worker_id)
        if self.claim is None:
            # The caller follows it: a worker takes it when a slot is free.
            raise RunLost(f"run {self._info.run_id} is queued: a concurrency limit is reached")

    def _on_saved(self, state: RunState, delta: Delta) -> None:
        write = delta.write
        self._watermark, self._progress = delta.next_watermark, write.progress
        self._progressed = self._progressed or write.step_finished
        if write.consumed:
            forget_consumed(state, write.consumed)
        if write.unless_mail:
            state.unless_mail = ()
        if delta.event_count:
            del state.recorded_events[: delta.event_count]  # more may have been added during the write
        if not self._closed:
            self.proven_until = self._sent_at + _PROOF_TTL_S
        if self._interval_s:
            self._deferred_until = self._clock.monotonic() + self._interval_s

    # -- the save interval --------------------------------------------------------------------------------------

    def _defer(self, state: RunState, wait: timedelta) -> None:
        self._deferred = state
        if self._timer is None:
            self._timer = self._clock.call_later(wait, self._start_flush)

    def _start_flush(self) -> None:
        self._timer = None
        self._deferred_until = -math.inf
        task = run_in_background(self._flush())
        self._flush_tasks.add(task)
        task.add_done_callback(self._flush_tasks.discard)

    async def _flush(self) -> None:
        if self._deferred is None:
            return
        try:
            await self.save(self._deferred)
        except Exception as exc:  # no caller waits for this write; the next save raises an error that persists
            log.warning("run %s: a deferred save failed, will retry: %s", self._info.run_id, exc)

    def _clear_deferred(self) -> None:
        self._deferred = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- one write at a time ------------------------------------------------------------------------------------

    async def _wait_for_write(self) -> bool:
        """Wait until no write is in flight. Return whether the run may still be saved."""
        while self._is_writing:
            if self._write_ended is None:
                self._write_ended = asyncio.Future()
            await asyncio.shield(self._write_ended)
        return not self._closed

    def _end_write(self) -> None:
        self._is_writing = False
        ended, self._write_ended = self._write_ended, None
        if ended is not None:
            ended.set_result(None)

    async def _write_alone(self, write: Callable[[], Awaitable[None]]) -> None:
        """Do `write` when no other write is in flight."""
        await self._wait_for_write()
        self._is_writing = True
        try:
            await write()
        finally:
            self._end_write()

    async def _retry(self, write: Callable[[], Awaitable[None]]) -> None:
        """Do `write`. Repeat it while the store is unavailable, with increasing delays, until `store_timeout`."""
        await retry_while_unavailable(write, self._settings.store_timeout, self._clock)

    # -- the claim ----------------------------------------------------------------------------------------------

    async def verify(self) -> None:
        """Prove the claim by a fenced write, unless a write succeeded within `CLAIM_PROOF_TTL`."""
        # A second try if the answer took longer than the TTL. The answer to that one counts however late it is.
        for _ in range(2):
            if self.claim is None or self._clock.monotonic() < self.proven_until:
                return
            await self._write_alone(partial(self._retry, partial(self._check_claim, self.claim)))

    async def _check_claim(self, claim: Claim) -> None:
        """Prove the claim by a fenced write without entries."""
        self._sent_at = self._clock.monotonic()
        await self._store.append(claim, Append(entries=(), progress=self._progress))
        if not self._closed:
            self.proven_until = self._sent_at + _PROOF_TTL_S

    # -- finishing ----------------------------------------------------------------------------------------------

    async def complete(self, output: Any, usage: Usage) -> bool:
        """Record success. The run and its result are kept for their retention.

        Returns False if a message has arrived that the run has not read: a worker resumes the run, which reads it.
        """
        return await self._finish(end_done(output, usage, self._info, self._settings.retention))

    async def fail(self, error: BaseException) -> None:
        """Record failure or cancellation. The run is kept for its retention and can be resumed by hand.

        Recovery resumes the children of a terminal run. So the children of a cancelled run are cancelled first.
        """
        await self._finish(end_failed(error, self._current_usage(), self._info, self._settings.retention))

    async def leave(self, leaving: Leave) -> bool:
        """End the attempt of a run that has not ended. An interruption after a finished step is not a strike.

        Returns False if the mail that the run would wait for has arrived: a worker resumes the run immediately.
        """
        has_ended = await self._finish(end_left(leaving, self.claim, self._clock.now(), progressed=self._progressed))
        if leaving.end is AttemptEnd.WAITING:
            self._keep_journal()
        return has_ended

    def _current_usage(self) -> Usage:
        if self._latest_state is not None:
            return self._latest_state.usage
        return decode(self._progress, Progress).usage if self._progress else NO_USAGE

    def _keep_journal(self) -> None:
        """Keep the journal of a conversation between two turns for the next one."""
        state, created_at = self._latest_state, self._created_at
        if self._recent is None or state is None or created_at is None:
            return
        if self._info.conversation and state.turn is None:
            self._recent.put(self._info, state, created_at, self._watermark.next_seq, self._watermark.size)

    async def _finish(self, ending: Ending) -> bool:
        """End the claim, once. Returns False if unread mail refuses: then the run is left to be resumed."""
        if not ending.is_removed:
            await self._save_rewrite()
        if self._closed:
            return True
        # A save in flight finishes first. Later saves do nothing.
        self._closed, self.proven_until = True, math.inf
        self._clear_deferred()
        self._ending = ending
        try:
            await self._write_alone(partial(self._retry, self._end_claim))
        except RunLost:
            raise
        except BaseException:  # a host's own store may raise anything, and the caller may be cancelled
            # Until the release succeeds, this live worker owns the run and recovery does not take it.
            self._claims.add_pending_release(self.retry_release)
            raise
        return self._ending is ending

    async def _save_rewrite(self) -> None:
        """Save a rewritten history: a release can add to the journal, but not replace it."""
        state = self._latest_state
        if self._closed or state is None or not is_rewritten(self._watermark, state):
            return
        try:
            await self.save(state, force=True)
        except Exception as exc:  # end the claim anyway
            log.warning("run %s: the progress since its last save is lost: %s", self._info.run_id, exc)

    async def retry_release(self) -> None:
        """Repeat the release that failed. Raises what the store raises."""
        await self._write_alone(self._end_claim)

    async def _end_claim(self) -> None:
        """Release the claim as `_ending` says, unless that was done."""
        claim, ending = self.claim, self._ending
        if claim is None or ending is None or self._is_released:
            return
        if ending.status is RunStatus.CANCELLED:
            await cancel_children(self._claims, self._info.run_id)
        elif ending.outcome is not None and self._latest_state is not None and self._latest_state.starts_runs:
            await cancel_background(self._claims, self._info.run_id)
        try:
            await self._release(claim, ending)
        except UnreadMail:
            state = self._latest_state
            if state is not None and len(state.phases) > self._watermark.phases:
                self._latest_state = None  # the mail is for the conversation of the phase that is not saved
            ending = self._ending = end_left(Leave(), claim, self._clock.now(), progressed=self._progressed)
            await self._release(claim, ending)
        self._is_released = True
        if self._info.parent_run_id is not None and ending.status in (RunStatus.WAITING, RunStatus.PARKED):
            await cancel_child_if_requested(self._claims, self._info.run_id)
        if self._info.starter is not None and ending.outcome is not None:
            await self._claims.wake_parents(self._info.starter)
        if ending.is_removed:
            await self._remove()

    async def _release(self, claim: Claim, ending: Ending) -> None:
        now = self._clock.now()
        attempts = self._attempts.at_save(now, AttemptEnd(ending.status))
        delta, progress = None, None
        if (state := self._latest_state) is not None:
            limit = self._settings.max_transcript_bytes
            delta = make_last_delta(self._watermark, state, self._info, now, attempts, max_size=limit)
        if delta is None and self._attempts.present is not None:
            progress = encode(msgspec.structs.replace(decode(self._progress, Progress), attempts=attempts))
        notify = make_notice(self._info, ending.status, self._current_usage(), claim.token)
        await self._store.release(claim, make_release(ending, delta, self._watermark.next_seq, progress, notify))
        if delta is not None:
            self._watermark = delta.next_watermark

    async def _remove(self) -> None:
        # After the release: a message that was accepted meanwhile must not be removed with the run, and a run that
        # cannot be removed must not be executed again.
        try:
            await self._store.remove(self._info.run_id)
        except Exception as exc:  # a store may raise anything; the run has ended
            log.warning("run %s has ended, and is removed by the next purge: %s", self._info.run_id, exc)
