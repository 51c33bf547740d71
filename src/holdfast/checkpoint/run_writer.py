"""Writes one run to a store: creates it, appends deltas to its journal, checks and releases its claim."""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Required, TypedDict, Unpack

import msgspec

from holdfast.checkpoint.claims import Claim
from holdfast.checkpoint.codec import decode, encode
from holdfast.checkpoint.delta import Delta, Watermark
from holdfast.checkpoint.errors import StoreUnavailable, TranscriptTooLarge
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.ownership import retry_while_unavailable
from holdfast.checkpoint.progress import AttemptLog, AttemptRecord, Progress
from holdfast.checkpoint.record import NewRun, Release, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.clock import Clock
from holdfast.config import CheckpointSettings
from holdfast.core.errors import RunLost
from holdfast.core.run.info import RunInfo
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd

log = logging.getLogger("holdfast.checkpoint")

#: A successful write proves the claim for this long: no check is needed before a `once` tool starts.
CLAIM_PROOF_TTL = timedelta(seconds=1)
_PROOF_TTL_S = CLAIM_PROOF_TTL.total_seconds()


class ReleaseOptions(TypedDict, total=False):
    """How a claim ends: the fields of `Release` that do not come from the run's state."""

    status: Required[RunStatus]
    strikes: int
    delay: timedelta
    retention: timedelta | None
    wake_at: datetime | None
    wake_on: Sequence[str]


class RunWriter:
    """The claim of one run and what its store holds. Its owner makes one call at a time."""

    def __init__(
        self, store: RunStore, info: RunInfo, worker_id: str, settings: CheckpointSettings, clock: Clock
    ) -> None:
        """Make the writer of a new run. The first write puts the run into the store."""
        self._store, self._info, self._worker_id = store, info, worker_id
        self._settings, self._clock = settings, clock
        #: `None` before the first write. Its token never changes.
        self.claim: Claim | None = None
        self.watermark = Watermark()
        self.progress = b""
        self._attempts = AttemptLog.begin(worker_id, clock.now())
        #: A step was finished under this claim.
        self.progressed = False
        #: When the last delta was written.
        self.saved_at: float | None = None
        #: When the last write was sent.
        self._sent_at = 0.0
        #: Until then a write that succeeded proves the claim.
        self.proven_until = -math.inf

    def resume(self, claim: Claim, watermark: Watermark, progress: bytes, attempts: AttemptLog) -> None:
        """Continue from what the store holds."""
        self.claim, self.watermark, self.progress, self._attempts = claim, watermark, progress, attempts

    # -- saving -------------------------------------------------------------------------------------------------

    async def write(self, state: RunState, *, retry: bool) -> None:
        """Write the delta since the last successful write. The first write creates the run, claimed by the worker."""
        now = self._clock.now()
        attempts = self._attempts.at_create() if self.claim is None else self._attempts.at_save(now)
        delta = Delta(self.watermark, state, self._info, now, attempts)
        if self.claim is not None and delta.is_empty(self.watermark):
            return
        limit = self._settings.max_transcript_bytes
        if limit is not None and delta.next_watermark.size > limit:
            raise TranscriptTooLarge(self._info.run_id, delta.next_watermark.size, limit)
        try:
            await self._send(delta)
        except StoreUnavailable:
            if not retry or not self._settings.store_timeout:
                raise
            await self.retry_until_timeout(partial(self._send, delta))
        self.watermark, self.progress = delta.next_watermark, delta.progress
        if delta.consumed:
            _forget_consumed(state, delta.consumed)
        if delta.event_count:
            del state.recorded_events[: delta.event_count]  # more may have been added during the write
        self.progressed = self.progressed or delta.step_finished
        self.proven_until = self._sent_at + _PROOF_TTL_S
        self.saved_at = self._clock.monotonic()

    async def _send(self, delta: Delta) -> None:
        self._sent_at = self._clock.monotonic()
        if self.claim is None:
            self.claim = await self._create(delta)
            return
        write = Append(
            entries=delta.entries,
            progress=delta.progress,
            rewrite=delta.rewrite,
            step_finished=delta.step_finished,
            consumed=delta.consumed,
        )
        await self._store.append(self.claim, write)

    async def _create(self, delta: Delta) -> Claim:
        run = NewRun.create(self._info, delta.progress, delta.entries)
        claim = await self._store.create(run, worker_id=self._worker_id)
        if claim is None:
            # The caller follows it: a worker takes it when a slot is free.
            raise RunLost(f"run {self._info.run_id} is queued: a concurrency limit is reached")
        return claim

    # -- the claim ----------------------------------------------------------------------------------------------

    async def check_claim(self, claim: Claim) -> None:
        """Prove the claim by a fenced write without entries."""
        self._sent_at = self._clock.monotonic()
        await self._store.append(claim, Append(entries=(), progress=self.progress))
        self.proven_until = self._sent_at + _PROOF_TTL_S

    async def release(
        self,
        claim: Claim,
        *,
        unsaved: RunState | None,
        reason: str = "",
        outcome: bytes | None = None,
        **options: Unpack[ReleaseOptions],
    ) -> None:
        """End the claim, and add what is `unsaved` and the outcome to the journal in the same write."""
        now = self._clock.now()
        attempts = self._attempts.at_save(now, AttemptEnd(options["status"]))
        delta = None if unsaved is None else self._unsaved_delta(unsaved, now, attempts)
        progress = delta.progress if delta is not None else self._end_attempt(attempts)
        entries = [] if delta is None else list(delta.entries)
        if outcome is not None:
            seq = self.watermark.next_seq + len(entries)
            entries.append(Entry(seq=seq, kind=EntryKind.OUTCOME, body=outcome))
        release = Release(
            # Stores need not be able to keep half a surrogate pair or a NUL.
            reason=reason.encode(errors="replace").decode().replace("\0", "\ufffd"),
            entries=entries,
            progress=progress,
            consumed=() if delta is None else delta.consumed,
            **options,
        )
        await self._store.release(claim, release)
        if delta is not None:
            self.watermark = delta.next_watermark

    def _end_attempt(self, attempts: tuple[AttemptRecord, ...]) -> bytes | None:
        """Return the progress of the last save with the end of the present attempt; `None` if there is none."""
        if self._attempts.present is None:
            return None
        return encode(msgspec.structs.replace(decode(self.progress, Progress), attempts=attempts))

    def _unsaved_delta(self, state: RunState, now: datetime, attempts: tuple[AttemptRecord, ...]) -> Delta | None:
        """Return what is new since the last save; `None` if it cannot be appended."""
        try:
            delta = Delta(self.watermark, state, self._info, now, attempts)
        except Exception as exc:  # an adapter's codec may raise anything; release the claim all the same
            log.warning("run %s: the progress since its last save is lost: %s", self._info.run_id, exc)
            return None
        limit = self._settings.max_transcript_bytes
        is_too_large = limit is not None and delta.next_watermark.size > limit
        # The result of a turn may exceed the limit: the next turn is refused.
        if delta.rewrite or (is_too_large and not self._info.conversation):
            return None
        return delta

    # -- an unavailable store -----------------------------------------------------------------------------------

    async def retry_until_timeout(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`. Repeat it while the store is unavailable, with growing pauses, until `store_timeout`."""
        await retry_while_unavailable(work, self._settings.store_timeout, self._clock)


def _forget_consumed(state: RunState, mail_ids: Sequence[str]) -> None:
    """Forget mail that the store has consumed. More may have been taken during the write."""
    state.consumed[:] = [mail_id for mail_id in state.consumed if mail_id not in mail_ids]
