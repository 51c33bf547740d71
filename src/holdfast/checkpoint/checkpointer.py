"""The checkpointers of runs: one that saves to a store, one that does nothing."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol, Unpack

from holdfast.checkpoint.claims import Claim, backoff
from holdfast.checkpoint.codec import Outcome, decode, encode
from holdfast.checkpoint.delta import Watermark, is_rewritten
from holdfast.checkpoint.errors import UnreadMail
from holdfast.checkpoint.progress import AttemptLog, Progress
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.run_writer import ReleaseOptions, RunWriter
from holdfast.checkpoint.store import RunStore
from holdfast.clock import SYSTEM_CLOCK, Clock, Timer
from holdfast.concurrency import run_in_background
from holdfast.config import CheckpointSettings
from holdfast.core.errors import RunCancelled, RunLost, format_error
from holdfast.core.ports import Leave
from holdfast.core.run.info import RunInfo
from holdfast.core.run.mail import MESSAGE_TOPIC
from holdfast.core.run.messages import NO_USAGE, Usage
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd
from holdfast.core.run.turns import INPUT_TOPICS

log: logging.Logger = logging.getLogger("holdfast.checkpoint")

#: Ends a claim: releases it, or removes the run.
_FinalWrite = Callable[[Claim], Awaitable[None]]


class CheckpointerOwner(Protocol):
    """Does the work that outlives one checkpointer, or concerns other runs."""

    def add_pending_release(self, retry: Callable[[], Awaitable[None]]) -> None:
        """Call `retry` later: the release of a run failed."""
        ...

    async def cancel_tree(self, run_id: str) -> None:
        """Cancel the unfinished child runs of a run that is about to be cancelled."""
        ...

    def keep_journal(self, info: RunInfo, state: RunState, created_at: datetime, watermark: Watermark) -> None:
        """Keep the decoded journal of a conversation for its next turn."""
        ...


class StoreCheckpointer:
    """A `Checkpointer` on a store. Belongs to one event loop; its methods may be called concurrently.

    Callers shield each call (`holdfast.concurrency`): after a cancelled write the checkpointer does not know what
    the store holds.
    """

    def __init__(
        self,
        store: RunStore,
        info: RunInfo,
        worker_id: str,
        *,
        settings: CheckpointSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        owner: CheckpointerOwner | None = None,
    ) -> None:
        """Make the checkpointer of a new run. The first save puts the run into the store.

        Args:
            owner: retries a failed release, and cancels child runs.
        """
        self._store, self._info = store, info
        self._settings, self._clock = settings or CheckpointSettings(), clock
        self._has_interval = self._settings.save_interval > timedelta(0)
        self._writer = RunWriter(store, info, worker_id, self._settings, clock)
        self._is_writing = False
        #: Resolved when the write in flight has ended. `None`: no caller waits for that.
        self._write_ended: asyncio.Future[None] | None = None
        self._closed = False
        #: The newest state that the save interval deferred, and the timer of its write.
        self._deferred: RunState | None = None
        self._timer: Timer | None = None
        self._flush_tasks: set[asyncio.Task[None]] = set()
        self._latest_state: RunState | None = None
        #: Known if the run was resumed.
        self._created_at: datetime | None = None
        self._owner = owner
        self._pending_release: _FinalWrite | None = None

    @classmethod
    def resume(
        cls,
        claim: Claim,
        watermark: Watermark,
        record: RunRecord,
        store: RunStore,
        info: RunInfo,
        *,
        state: RunState | None = None,
        attempts: AttemptLog,
        **options: Any,
    ) -> "StoreCheckpointer":
        """Make the checkpointer of a claimed run, of which the store holds `watermark` and `record`.

        Args:
            state: the run as it was loaded. Its end is written even if it was not saved before.
        """
        checkpointer = cls(store, info, claim.worker_id, **options)
        checkpointer._latest_state = state
        checkpointer._writer.resume(claim, watermark, record.progress, attempts)
        checkpointer._created_at = record.created_at
        return checkpointer

    @property
    def claim(self) -> Claim | None:
        """The claim of this checkpointer; `None` before the first save. Its token never changes."""
        return self._writer.claim

    @property
    def next_seq(self) -> int:
        """The number of the next journal entry."""
        return self._writer.watermark.next_seq

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
        if self._has_interval and not force and (wait := self._seconds_until_save()) > 0:
            self._defer(state, timedelta(seconds=wait))
            return
        await self._write(state, retry=force or self._settings.require_durability)

    def _seconds_until_save(self) -> float:
        if self._writer.saved_at is None:
            return 0.0
        return self._writer.saved_at + self._settings.save_interval.total_seconds() - self._clock.monotonic()

    def _defer(self, state: RunState, wait: timedelta) -> None:
        self._deferred = state
        if self._timer is None:
            self._timer = self._clock.call_later(wait, self._start_flush)

    def _start_flush(self) -> None:
        self._timer = None
        task = run_in_background(self._flush())
        self._flush_tasks.add(task)
        task.add_done_callback(self._flush_tasks.discard)

    async def _flush(self) -> None:
        if self._deferred is None or self._closed:
            return
        try:
            await self._write(self._deferred, retry=False)
        except Exception as exc:  # no caller waits for this write; the next save raises an error that persists
            log.warning("run %s: a deferred save failed, will retry: %s", self._info.run_id, exc)

    async def _write(self, state: RunState, *, retry: bool) -> None:
        if self._is_writing:
            await self._wait_for_write()
        if self._closed:
            return
        # Before the first await: a state deferred during the write is newer than the written one.
        if self._has_interval:
            self._clear_deferred()
        self._is_writing = True
        try:
            await self._writer.write(state, retry=retry)
        except Exception:
            if self._has_interval:
                self._defer(state, self._settings.save_interval)
            raise
        finally:
            self._end_write()

    async def _wait_for_write(self) -> None:
        """Return when no write is in flight."""
        while self._is_writing:
            if self._write_ended is None:
                self._write_ended = asyncio.Future()
            await asyncio.shield(self._write_ended)

    def _end_write(self) -> None:
        self._is_writing = False
        ended, self._write_ended = self._write_ended, None
        if ended is not None:
            ended.set_result(None)

    async def _write_alone(self, write: Callable[[], Awaitable[None]]) -> None:
        """Do `write` when no other write is in flight, and repeat it while the store is unavailable."""
        await self._wait_for_write()
        self._is_writing = True
        try:
            await self._writer.retry_until_timeout(write)
        finally:
            self._end_write()

    def _clear_deferred(self) -> None:
        self._deferred = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def proven_until(self) -> float:
        """The monotonic time until which a write that succeeded proves the claim."""
        return math.inf if self._closed or self._writer.claim is None else self._writer.proven_until

    async def verify(self) -> None:
        """Prove the claim by a fenced write, unless a write succeeded within `CLAIM_PROOF_TTL`."""
        # A second try if the answer took longer than the TTL. The answer to that one counts however late it is.
        for _ in range(2):
            claim = self._writer.claim
            if claim is None or self._clock.monotonic() < self.proven_until:
                return
            await self._write_alone(partial(self._writer.check_claim, claim))

    # -- finalizing ---------------------------------------------------------------------------------------------

    async def complete(self, output: Any, usage: Usage) -> bool:
        """Record success. The run and its result are kept for their retention.

        Returns False if a message has arrived that the run has not read: it is left to be resumed, and reads it.
        """
        outcome = encode(Outcome(output=output, usage=usage))
        topics = INPUT_TOPICS if self._info.conversation else (MESSAGE_TOPIC,)
        return await self._end(RunStatus.DONE, outcome, wake_on=topics)

    async def leave(self, leaving: Leave) -> bool:
        """End the attempt of a run that has not ended. An interrupted one is a strike only if no step was finished.

        Returns False if the mail that the run would wait for has arrived: it is left to be resumed at once.
        """
        if leaving.end is AttemptEnd.WAITING:
            return await self._wait(leaving)
        if leaving.end is AttemptEnd.PARKED:
            await self._finalize(partial(self._release_claim, status=RunStatus.PARKED, reason=leaving.reason))
        else:
            await self._interrupt(leaving)
        return True

    async def _wait(self, leaving: Leave) -> bool:
        await self._save_rewrite()
        # The clock of the store may be ahead: the run would be resumed too early, and again at once.
        wake_at = leaving.wake_at
        delay = timedelta(0) if wake_at is None else max(timedelta(0), wake_at - self._clock.now())
        release = partial(
            self._release_claim,
            status=RunStatus.WAITING,
            reason=leaving.reason,
            strikes=self._strikes_to_keep,
            delay=delay,
            wake_at=wake_at,
            wake_on=leaving.wake_on,
        )
        is_waiting = await self._finalize_unless_mail(release)
        self._keep_journal()
        return is_waiting

    async def _interrupt(self, leaving: Leave) -> None:
        if self._deferred is not None:
            await self._save_last(self._deferred)
        strikes = self._count_strikes(is_strike=leaving.strike)
        release = partial(
            self._release_claim,
            status=RunStatus.INTERRUPTED,
            reason=leaving.reason,
            strikes=strikes,
            delay=max(leaving.delay, backoff(strikes)) if leaving.strike else leaving.delay,
        )
        await self._finalize(release)

    def _keep_journal(self) -> None:
        """Keep the journal of a conversation between two turns for the next one."""
        state = self._latest_state
        is_between_turns = bool(self._info.conversation) and state is not None and state.turn is None
        if is_between_turns and state is not None and self._owner is not None and self._created_at is not None:
            self._owner.keep_journal(self._info, state, self._created_at, self._writer.watermark)

    async def _finalize_unless_mail(self, write: _FinalWrite) -> bool:
        """End the claim with `write`. If unread mail refuses that, leave the run to be resumed, and return False."""
        unread = False

        async def write_or_release(claim: Claim) -> None:
            nonlocal unread
            try:
                await write(claim)
            except UnreadMail:
                unread = True
                if self._has_unsaved_phase:  # the mail is for the conversation of that phase
                    self._latest_state = None
                await self._release_claim(claim, status=RunStatus.INTERRUPTED, strikes=self._strikes_to_keep)

        await self._finalize(write_or_release)
        return not unread

    @property
    def _has_unsaved_phase(self) -> bool:
        return self._latest_state is not None and len(self._latest_state.phases) > self._writer.watermark.phases

    @property
    def _strikes_to_keep(self) -> int:
        """The strikes of a run whose present attempt is none."""
        return self._count_strikes(is_strike=False)

    def _count_strikes(self, *, is_strike: bool) -> int:
        claim = self._writer.claim
        return 0 if self._writer.progressed or claim is None else max(0, claim.strikes - (not is_strike))

    async def fail(self, error: BaseException) -> None:
        """Record failure or cancellation. The run is kept for its retention and can be resumed by hand.

        Recovery resumes the children of a terminal run. So the children of a cancelled run are cancelled first.
        """
        cancelled = isinstance(error, RunCancelled | asyncio.CancelledError)
        text = format_error(error)
        status = RunStatus.CANCELLED if cancelled else RunStatus.FAILED
        await self._end(status, encode(Outcome(error=text, usage=self._current_usage())), reason=text)

    async def _end(self, status: RunStatus, outcome: bytes, *, reason: str = "", wake_on: Sequence[str] = ()) -> bool:
        """Keep the ended run for its retention, or remove it if that is zero. Returns False if unread mail refuses."""
        retention = self._settings.retention.of(status)
        write: _FinalWrite = partial(
            self._release_claim, status=status, reason=reason, outcome=outcome, retention=retention, wake_on=wake_on
        )
        if not retention and self._info.parent_run_id is None:
            # Released first: a message that was accepted meanwhile must not be removed with the run, and a run that
            # cannot be removed must not be executed again.
            write = partial(self._release_and_remove, write)
        else:
            await self._save_rewrite()
        # A child without a retention is kept until its parent is removed: a resumed parent reads its outcome.
        if status is RunStatus.CANCELLED:
            write = partial(self._cancel_tree, write)
        return await self._finalize_unless_mail(write)

    async def _save_rewrite(self) -> None:
        """Save a rewritten history: a release can add to the journal, but not replace it."""
        if self._latest_state is not None and is_rewritten(self._writer.watermark, self._latest_state):
            await self._save_last(self._latest_state)

    async def _release_and_remove(self, release: _FinalWrite, claim: Claim) -> None:
        await release(claim)
        try:
            await self._store.remove(self._info.run_id)
        except Exception as exc:  # a store may raise anything; the run has ended
            log.warning("run %s has ended, and is removed by the next purge: %s", self._info.run_id, exc)

    async def _cancel_tree(self, write: _FinalWrite, claim: Claim) -> None:
        if self._owner is not None:
            await self._owner.cancel_tree(self._info.run_id)
        await write(claim)

    def _current_usage(self) -> Usage:
        if self._latest_state is not None:
            return self._latest_state.usage
        progress = self._writer.progress
        return decode(progress, Progress).usage if progress else NO_USAGE

    async def _save_last(self, state: RunState) -> None:
        try:
            await self.save(state, force=True)
        except Exception as exc:  # release the claim all the same
            log.warning("run %s: the progress since its last save is lost: %s", self._info.run_id, exc)

    async def _finalize(self, write: _FinalWrite) -> None:
        if self._closed:
            return
        # A save in flight finishes first. Later saves do nothing.
        self._closed = True
        self._clear_deferred()
        try:
            await self._wait_for_write()
            if (claim := self._writer.claim) is not None:
                await self._write_alone(partial(write, claim))
        except RunLost:
            raise
        except BaseException:  # a host's own store may raise anything, and the caller may be cancelled
            # Until the release succeeds, this live worker owns the run and recovery does not take it.
            self._pending_release = write
            if self._owner is not None:
                self._owner.add_pending_release(self.retry_release)
            raise

    async def retry_release(self) -> None:
        """Repeat the release that failed. Raises what the store raises."""
        await self._wait_for_write()
        if self._pending_release is not None and self._writer.claim is not None:
            self._is_writing = True
            try:
                await self._pending_release(self._writer.claim)
                self._pending_release = None
            finally:
                self._end_write()

    async def _release_claim(
        self, claim: Claim, *, reason: str = "", outcome: bytes | None = None, **options: Unpack[ReleaseOptions]
    ) -> None:
        await self._writer.release(claim, unsaved=self._latest_state, reason=reason, outcome=outcome, **options)
