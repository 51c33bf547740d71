"""Makes runs durable: mints one handle per run, new or resumed."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

from holdfast.checkpoint.checkpointer import NullCheckpointer, StoreCheckpointer
from holdfast.checkpoint.claim import Claim, WorkerIdentity, this_process
from holdfast.checkpoint.codec import RunMeta, read_begin, read_checkpoint
from holdfast.checkpoint.delta import Watermark, make_watermark
from holdfast.checkpoint.errors import (
    RecordDecodeError,
    RunBusy,
    RunDamaged,
    RunNotClaimable,
    RunNotFound,
    StoreClosed,
    UnknownVersion,
)
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, Release, RunFilter, RunStatus, StoredRun, restore_previous
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.concurrency import run_in_background, shielded_with_undo
from holdfast.config import CheckpointSettings
from holdfast.core.errors import MissingDefinition, RunCancelled, RunLost, RunParked
from holdfast.core.info import RunInfo
from holdfast.core.message import MessageCodec
from holdfast.core.ports import Checkpointer, ChildOutcome, Resumption

log = logging.getLogger("holdfast.checkpoint")

#: A child, and what leaves it as it was if it was claimed.
_LoadedChild = tuple[Resumption | ChildOutcome | None, Callable[[], Awaitable[None]] | None]


class StoreCheckpoints:
    """The checkpointer factory of a store, and this process as a worker of it."""

    def __init__(
        self,
        store: CheckpointStore,
        *,
        settings: CheckpointSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store, self._clock = store, clock
        self._settings = settings or CheckpointSettings()
        self.worker_id = f"w-{secrets.token_hex(8)}"
        #: What the store has not taken yet of runs that nobody here drives any more.
        self._pending_releases: set[Callable[[], Awaitable[None]]] = set()
        #: Of children that were claimed, or are about to be, for a caller that was cancelled.
        self._child_releases: dict[str, asyncio.Task[None]] = {}
        self._open_lock = asyncio.Lock()
        self._is_open = False

    @property
    def store(self) -> CheckpointStore:
        return self._store

    async def open(self) -> None:
        """Open the store and enlist this process as a worker, if that has not been done. `begin` does it, too."""
        async with self._open_lock:
            if self._is_open:
                return
            await self._store.open()
            self.worker_id = f"w-{secrets.token_hex(8)}"
            try:
                await self._store.register_worker(WorkerIdentity(worker_id=self.worker_id, process=this_process()))
            except BaseException:
                await self._store.close()  # it is opened anew when somebody asks again
                raise
            self._is_open = True

    async def begin(self, info: RunInfo) -> Checkpointer:
        """The handle of a new run, with its meta from `info`. The handle's first save puts the run into the store."""
        if not self._is_open:
            await self.open()
        return StoreCheckpointer(
            self._store,
            RunMeta.from_info(info),
            self.worker_id,
            settings=self._settings,
            clock=self._clock,
            keep_result=info.parent_run_id is not None,
            owner=self,
        )

    def resume(
        self,
        claim: Claim,
        stored: StoredRun,
        codec: MessageCodec,
        *,
        retention: timedelta | None = None,
    ) -> Resumption:
        """What it takes to go on with a claimed run.

        Raises:
            CheckpointError: what is stored cannot be read. It was left untouched.
        """
        checkpoint = read_checkpoint(stored, codec)
        mark = make_watermark(checkpoint.state, stored.record.next_seq, stored.record.size)
        checkpointer = self._open_checkpointer(claim, stored, checkpoint.meta, mark, retention)
        return Resumption(info=checkpoint.meta.to_info(), checkpointer=checkpointer, state=checkpoint.state)

    def _open_checkpointer(
        self, claim: Claim, stored: StoredRun, meta: RunMeta, watermark: Watermark, retention: timedelta | None
    ) -> StoreCheckpointer:
        return StoreCheckpointer.resume(
            claim,
            watermark,
            stored.record.progress,
            self._store,
            meta,
            settings=self._settings,
            clock=self._clock,
            keep_result=meta.submitted or meta.parent_run_id is not None,
            retention=retention,
            owner=self,
        )

    async def attach_child(self, info: RunInfo, codec: MessageCodec) -> Resumption | ChildOutcome | None:
        """The child run of an earlier life of its parent: claimed and loaded, or its end; `None` if there is none.

        If the caller is cancelled meanwhile, the child is left as it was as soon as the store has answered.
        """
        await self._wait_for_pending_release(info.run_id)
        meeting = asyncio.ensure_future(self._load_child(info, codec))
        try:
            return (await asyncio.shield(meeting))[0]
        except asyncio.CancelledError:
            self._child_releases[info.run_id] = run_in_background(self._release_after_cancel(info.run_id, meeting))
            raise

    async def _load_child(self, info: RunInfo, codec: MessageCodec) -> _LoadedChild:
        """What `rejoin` gives, and what leaves the child as it was."""
        try:
            stored = await self._store.load(info.run_id)
            if stored.record.is_terminal:
                outcome = read_checkpoint(stored, codec).outcome
                if outcome is not None:
                    return ChildOutcome(output=outcome.output, usage=outcome.usage, error=outcome.error), None
            # Whoever drives the parent drives its children: a parked child goes on because its parent does, and a
            # worker that lost the parent has lost the child.
            statuses = {*CLAIMABLE_STATUSES, RunStatus.PARKED, RunStatus.FAILED, RunStatus.CANCELLED}
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
        """Return once no cancelled `rejoin` is about to claim this run, or to give it back."""
        if (leaving := self._child_releases.get(run_id)) is not None:
            await asyncio.wait([leaving])

    async def discard_children(self, run_ids: Sequence[str]) -> None:
        """Remove finished children whose results are safe with their parent."""
        for run_id in run_ids:
            await self._wait_for_pending_release(run_id)
            try:
                await self._store.remove(run_id)
            except RunBusy:
                continue  # it is being driven again; it goes with its parent

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
        retention = self._settings.result_retention
        try:
            await self.cancel_children(run_id)
            stored = await self._store.load(run_id)
            meta, watermark = read_begin(stored).meta, Watermark(next_seq=stored.record.next_seq)
        except (RunDamaged, RecordDecodeError, UnknownVersion) as exc:
            # It is unknown whether a caller waits for the result, so keep the cancelled run for a while.
            ending = Release(status=RunStatus.CANCELLED, reason=f"cancelled; {exc}", retention=retention)
            await self.release(claim, ending)
        except asyncio.CancelledError:
            run_in_background(self.release_claim(claim, undo))
            raise
        except BaseException:
            await self.release_claim(claim, undo)
            raise
        else:
            checkpointer = self._open_checkpointer(claim, stored, meta, watermark, retention)
            await checkpointer.fail(RunCancelled(f"run {run_id} was cancelled"))

    async def _claim_to_cancel(self, run_id: str) -> tuple[Claim, Release]:
        """Claim a run without a live owner. Returns the claim, and the release that undoes it."""
        try:
            claim = await shielded_with_undo(self._store.claim(run_id, self.worker_id), self._restore)
        except RunNotClaimable as exc:
            if exc.status != RunStatus.PARKED:
                raise
            parked = Release(status=RunStatus.PARKED, reason=exc.reason)
            return await self.claim_with_undo(run_id, RunStatus.PARKED, parked), parked
        return claim, restore_previous(claim)

    async def _restore(self, claim: Claim) -> None:
        await self.release_claim(claim, restore_previous(claim))

    async def claim_with_undo(self, run_id: str, status: RunStatus, undo: Release) -> Claim:
        """Claim a run of this status. If the caller is cancelled meanwhile, end the claim with `undo`."""
        taking = self._store.claim(run_id, self.worker_id, statuses={status})
        return await shielded_with_undo(taking, partial(self.release_claim, release=undo))

    async def cancel_children(self, run_id: str) -> None:
        """Cancel the unfinished child runs of a run that the caller has claimed, and cancels after them.

        Until then recovery does not take them, because their parent is not finished. If this process dies half-way,
        the next owner of the run cancels it: the request stays recorded.
        """
        children = [child async for child in self._store.list_runs(RunFilter(parent_run_id=run_id))]
        if children:
            await self._store.request_cancel(run_id)
        for child in children:
            if child.is_terminal:
                await self.cancel_children(child.run_id)
                continue
            with suppress(RunNotFound, RunNotClaimable):  # it has ended meanwhile
                await self.cancel(child.run_id)

    def add_pending_release(self, retry: Callable[[], Awaitable[None]]) -> None:
        """Have `retry_pending_releases` call `retry`."""
        self._pending_releases.add(retry)

    async def release(self, claim: Claim, release: Release) -> None:
        """End a claim that has no handle. What the store does not take, `settle_again` repeats."""
        write = partial(self._store.release, claim, release)
        self._pending_releases.add(write)  # first: this call may be cancelled, or run while the store closes
        await write()
        self._pending_releases.discard(write)

    async def release_claim(self, claim: Claim, release: Release) -> None:
        """End the claim on a run that nobody here goes on with. Trouble with the store is logged, and tried again."""
        try:
            await self.release(claim, release)
        except (RunLost, StoreClosed):
            pass  # somebody else has it, or will have it when this process has ended
        except Exception as exc:  # a host's own store may raise anything
            log.warning("run %s stays claimed by this worker until the store takes it back: %s", claim.run_id, exc)

    async def retry_pending_releases(self) -> None:
        """Repeat what the store would not take when a run ended: else the run stays with this worker for ever."""
        for write in list(self._pending_releases):
            try:
                await write()
            except RunLost:
                pass  # another worker owns the run
            except Exception as exc:  # a host's own store may raise anything
                log.warning("the store still does not take the end of a run: %s", exc)
                continue
            self._pending_releases.discard(write)

    async def close(self) -> None:
        """Offer the ends again that the store would not take, discharge this worker, and close the store."""
        if self._is_open:
            self._is_open = False
            try:
                # Before the discharge: after it, a run that is over would be found interrupted.
                await self.retry_pending_releases()
                await self._store.deregister_worker(self.worker_id)
            finally:
                await self._store.close()


class NullCheckpoints:
    """The checkpointer factory without a store: its checkpointers do nothing."""

    async def begin(self, info: RunInfo) -> Checkpointer:
        return NullCheckpointer()

    async def attach_child(self, info: RunInfo, codec: MessageCodec) -> Resumption | ChildOutcome | None:
        return None

    async def discard_children(self, run_ids: Sequence[str]) -> None:
        return

    async def close(self) -> None:
        return
