"""Finds interrupted runs, claims them, and goes on with them: one pass, or a worker that never stops."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.claiming import as_it_was, in_background, seen_through
from holdfast.checkpoint.codec import Progress, decode
from holdfast.checkpoint.errors import CheckpointError, RunDamaged, StoreError, UndecodableRecord
from holdfast.checkpoint.factory import Checkpoints
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.operations import RETENTION, Operations
from holdfast.checkpoint.record import Ending, RunFilter, RunRecord, StoredRun
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.run.agent import AgentSource
from holdfast.run.errors import NotKnownHere, RunCancelled, RunInterrupted, RunLost, RunParked
from holdfast.run.executor import Executor
from holdfast.run.info import RunInfo
from holdfast.run.native import loop_of
from holdfast.run.outcome import Result
from holdfast.run.ports import Resumption

log = logging.getLogger("holdfast.recovery")

#: Claims in a row that may end without a finished step before a run is parked.
MAX_STRIKES = 3

#: How long a worker waits for a sign from the store before it looks by itself: a death gives no sign.
POLL = timedelta(seconds=2)


class Fate(StrEnum):
    """What became of a run that recovery took."""

    COMPLETED = "completed"
    FAILED = "failed"
    PARKED = "parked"
    #: Stopped before its end, and left in the store for the next recovery.
    LEFT = "left"
    #: What is stored could not be read. It was set aside as it is.
    DAMAGED = "damaged"


@dataclass(slots=True)
class RecoveryReport:
    """What one pass did: the runs it took, by what became of them."""

    fates: dict[str, Fate] = field(default_factory=dict)
    #: Why, for every run that did not complete.
    reasons: dict[str, str] = field(default_factory=dict)

    def of(self, fate: Fate) -> list[str]:
        return [run_id for run_id, its in self.fates.items() if its is fate]

    def __str__(self) -> str:
        counts = {fate.value: len(self.of(fate)) for fate in Fate}
        told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        return f"recovered {len(self.fates)} runs: {told}" if told else "nothing to recover"


class Recovery:
    """Takes interrupted runs of known agents from a store and drives them with an executor."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        executor: Executor,
        agents: Mapping[str, AgentSource],
        *,
        concurrency: int = 16,
        retention: timedelta | None = None,
        on_end: Callable[[RunInfo, Result | Exception], None] = lambda info, end: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a recovery.

        Args:
            agents: by name. A run of an agent that is not among them is left for a process that knows it.
            concurrency: how many runs are loaded and driven at once.
            retention: how long the end of a submitted run is kept.
            on_end: told how each run ended that this drove to its end.
        """
        self._on_end, self._clock = on_end, clock
        self._checkpoints, self._executor, self._agents = checkpoints, executor, agents
        self._concurrency, self._retention = concurrency, retention

    @property
    def _store(self) -> CheckpointStore:
        assert self._checkpoints.store is not None, "an App without a store makes no Recovery"
        return self._checkpoints.store

    @property
    def _operations(self) -> Operations:
        retention = RETENTION if self._retention is None else self._retention
        return Operations(self._checkpoints, self._agents, retention=retention)

    async def recover(self) -> RecoveryReport:
        """Go on with every run that is interrupted now, to its end. Runs within their backoff are not.

        If this is cancelled, the runs under way are left for the next recovery.

        Raises:
            StoreError: the store cannot be asked for more of them, and none is under way any more.
        """
        report = RecoveryReport()
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                claims = await self._claim_beside(running)
                running |= {asyncio.create_task(self._take(claim, report)) for claim in claims or ()}
                if not running:
                    return report
                timeout = POLL.total_seconds() if claims is None else None
                _, running = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(running)

    async def serve(self, stopping: asyncio.Event) -> None:
        """Take queued and interrupted runs until `stopping` is set, then wait for those under way.

        If this is cancelled, they are left for whoever recovers next.
        """
        running: set[asyncio.Task[None]] = set()
        stop = asyncio.create_task(stopping.wait())
        try:
            while not stopping.is_set():
                claims = await self._claim_or_wait(self._concurrency - len(running))
                running |= {asyncio.create_task(self._take(claim, RecoveryReport())) for claim in claims}
                full = len(running) >= self._concurrency
                running = await self._rest(running, stop, look=not claims and not full, full=full)
            if running:
                await asyncio.wait(running)
        finally:
            stop.cancel()
            await _end(running)

    async def _rest(
        self, running: "set[asyncio.Task[None]]", stop: "asyncio.Task[bool]", *, look: bool, full: bool
    ) -> "set[asyncio.Task[None]]":
        """Wait until there may be something to take and room to take it. Returns what still runs."""
        if not look and not full:
            return {task for task in running if not task.done()}
        sign = asyncio.create_task(self._store.changed(POLL)) if look else None
        waited: set[asyncio.Task[None] | asyncio.Task[bool]] = {stop, *running}
        try:
            await asyncio.wait({*waited, *([sign] if sign else [])}, return_when=asyncio.FIRST_COMPLETED)
            if sign is not None and sign.done() and not sign.cancelled() and (trouble := sign.exception()) is not None:
                log.warning("could not wait for a sign of the store, will look by itself: %s", trouble)
                await asyncio.wait(waited, timeout=POLL.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if sign is not None:
                sign.cancel()
                await asyncio.gather(sign, return_exceptions=True)
        return {task for task in running if not task.done()}

    async def _claim(self, room: int) -> list[Claim]:
        if room <= 0 or self._executor.draining:
            return []
        worker_id = self._checkpoints.worker_id
        taking = self._store.claim_next(worker_id, agents=list(self._agents), limit=room)
        claims: Sequence[Claim] = await seen_through(taking, self._untake)
        return list(claims)

    async def _untake(self, claims: Sequence[Claim]) -> None:
        """Nobody drives what was claimed: whoever asked for it was cancelled."""
        for claim in claims:
            await self._checkpoints.give_back(claim, _as_before(claim))

    async def _claim_beside(self, running: "set[asyncio.Task[None]]") -> list[Claim] | None:
        """Claim more. `None`: the store does not answer, which is no reason to give up what is under way."""
        try:
            return await self._claim(self._concurrency - len(running))
        except StoreError as exc:
            if not running:
                raise
            log.warning("could not look for more runs to recover, will try again: %s", exc)
            return None

    async def _claim_or_wait(self, room: int) -> list[Claim]:
        try:
            return await self._claim(room)
        except StoreError as exc:
            log.warning("could not look for runs to take, will try again: %s", exc)
            await asyncio.sleep(POLL.total_seconds())
            return []

    # -- one run ------------------------------------------------------------------------------------------------

    async def _take(self, claim: Claim, report: RecoveryReport) -> None:
        """Go on with a claimed run, to whatever end."""
        fate, reason = await self._go_on(claim)
        report.fates[claim.run_id] = fate
        if fate is not Fate.COMPLETED:
            report.reasons[claim.run_id] = reason
            log.info("run %s: %s, %s", claim.run_id, fate, reason)

    async def _go_on(self, claim: Claim) -> tuple[Fate, str]:
        try:
            resumption = await self.resumption(claim)
            if resumption is None:
                return Fate.PARKED, "poison"
        except (RunDamaged, UndecodableRecord) as exc:
            return await self._damaged(claim, str(exc))
        except RunLost as exc:
            return Fate.LEFT, str(exc)
        except CheckpointError as exc:
            # A newer version, or a store that does not answer: nothing is wrong with the run.
            await self._checkpoints.give_back(claim, _as_before(claim, reason=str(exc), delay=NotKnownHere.retry_after))
            return Fate.LEFT, str(exc)
        except asyncio.CancelledError:
            in_background(self._checkpoints.give_back(claim, _as_before(claim)))
            raise
        except Exception as exc:  # of whatever codec: it cannot be read, and the others go on
            log.error("run %s cannot be read", claim.run_id, exc_info=exc)
            return await self._damaged(claim, f"{type(exc).__name__}: {exc}")
        return await self.drive(self._agents[resumption.info.agent_name], resumption)

    async def _damaged(self, claim: Claim, why: str) -> tuple[Fate, str]:
        await self._checkpoints.give_back(claim, Ending(status=Status.PARKED, reason=f"damaged: {why}"))
        return Fate.DAMAGED, why

    async def drive(self, agent: AgentSource, resumption: Resumption) -> tuple[Fate, str]:
        """Drive a resumed run to its end and say what became of it."""
        try:
            self._on_end(resumption.info, await self._executor.resume(agent, resumption, left_with_caller=True))
            return Fate.COMPLETED, ""
        except RunParked as exc:
            return Fate.PARKED, str(exc)
        except (RunInterrupted, RunLost) as exc:
            return Fate.LEFT, str(exc)
        except Exception as exc:  # the run's own error: it is settled, and the others go on
            self._on_end(resumption.info, exc)
            return Fate.FAILED, f"{type(exc).__name__}: {exc}"

    async def take(self, record: RunRecord, statuses: Collection[Status], *, by_hand: bool) -> Resumption | None:
        """Claim one run and make it ready to go on; `None` if it has struck out and was parked.

        Raises:
            CheckpointError: it cannot be claimed, or not be loaded. Nothing was changed, but that a cancel which it was
                asked for has come into force.
        """
        cancelled: Ending | None = None

        async def put_back(claim: Claim) -> None:
            await self._checkpoints.give_back(claim, cancelled or as_it_was(record, claim, self._clock.now()))

        taking = self._store.claim(record.run_id, self._checkpoints.worker_id, statuses=statuses)
        claim = await seen_through(taking, put_back)
        try:
            if by_hand and record.cancel_requested:
                claim, cancelled = await self._operations.outweigh_cancel(claim)
            return await self.resumption(claim, by_hand=by_hand)
        except RunLost:
            raise
        except asyncio.CancelledError:
            in_background(put_back(claim))
            raise
        except Exception:
            await put_back(claim)
            raise

    async def resumption(self, claim: Claim, *, by_hand: bool = False) -> Resumption | None:
        """What it takes to go on with a claimed run; `None` if it has struck out and was parked.

        A run that a person resumes by hand is neither parked for its strikes nor ended for an earlier cancel.

        Raises:
            CheckpointError: it cannot be loaded. Nothing was changed.
        """
        stored = await self._store.load(claim.run_id)
        agent = self._agents[stored.record.agent_name]
        resumption = self._checkpoints.resume(claim, stored, loop_of(agent).codec, retention=self._retention)
        if stored.record.cancel_requested and not by_hand:
            await self._operations.cancel_children(claim.run_id)
            await resumption.checkpointer.fail(RunCancelled(f"run {claim.run_id} was cancelled before it was resumed"))
            raise RunLost(f"run {claim.run_id} was cancelled before it was resumed")
        if claim.strikes > MAX_STRIKES and not by_hand and not await self._children_go_on(claim.run_id):
            await resumption.checkpointer.park(_poison(claim, stored, agent, resumption))
            return None
        return resumption

    async def _children_go_on(self, run_id: str) -> bool:
        """Whether a run below this one has finished a step in the lives that this one spent in a single step."""
        children = [child async for child in self._store.records(RunFilter(parent_run_id=run_id, interrupted=True))]
        for child in children:
            if child.strikes < MAX_STRIKES or await self._children_go_on(child.run_id):
                return True
        return False


def _as_before(claim: Claim, *, reason: str = "", delay: timedelta = timedelta(0)) -> Ending:
    """What leaves a run as if it had not been claimed: that is no strike."""
    return Ending(status=Status.INTERRUPTED, reason=reason, strikes=claim.strikes - 1, delay=delay)


def _poison(claim: Claim, stored: StoredRun, agent: AgentSource, resumption: Resumption) -> str:
    """Why the run is parked, with where it was when its owners died."""
    progress = decode(stored.record.progress, Progress)
    state = resumption.state
    pending = [call for call in loop_of(agent).pending_calls(state.history) if call.call_id not in state.results]
    where = f" while calling {', '.join(call.tool for call in pending)}" if pending else ""
    last = f"; last error: {stored.record.reason}" if stored.record.reason else ""
    return (
        f"poison: {claim.strikes - 1} owners in a row died or gave up in step {progress.iteration + 1}{where} "
        f"without finishing it{last}"
    )


async def _end(tasks: "set[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
