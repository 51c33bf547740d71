"""Makes the checkpointers of new, resumed and child runs, and keeps decoded journals of recent conversations."""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from holdfast.checkpoint.checkpointer import NullCheckpointer, StoreCheckpointer
from holdfast.checkpoint.claims import Claim, WorkerIdentity, this_process
from holdfast.checkpoint.codec import DecodedRun, decode, decode_begin, decode_run, make_state
from holdfast.checkpoint.delta import StoredTurns, Watermark, make_watermark
from holdfast.checkpoint.errors import (
    RecordDecodeError,
    RunBusy,
    RunDamaged,
    RunNotClaimable,
    RunNotFound,
    StoreClosed,
    UnknownVersion,
)
from holdfast.checkpoint.progress import AttemptLog, Progress
from holdfast.checkpoint.record import (
    CLAIMABLE_STATUSES,
    Release,
    RunFilter,
    RunRecord,
    RunStatus,
    StoredRun,
    restore_previous,
)
from holdfast.checkpoint.store import RunStore
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.concurrency import run_in_background, shielded_with_undo
from holdfast.config import CheckpointSettings
from holdfast.core.errors import MissingDefinition, RunCancelled, RunLost, RunParked
from holdfast.core.ports import Checkpointer, ChildOutcome, Resumption
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import MessageCodec
from holdfast.core.run.state import RunState
from holdfast.core.run.turns import TurnRecord

#: How many conversations are kept, and how many bytes their journals have in all.
_MAX_CONVERSATIONS = 128
_MAX_BYTES = 32 * 2**20


