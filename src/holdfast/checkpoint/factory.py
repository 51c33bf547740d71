"""Makes the checkpointers of new, resumed and child runs, and keeps decoded journals of recent conversations."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from holdfast.checkpoint.checkpointer import StoreCheckpointer
from holdfast.checkpoint.claims import Claims, cancel_children
from holdfast.checkpoint.codec import RecentConversations, decode, decode_run
from holdfast.checkpoint.delta import StoredTurns, make_watermark
from holdfast.checkpoint.errors import (
    RecordDecodeError,
    RunDamaged,
    RunNotFound,
    UnknownVersion,
)
from holdfast.checkpoint.progress import AttemptLog, Progress
from holdfast.checkpoint.record import (
    CLAIMABLE_STATUSES,
    RunStatus,
    StoredRun,
    restore_previous,
)
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.clock import CLOCK, Clock
from holdfast.config import CheckpointSettings
from holdfast.core.errors import DefinitionError, MissingDefinition, RunParked
from holdfast.core.ports import Checkpointer, ChildOutcome, NullCheckpointer, Resumption
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import MessageCodec

log: logging.Logger = logging.getLogger("holdfast.checkpoint")

#: A child run, and the release that undoes its claim.
_LoadedChild = tuple[Resumption | ChildOutcome | None, Callable[[], Awaitable[None]] | None]


class StoreCheckpoints:
    """Makes the checkpointers of a store, and keeps the journals of recent conversations.

    Without a store its checkpointers do nothing: a host passes on what it was given.
    """

    def __init__(
        self,
        store: RunStore | None,
        *,
        settings: CheckpointSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store, self._clock = store, clock or CLOCK.get()
        self.settings = settings or CheckpointSettings()
        self._claims: Claims | None = None if store is None else Claims(store, self.settings, self._clock)
        #: Workers of earlier opens that may still be registered.
        self._left_workers: set[str] = set()
        #: Releases of children whose caller was cancelled while they were being claimed, by run id.
        self._child_releases: dict[str, asyncio.Task[None]] = {}
        self._recent = RecentConversations()
        self._open_lock = asyncio.Lock()
        self._is_open = False
        #: Whether there was a worker, also if it has left: nothing is claimed after `close`.
        self._has_worker = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def store(self) -> RunStore:
        """The store.

        Raises:
            DefinitionError: there is none.
        """
        if self._store is None:
            raise DefinitionError("these checkpoints have no store")
        return self._store

    @property
    def claims(self) -> Claims:
        """This process as a worker of the store: another one for each open. Raises as `store`."""
        if self._claims is None:
            raise DefinitionError("these checkpoints have no store")
        return self._claims

    @property
    def worker_id(self) -> str:
        """The id of this process as a worker."""
        return self.claims.worker_id

    @property
    def is_open(self) -> bool:
        """Whether this process is registered as a worker of the store, so that `close` has to follow."""
        return self._is_open

    async def open(self, agents: tuple[str, ...] = ()) -> None:
        """Open the store and register this process as a worker that takes runs of these agents.

        Does nothing if it is open. `begin` calls this too.
        """
        if self._store is None:
            return
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Nothing of an event loop that has ended works in another one.
            self._loop, self._open_lock, self._is_open = loop, asyncio.Lock(), False
            self._child_releases = {}
        async with self._open_lock:
            if self._is_open:
                return
            await self.store.open()
            try:
                await self._register(agents)
            except BaseException:
                await self.store.close()  # the next call opens it again
                raise

    async def register(self) -> None:
        """Register this process as a worker of its store, which is open. Does nothing from the second call on."""
        async with self._open_lock:
            if not self._has_worker:
                await self._register(())

    async def _register(self, agents: tuple[str, ...]) -> None:
        for worker_id in tuple(self._left_workers):
            await self.store.deregister_worker(worker_id)
            self._left_workers.discard(worker_id)
        claims = self._claims = Claims(self.store, self.settings, self._clock)
        self._left_workers.add(claims.worker_id)
        await claims.register(agents)
        self._is_open = self._has_worker = True

    async def begin(self, info: RunInfo) -> Checkpointer:
        """Return the checkpointer of a new run. Its first save puts the run into the store."""
        if self._store is None:
            return NullCheckpointer()
        if not self._is_open:
            await self.open()
        return StoreCheckpointer(self.claims, info, recent=self._recent)

    async def load(self, run_id: str) -> StoredRun:
        """Load a run for `resume`: without its journal, if this process has it from the last turn of a conversation.

        Raises:
            CheckpointError: as `RunStore.load`.
        """
        return await self._recent.load(self.store, run_id)

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
        checkpointer = StoreCheckpointer.resume(
            self.claims,
            claim,
            watermark,
            stored.record,
            checkpoint.info,
            checkpoint.state,
            attempts,
            recent=self._recent,
        )
        return Resumption(
            info=checkpoint.info,
            checkpointer=checkpointer,
            state=checkpoint.state,
            mail=tuple(stored.mail),
            taken_from=claim.taken_from,
        )

    async def attach_child(self, info: RunInfo, codec: MessageCodec) -> Resumption | ChildOutcome | None:
        """Return the child run of an earlier attempt of its parent: claimed and loaded, or its outcome, or `None`.

        If the caller is cancelled while the claim is in flight, the claim is undone when it arrives.
        """
        if self._store is None:
            return None
        await self._wait_for_pending_release(info.run_id)
        loading = self.claims.start(self._load_child(info, codec))
        try:
            return (await asyncio.shield(loading))[0]
        except asyncio.CancelledError:
            self._child_releases[info.run_id] = self.claims.start(self._release_after_cancel(info.run_id, loading))
            raise

    async def _load_child(self, info: RunInfo, codec: MessageCodec) -> _LoadedChild:
        """Claim and load a child run. Return it with the release that undoes the claim."""
        try:
            stored = await self.store.load(info.run_id)
            if stored.record.parent_run_id != info.parent_run_id:
                raise RunParked("taken id", f"run {info.run_id} has the id of a child of this run, but is not one")
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
            claim = await self.store.claim(info.run_id, self.worker_id, statuses=statuses, steal=True)
            previous = restore_previous(claim, stored.record, now=self._clock.now())
            undo = partial(self.claims.release_claim, claim, previous)
            try:
                return self.resume(claim, await self.store.load(info.run_id), codec), undo
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
        """Wait until no cancelled `attach_child` can still claim or release this run."""
        if (release := self._child_releases.get(run_id)) is not None:
            await asyncio.wait([release])

    async def cancel_children(self, run_id: str) -> None:
        """Cancel the unfinished child runs of a run that continues: the turn that started them has failed."""
        if self._store is not None:
            await cancel_children(self.claims, run_id, continues=True)

    async def close(self, *, keep_claims: bool = False) -> None:
        """Finish the use of claims, deregister this worker unless it keeps claims, and close the store."""
        if not self._is_open:
            return
        self._is_open = False
        worker_id = self.claims.worker_id
        try:
            try:
                await self.claims.finish()
            finally:
                if keep_claims:
                    self._left_workers.discard(worker_id)
                else:
                    await self.claims.deregister()
                    self._left_workers.discard(worker_id)
        finally:
            await self.store.close()
