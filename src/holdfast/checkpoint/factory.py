"""Makes runs durable: mints one handle per run, new or resumed."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial

from holdfast.checkpoint.claim import Claim, Worker
from holdfast.checkpoint.claiming import as_it_was, in_background
from holdfast.checkpoint.codec import RunMeta, read_checkpoint
from holdfast.checkpoint.delta import mark_of
from holdfast.checkpoint.errors import RunBusy, RunDamaged, RunNotFound, StoreClosed, UndecodableRecord, UnknownVersion
from holdfast.checkpoint.handle import HandleSettings, NoCheckpointer, StoreCheckpointer
from holdfast.checkpoint.lifecycle import CLAIMABLE, Status
from holdfast.checkpoint.liveness import this_process
from holdfast.checkpoint.record import Ending, StoredRun
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.run.errors import NotKnownHere, RunLost, RunParked
from holdfast.run.info import RunInfo
from holdfast.run.message import MessageCodec
from holdfast.run.ports import Checkpointer, Finished, Resumption

log = logging.getLogger("holdfast.checkpoint")

#: A child, and what leaves it as it was if it was claimed.
_Met = tuple[Resumption | Finished | None, Callable[[], Awaitable[None]] | None]


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
        #: What the store has not taken yet of runs that nobody here drives any more.
        self._unsettled: set[Callable[[], Awaitable[None]]] = set()
        #: Of children that were claimed, or are about to be, for a caller that was cancelled.
        self._leaving: dict[str, asyncio.Task[None]] = {}
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
        """The child run of an earlier life of its parent: claimed and loaded, or its end; `None` if there is none.

        If the caller is cancelled meanwhile, the child is left as it was as soon as the store has answered.
        """
        if self._store is None:
            return None
        await self._left_alone(info.run_id)
        meeting = asyncio.ensure_future(self._meet(info, codec))
        try:
            return (await asyncio.shield(meeting))[0]
        except asyncio.CancelledError:
            self._leaving[info.run_id] = in_background(self._leave(info.run_id, meeting))
            raise

    async def _meet(self, info: RunInfo, codec: MessageCodec) -> _Met:
        """What `rejoin` gives, and what leaves the child as it was."""
        assert self._store is not None
        try:
            stored = await self._store.load(info.run_id)
            if stored.record.over:
                outcome = read_checkpoint(stored, codec).outcome
                if outcome is not None:
                    return Finished(output=outcome.output, usage=outcome.usage, error=outcome.error), None
            # Whoever drives the parent drives its children: a parked child goes on because its parent does, and a
            # worker that lost the parent has lost the child.
            statuses = {*CLAIMABLE, Status.PARKED, Status.FAILED, Status.CANCELLED}
            claim = await self._store.claim(info.run_id, self.worker_id, statuses=statuses, steal=True)
            undo = partial(self.give_back, claim, as_it_was(stored.record, claim, self._clock.now()))
            try:
                return self.resume(claim, await self._store.load(info.run_id), codec), undo
            except Exception:
                await undo()
                raise
        except RunNotFound:
            return None, None
        except (RunDamaged, UndecodableRecord) as exc:
            raise RunParked("damaged", f"a child run cannot be read: {exc}") from exc
        except UnknownVersion as exc:
            raise NotKnownHere(f"a child run cannot be read here: {exc}") from exc

    async def _leave(self, run_id: str, meeting: "asyncio.Future[_Met]") -> None:
        try:
            await asyncio.wait([meeting])
            if not meeting.cancelled() and meeting.exception() is None and (undo := meeting.result()[1]) is not None:
                await undo()
        finally:
            self._leaving.pop(run_id, None)

    async def _left_alone(self, run_id: str) -> None:
        """Return once no cancelled `rejoin` is about to claim this run, or to give it back."""
        if (leaving := self._leaving.get(run_id)) is not None:
            await asyncio.wait([leaving])

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Remove finished children whose results are safe with their parent."""
        if self._store is None:
            return
        for run_id in run_ids:
            await self._left_alone(run_id)
            try:
                await self._store.remove(run_id)
            except RunBusy:
                continue  # it is being driven again; it goes with its parent

    async def settle(self, claim: Claim, ending: Ending) -> None:
        """End a claim that has no handle. What the store does not take, `settle_again` repeats."""
        assert self._store is not None, "a claim comes from a store"
        owed = partial(self._store.settle, claim, ending)
        self._unsettled.add(owed)  # first: this may be cancelled, or be under way when the store is closed
        await owed()
        self._unsettled.discard(owed)

    async def give_back(self, claim: Claim, ending: Ending) -> None:
        """End the claim on a run that nobody here goes on with. Trouble with the store is logged, and tried again."""
        try:
            await self.settle(claim, ending)
        except (RunLost, StoreClosed):
            pass  # somebody else has it, or will have it when this process has ended
        except Exception as exc:  # a host's own store may raise anything
            log.warning("run %s stays claimed by this worker until the store takes it back: %s", claim.run_id, exc)

    async def settle_again(self) -> None:
        """Repeat what the store would not take when a run ended: else the run stays with this worker for ever."""
        for owed in list(self._unsettled):
            try:
                await owed()
            except RunLost:
                pass  # somebody else has it: so it is looked after
            except Exception as exc:  # a host's own store may raise anything
                log.warning("the store still does not take the end of a run: %s", exc)
                continue
            self._unsettled.discard(owed)

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
