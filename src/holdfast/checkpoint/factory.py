"""Makes runs durable: mints one handle per run, new or resumed."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial

from holdfast.checkpoint.checkpointer import NullCheckpointer, StoreCheckpointer
from holdfast.checkpoint.claim import Claim, WorkerIdentity, this_process
from holdfast.checkpoint.claiming import restore_previous, run_in_background
from holdfast.checkpoint.codec import RunMeta, read_checkpoint
from holdfast.checkpoint.delta import make_watermark
from holdfast.checkpoint.errors import RecordDecodeError, RunBusy, RunDamaged, RunNotFound, StoreClosed, UnknownVersion
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, Release, RunStatus, StoredRun
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.config import CheckpointSettings
from holdfast.core.errors import MissingDefinition, RunLost, RunParked
from holdfast.core.info import RunInfo
from holdfast.core.message import MessageCodec
from holdfast.core.ports import Checkpointer, ChildOutcome, Resumption

log = logging.getLogger("holdfast.checkpoint")

#: A child, and what leaves it as it was if it was claimed.
_LoadedChild = tuple[Resumption | ChildOutcome | None, Callable[[], Awaitable[None]] | None]


class StoreCheckpoints:
    """The checkpointer factory over a store; over `None`, every handle does nothing."""

    def __init__(
        self,
        store: CheckpointStore | None,
        *,
        settings: CheckpointSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        cancel_children: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """Make the factory.

        Args:
            cancel_children: cancels the unfinished runs below the one with this id, which is about to be cancelled.
        """
        self._store, self._clock, self._cancel_children = store, clock, cancel_children
        self._settings = settings or CheckpointSettings()
        self.worker_id = f"w-{secrets.token_hex(8)}"
        #: What the store has not taken yet of runs that nobody here drives any more.
        self._pending_releases: set[Callable[[], Awaitable[None]]] = set()
        #: Of children that were claimed, or are about to be, for a caller that was cancelled.
        self._child_releases: dict[str, asyncio.Task[None]] = {}
        self._open_lock = asyncio.Lock()
        self._is_open = False

    @property
    def store(self) -> CheckpointStore | None:
        return self._store

    async def open(self) -> None:
        """Open the store and enlist this process as a worker, if that has not been done. `begin` does it, too."""
        async with self._open_lock:
            if self._is_open or self._store is None:
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
        if self._store is None:
            return NullCheckpointer()
        if not self._is_open:
            await self.open()
        return StoreCheckpointer(
            self._store,
            RunMeta.from_info(info),
            self.worker_id,
            settings=self._settings,
            clock=self._clock,
            keep_result=info.parent_run_id is not None,
            on_release_failed=self._pending_releases.add,
            cancel_children=self._cancel_children,
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
        assert self._store is not None, "a claim comes from a store"
        checkpoint = read_checkpoint(stored, codec)
        mark = make_watermark(checkpoint.state, stored.record.next_seq, stored.record.size)
        handle = StoreCheckpointer.resume(
            claim,
            mark,
            stored.record.progress,
            self._store,
            checkpoint.meta,
            settings=self._settings,
            clock=self._clock,
            keep_result=checkpoint.meta.submitted or checkpoint.meta.parent_run_id is not None,
            retention=retention,
            on_release_failed=self._pending_releases.add,
            cancel_children=self._cancel_children,
        )
        return Resumption(info=checkpoint.meta.to_info(), checkpointer=handle, state=checkpoint.state)

    async def attach_child(self, info: RunInfo, codec: MessageCodec) -> Resumption | ChildOutcome | None:
        """The child run of an earlier life of its parent: claimed and loaded, or its end; `None` if there is none.

        If the caller is cancelled meanwhile, the child is left as it was as soon as the store has answered.
        """
        if self._store is None:
            return None
        await self._wait_for_pending_release(info.run_id)
        meeting = asyncio.ensure_future(self._load_child(info, codec))
        try:
            return (await asyncio.shield(meeting))[0]
        except asyncio.CancelledError:
            self._child_releases[info.run_id] = run_in_background(self._release_after_cancel(info.run_id, meeting))
            raise

    async def _load_child(self, info: RunInfo, codec: MessageCodec) -> _LoadedChild:
        """What `rejoin` gives, and what leaves the child as it was."""
        assert self._store is not None
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
            undo = partial(self.release_claim, claim, restore_previous(stored.record, claim, self._clock.now()))
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
        if self._store is None:
            return
        for run_id in run_ids:
            await self._wait_for_pending_release(run_id)
            try:
                await self._store.remove(run_id)
            except RunBusy:
                continue  # it is being driven again; it goes with its parent

    async def release(self, claim: Claim, release: Release) -> None:
        """End a claim that has no handle. What the store does not take, `settle_again` repeats."""
        assert self._store is not None, "a claim comes from a store"
        owed = partial(self._store.release, claim, release)
        self._pending_releases.add(owed)  # first: this may be cancelled, or be under way when the store is closed
        await owed()
        self._pending_releases.discard(owed)

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
        for owed in list(self._pending_releases):
            try:
                await owed()
            except RunLost:
                pass  # somebody else has it: so it is looked after
            except Exception as exc:  # a host's own store may raise anything
                log.warning("the store still does not take the end of a run: %s", exc)
                continue
            self._pending_releases.discard(owed)

    async def close(self) -> None:
        """Offer the ends again that the store would not take, discharge this worker, and close the store."""
        if self._store is not None and self._is_open:
            self._is_open = False
            try:
                # Before the discharge: after it, a run that is over would be found interrupted.
                await self.retry_pending_releases()
                await self._store.deregister_worker(self.worker_id)
            finally:
                await self._store.close()