class _Journal(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a journal between two turns."""

    created_at: datetime
    next_seq: int
    size: int
    info: RunInfo
    messages: list[Any]
    turns: list[TurnRecord]

    def is_current(self, record: RunRecord) -> bool:
        """Whether the stored journal has not changed: every write to it increases `next_seq`."""
        return (record.created_at, record.next_seq) == (self.created_at, self.next_seq)


class RecentConversations:
    """Keeps the journals of conversations that wait for their next message, the least recently used ones up to a limit.

    A turn of 2 KB in a conversation of 200 turns takes a third of the time that it takes with a load of the journal.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._journals: OrderedDict[str, _Journal] = OrderedDict()
        self._size = 0

    def put(self, info: RunInfo, state: RunState, created_at: datetime, next_seq: int, size: int) -> None:
        """Keep a conversation whose turn has ended, as the store has it."""
        journal = _Journal(
            created_at=created_at,
            next_seq=next_seq,
            size=size,
            info=info,
            messages=list(state.history),
            turns=state.turns,
        )
        self._remove(info.run_id)
        self._journals[info.run_id] = journal
        self._size += size
        while len(self._journals) > _MAX_CONVERSATIONS or self._size > _MAX_BYTES:
            self._remove(next(iter(self._journals)))

    def _remove(self, run_id: str) -> None:
        journal = self._journals.pop(run_id, None)
        self._size -= journal.size if journal is not None else 0

    async def load(self, run_id: str) -> StoredRun:
        """Load a run, without the entries that are known. Raises as `RunStore.load`."""
        journal = self._journals.get(run_id)
        if journal is not None:
            stored = await self._store.load(run_id, after=journal.next_seq - 1)
            if journal.is_current(stored.record):
                return stored
            self._remove(run_id)
        return await self._store.load(run_id)

    def read(self, stored: StoredRun, codec: MessageCodec) -> DecodedRun | None:
        """Return the checkpoint of a run that was loaded without its entries."""
        journal = self._journals.get(stored.record.run_id)
        if stored.entries or journal is None or not journal.is_current(stored.record):
            return None
        progress = decode(stored.record.progress, Progress)
        state = make_state(codec, progress, list(journal.messages), list(journal.turns))
        return DecodedRun(info=journal.info, state=state)


log: logging.Logger = logging.getLogger("holdfast.checkpoint")

#: A child run, and the release that undoes its claim.
_LoadedChild = tuple[Resumption | ChildOutcome | None, Callable[[], Awaitable[None]] | None]


class StoreCheckpoints:
    """Makes the checkpointers of a store, and registers this process as one of its workers."""

    def __init__(
        self,
        store: RunStore,
        *,
        settings: CheckpointSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store, self._clock = store, clock
        self._settings = settings or CheckpointSettings()
        self.worker_id: str = f"w-{secrets.token_hex(8)}"
        #: Failed releases of runs that this process no longer executes.
        self._pending_releases: set[Callable[[], Awaitable[None]]] = set()
        self._retry: asyncio.Task[None] | None = None
        #: By run id: releases of children whose caller was cancelled while they were being claimed.
        self._child_releases: dict[str, asyncio.Task[None]] = {}
        self._recent = RecentConversations(store)
        self._open_lock = asyncio.Lock()
        self._is_open = False

    @property
    def store(self) -> RunStore:
        return self._store

    async def open(self) -> None:
        """Open the store and register this process as a worker. Does nothing if it is open. `begin` calls this too."""
        async with self._open_lock:
            if self._is_open:
                return
            await self._store.open()
            self.worker_id = f"w-{secrets.token_hex(8)}"
            try:
                await self._store.register_worker(WorkerIdentity(worker_id=self.worker_id, process=this_process()))
            except BaseException:
                await self._store.close()  # the next call opens it again
                raise
            self._is_open = True

    async def begin(self, info: RunInfo) -> Checkpointer:
        """Return the checkpointer of a new run. Its first save puts the run into the store."""
        if not self._is_open:
            await self.open()
        return StoreCheckpointer(
            self._store,
            info,
            self.worker_id,
            settings=self._settings,
            clock=self._clock,
            owner=self,
        )

    async def load(self, run_id: str) -> StoredRun:
        """Load a run for `resume`: without its journal, if this process has it from the last turn of a conversation.

        Raises:
            CheckpointError: as `RunStore.load`.
        """
        return await self._recent.load(run_id)

    def keep_journal(self, info: RunInfo, state: RunState, created_at: datetime, watermark: Watermark) -> None:
        """Keep the decoded journal of a conversation for its next turn."""
        self._recent.put(info, state, created_at, watermark.next_seq, watermark.size)

    def resume(self, claim: Claim, stored: StoredRun, codec: MessageCodec, *, executes: bool = True) -> Resumption:
        """Read a claimed run so that it can be resumed, or only changed if this process does not execute it.

        Raises:
            CheckpointError: the run cannot be read. It was left unchanged.
        """
        checkpoint = self._recent.read(stored, codec) or decode_run(stored, codec)
        progress = decode(stored.record.progress, Progress)
        turns = StoredTurns.from_progress(progress)
        watermark = make_watermark(checkpoint.state, stored.record.next_seq, stored.record.size, turns)
        attempts = AttemptLog(earlier=progress.attempts)
        if executes:
            attempts = AttemptLog.resume(claim, self._clock.now(), progress.attempts)
        checkpointer = self._open_checkpointer(
            claim, stored, checkpoint.info, watermark, checkpoint.state, attempts=attempts
        )
        return Resumption(
            info=checkpoint.info,
            checkpointer=checkpointer,
            state=checkpoint.state,
            mail=tuple(stored.mail),
            taken_from=claim.taken_from,
        )

    def _open_checkpointer(
        self,
        claim: Claim,
        stored: StoredRun,
        info: RunInfo,
        watermark: Watermark,
        state: RunState | None = None,
        *,
        attempts: AttemptLog,
    ) -> StoreCheckpointer:
        return StoreCheckpointer.resume(
            claim,
            watermark,
            stored.record,
            self._store,
            info,
            state=state,
            attempts=attempts,
            settings=self._settings,
            clock=self._clock,
            owner=self,
        )

    async def attach_child(self, info: RunInfo, codec: MessageCodec) -> Resumption | ChildOutcome | None:
        """Return the child run of an earlier attempt of its parent: claimed and loaded, or its outcome, or `None`.

        If the caller is cancelled while the claim is in flight, the claim is undone when it arrives.
        """
        await self._wait_for_pending_release(info.run_id)
        loading = asyncio.ensure_future(self._load_child(info, codec))
        try:
            return (await asyncio.shield(loading))[0]
        except asyncio.CancelledError:
            self._child_releases[info.run_id] = run_in_background(self._release_after_cancel(info.run_id, loading))
            raise

    async def _load_child(self, info: RunInfo, codec: MessageCodec) -> _LoadedChild:
        """Claim and load a child run. Return it with the release that undoes the claim."""
        try:
            stored = await self._store.load(info.run_id)
            if stored.record.is_terminal:
                outcome = decode_run(stored, codec).outcome
                if outcome is not None:
                    return ChildOutcome(output=outcome.output, usage=outcome.usage, error=outcome.error), None
            # The owner of the parent owns its children: a parked child resumes with its parent, and a worker that
            # lost the parent has lost the child.
            statuses = {
                *CLAIMABLE_STATUSES,
                *(RunStatus.WAITING, RunStatus.PARKED, RunStatus.FAILED, RunStatus.CANCELLED),
            }
            claim = await self._store.claim(info.run_id, self.worker_id, statuses=statuses, steal=True)
            undo = partial(self.release_claim, claim, restore_previous(claim, stored.record, now=self._clock.now()))
            try:
                return self.resume(claim, await self._store.load(info.run_id), codec), undo
            except Exception:
                await undo()
                raise
        except RunNotFound:
            return None, None
        except (RunDamaged, RecordDecodeError) as exc:
            raise RunParked("damaged", f"a child run cannot be read: {exc}") from exc
        except UnknownVersion as exc:
            raise MissingDefinition(f"a child run cannot be read here: {exc}") from exc

    async def _release_after_cancel(self, run_id: str, loading: "asyncio.Future[_LoadedChild]") -> None:
        try:
            await asyncio.wait([loading])
            if not loading.cancelled() and loading.exception() is None and (undo := loading.result()[1]) is not None:
                await undo()
        finally:
            self._child_releases.pop(run_id, None)

    async def _wait_for_pending_release(self, run_id: str) -> None:
        """Wait until no cancelled `attach_child` can claim or release this run any more."""
        if (release := self._child_releases.get(run_id)) is not None:
            await asyncio.wait([release])

    async def cancel(self, run_id: str) -> None:
        """Cancel a run without a live owner, or ask its owner to. Its unfinished child runs are cancelled first.

        Raises:
            RunNotFound: there is no such run. RunNotClaimable: it is terminal already.
        """
        try:
            claim, undo = await self._claim_to_cancel(run_id)
        except RunBusy:
            await self._store.request_cancel(run_id)
            return
        try:
            await self.cancel_children(run_id)
            stored = await self._store.load(run_id)
            info, watermark = decode_begin(stored).info, Watermark(next_seq=stored.record.next_seq)
        except (RunDamaged, RecordDecodeError, UnknownVersion) as exc:
            await self.release(claim, self.make_cancelled(f"cancelled; {exc}"))
        except asyncio.CancelledError:
            run_in_background(self.release_claim(claim, undo))
            raise
        except BaseException:
            await self.release_claim(claim, undo)
            raise
        else:
            checkpointer = self._open_checkpointer(claim, stored, info, watermark, attempts=AttemptLog())
            await checkpointer.fail(RunCancelled(f"run {run_id} was cancelled"))

    def make_cancelled(self, reason: str) -> Release:
        """Return the release that records a cancel without an outcome."""
        return Release(status=RunStatus.CANCELLED, reason=reason, retention=self._settings.retention.cancelled)

    async def _claim_to_cancel(self, run_id: str) -> tuple[Claim, Release]:
        """Claim a run without a live owner. Returns the claim, and the release that undoes it."""
        try:
            claim = await shielded_with_undo(self._store.claim(run_id, self.worker_id), self._restore)
        except RunNotClaimable as exc:
            if exc.status not in (RunStatus.PARKED, RunStatus.WAITING):
                raise
            record = await self._store.get_record(run_id)
            waited = Release(
                status=RunStatus(exc.status), reason=record.reason, wake_at=record.wake_at, wake_on=record.wake_on
            )
            return await self.claim_with_undo(run_id, waited.status, waited), waited
        return claim, restore_previous(claim)

    async def _restore(self, claim: Claim) -> None:
        await self.release_claim(claim, restore_previous(claim))

    async def claim_with_undo(self, run_id: str, status: RunStatus, undo: Release) -> Claim:
        """Claim a run of this status. If the caller is cancelled meanwhile, end the claim with `undo`."""
        claiming = self._store.claim(run_id, self.worker_id, statuses={status})
        return await shielded_with_undo(claiming, partial(self.release_claim, release=undo))

    async def cancel_children(self, run_id: str, *, continues: bool = False) -> None:
        """Cancel the unfinished children of a run that the caller has claimed and will cancel next, or that continues.

        Recovery leaves them alone meanwhile, because their parent is not terminal. If this process dies half-way,
        the recorded cancel request makes the next owner cancel the run.
        """
        children = [child async for child in self._store.list_runs(RunFilter(parent_run_id=run_id))]
        if children and not continues:
            await self._store.request_cancel(run_id)
        for child in children:
            if child.is_terminal:
                await self.cancel_children(child.run_id)
                continue
            with suppress(RunNotFound, RunNotClaimable):  # it has ended meanwhile
                await self.cancel(child.run_id)

    def add_pending_release(self, retry: Callable[[], Awaitable[None]]) -> None:
        """Register `retry` with `retry_pending_releases`."""
        self._pending_releases.add(retry)

    async def release(self, claim: Claim, release: Release) -> None:
        """Release a claim that has no checkpointer. `retry_pending_releases` repeats a release that failed."""
        write = partial(self._store.release, claim, release)
        self._pending_releases.add(write)  # first: this call may be cancelled, or run while the store closes
        await write()
        self._pending_releases.discard(write)

    async def release_claim(self, claim: Claim, release: Release) -> None:
        """Release a claim that this process will not use. A store error is logged, and the release is retried later."""
        try:
            await self.release(claim, release)
        except (RunLost, StoreClosed):
            pass  # another worker owns the run, or will once this worker is deregistered
        except Exception as exc:  # a host's own store may raise anything
            log.warning("run %s: could not release its claim, will retry: %s", claim.run_id, exc)

    async def retry_pending_releases(self) -> None:
        """Repeat the releases that failed. Until they succeed, this live worker owns runs that it does not execute.

        A retry outlives its caller, and there is one at a time: half of a cancelled tree would be left to recovery.
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
            self._pending_releases.discard(write)

    async def close(self, *, keep_claims: bool = False) -> None:
        """Retry failed releases, deregister this worker unless it keeps claims, and close the store."""
        if self._is_open:
            self._is_open = False
            try:
                # Before deregistering: after it, a run that has ended would count as interrupted.
                if self._retry is not None:
                    await asyncio.wait([self._retry])  # it may not know of the releases that failed last
                await self.retry_pending_releases()
                if not keep_claims:
                    await self._store.deregister_worker(self.worker_id)
            finally:
                await self._store.close()


class NullCheckpoints:
    """The checkpointer factory without a store: its checkpointers do nothing."""

    async def begin(self, info: RunInfo) -> Checkpointer:
        return NullCheckpointer()

    async def attach_child(self, info: RunInfo, codec: MessageCodec) -> Resumption | ChildOutcome | None:
        return None

    async def close(self, *, keep_claims: bool = False) -> None:
        return
