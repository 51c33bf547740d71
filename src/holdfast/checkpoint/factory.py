"""Makes runs durable: mints one handle per run, new or resumed."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from holdfast.checkpoint.claim import Claim, Worker
from holdfast.checkpoint.codec import RunMeta, read_checkpoint
from holdfast.checkpoint.delta import mark_of
from holdfast.checkpoint.errors import RunBusy, RunDamaged, RunNotFound, UndecodableRecord, UnknownVersion
from holdfast.checkpoint.handle import HandleSettings, NoCheckpointer, StoreCheckpointer
from holdfast.checkpoint.lifecycle import CLAIMABLE, Status
from holdfast.checkpoint.liveness import this_process
from holdfast.checkpoint.record import StoredRun
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.run.errors import NotKnownHere, RunLost, RunParked
from holdfast.run.info import RunInfo
from holdfast.run.message import MessageCodec
from holdfast.run.ports import Checkpointer, Finished, Resumption

log = logging.getLogger("holdfast.checkpoint")


class Checkpoints:
    """The checkpointer factory over a store; over `None`, every handle does nothing."""

    def __init__(
        self,
        store: CheckpointStore | None,
        *,
        settings: HandleSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        cancel_children: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """Make the factory.

        Args:
            cancel_children: cancels the unfinished runs below the one with this id, which is about to be cancelled.
        """
        self._store, self._clock, self._cancel_children = store, clock, cancel_children
        self._settings = settings or HandleSettings()
        self.worker_id = f"w-{secrets.token_hex(8)}"
        #: Handles of runs whose end the store would not take.
        self._unsettled: set[StoreCheckpointer] = set()
        self._opening = asyncio.Lock()
        self._open = False

    @property
    def store(self) -> CheckpointStore | None:
        return self._store

    async def open(self) -> None:
        """Open the store and enlist this process as a worker, if that has not been done. `begin` does it, too."""
        async with self._opening:
            if self._open or self._store is None:
                return
            await self._store.open()
            self.worker_id = f"w-{secrets.token_hex(8)}"
            try:
                await self._store.enlist(Worker(worker_id=self.worker_id, process=this_process()))
            except BaseException:
                await self._store.close()  # it is opened anew when somebody asks again
                raise
            self._open = True

    async def begin(self, info: RunInfo) -> Checkpointer:
        """The handle of a new run, with its meta from `info`. The handle's first save puts the run into the store."""
        if self._store is None:
            return NoCheckpointer()
        if not self._open:
            await self.open()
        return StoreCheckpointer(
            self._store,
            RunMeta.of(info),
            self.worker_id,
            settings=self._settings,
            clock=self._clock,
            keep_result=info.parent_run_id is not None,
            on_unsettled=self._unsettled.add,
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
        mark = mark_of(checkpoint.state, stored.record.next_seq, stored.record.size)
        handle = StoreCheckpointer.resumed(
            claim,
            mark,
            stored.record.progress,
            self._store,
            checkpoint.meta,
            settings=self._settings,
            clock=self._clock,
            keep_result=checkpoint.meta.submitted or checkpoint.meta.parent_run_id is not None,
            retention=retention,
            on_unsettled=self._unsettled.add,
            cancel_children=self._cancel_children,
        )
        return Resumption(info=checkpoint.meta.info(), checkpointer=handle, state=checkpoint.state)

    async def rejoin(self, info: RunInfo, codec: MessageCodec) -> Resumption | Finished | None:
        """The child run of an earlier life of its parent: claimed and loaded, or its end; `None` if there is none."""
        if self._store is None:
            return None
        try:
            stored = await self._store.load(info.run_id)
            if stored.record.over:
                outcome = read_checkpoint(stored, codec).outcome
                if outcome is not None:
                    return Finished(output=outcome.output, usage=outcome.usage, error=outcome.error)
            # Whoever drives the parent drives its children: a parked child goes on because its parent does, and a
            # worker that lost the parent has lost the child.
            statuses = {*CLAIMABLE, Status.PARKED, Status.FAILED, Status.CANCELLED}
            claim = await self._store.claim(info.run_id, self.worker_id, statuses=statuses, steal=True)
            return self.resume(claim, await self._store.load(info.run_id), codec)
        except RunNotFound:
            return None
        except (RunDamaged, UndecodableRecord) as exc:
            raise RunParked("damaged", f"a child run cannot be read: {exc}") from exc
        except UnknownVersion as exc:
            raise NotKnownHere(f"a child run cannot be read here: {exc}") from exc

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Remove finished children whose results are safe with their parent."""
        if self._store is None:
            return
        for run_id in run_ids:
            try:
                await self._store.remove(run_id)
            except RunBusy:
                continue  # it is being driven again; it goes with its parent

    async def settle_again(self) -> None:
        """Repeat what the store would not take when a run ended: else the run stays with this worker for ever."""
        for handle in list(self._unsettled):
            try:
                await handle.settle_again()
            except RunLost:
                pass  # somebody else has it: so it is looked after
            except Exception as exc:  # a host's own store may raise anything
                log.warning("the store still does not take the end of a run: %s", exc)
                continue
            self._unsettled.discard(handle)

    async def close(self) -> None:
        """Offer the ends again that the store would not take, discharge this worker, and close the store."""
        if self._store is not None and self._open:
            self._open = False
            try:
                # Before the discharge: after it, a run that is over would be found interrupted.
                await self.settle_again()
                await self._store.discharge(self.worker_id)
            finally:
                await self._store.close()
