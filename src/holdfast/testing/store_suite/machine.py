"""Random sequences of calls, made on a store and on the model, compared after every one of them."""

import asyncio
import contextlib
import copy
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.checkpoint.claim import Claim, Worker
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.lifecycle import CLAIMABLE, ENDINGS, Status
from holdfast.checkpoint.liveness import this_process
from holdfast.checkpoint.record import Ending, RunFilter
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_process import ProcessGone, StoreProcess
from holdfast.testing.store_suite.crash import THOROUGH
from holdfast.testing.store_suite.model import Model
from holdfast.testing.store_suite.subject import a_run, a_write, entries, ids

#: In this order a run may be the child of an earlier one, so that no run is its own ancestor.
RUN_IDS = ["a", "A", "b..", "B:c", "d"]
AGENTS = ["agent", "Agent"]
CALLERS = ["x", "y"]
SLOTS = (0, 1)

run_ids = st.sampled_from(RUN_IDS)
slots = st.sampled_from(SLOTS)
bodies = st.lists(st.binary(max_size=20), max_size=3)
an_hour = timedelta(hours=1)


def machine_settings(examples: int, steps: int) -> settings:
    """Bounded in time, whatever the store. A found example is shrunk only in the thorough form: that takes long."""
    return settings(
        max_examples=examples * THOROUGH,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if THOROUGH > 1 else [])],
    )


class StoreMachine(RuleBasedStateMachine):
    """One store in this process against the model."""

    build: ClassVar[Callable[[], CheckpointStore]]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = Model()
        self.workers: list[str] = []
        self.claims: list[Claim] = []

    # -- the world ----------------------------------------------------------------------------------------------

    @initialize()
    def open_the_store(self) -> None:
        self.run(self.open())

    async def open(self) -> None:
        self.store = self.reader = type(self).build()
        await self.store.open()
        self.workers = [await self.enlist() for _ in SLOTS]
        await self.clear()

    async def clear(self) -> None:
        """Remove what the example before this one left: the place is the same, and tokens grow on."""
        for record in [record async for record in self.store.records()]:
            with contextlib.suppress(CheckpointError):
                claim = await self.store.claim(record.run_id, self.workers[0], statuses=set(Status), steal=True)
                self.model.token = max(self.model.token, claim.token)
                await self.store.remove(record.run_id, claim=claim)

    async def enlist(self) -> str:
        worker = Worker(worker_id=f"worker-{uuid.uuid4().hex}", process=this_process())
        await self.store.enlist(worker)
        self.model.alive.add(worker.worker_id)
        return worker.worker_id

    def teardown(self) -> None:
        try:
            self.run(self.close())
        finally:
            self.runner.close()

    async def close(self) -> None:
        await self.store.close()

    def run(self, work: Awaitable[Any]) -> Any:
        async def waited() -> Any:
            return await work

        return self.runner.run(waited())

    # -- calls --------------------------------------------------------------------------------------------------

    def both(self, call: Awaitable[Any], expected: Callable[[Model], None]) -> None:
        """Make the call, and have the model do the same: both raise the same error, or neither does."""
        try:
            result, error = self.run(call), None
        except CheckpointError as exc:
            result, error = None, exc
        try:
            expected(self.model)
        except CheckpointError as exc:
            assert type(error) is type(exc), f"the store gave {error or result!r} where {exc!r} is due"
            return
        assert error is None, f"the store raised {error!r} where nothing is wrong"
        self.learn([result] if isinstance(result, Claim) else [])

    def learn(self, claims: Sequence[Claim]) -> None:
        """Remember the claims that the store gave for the runs that the model has just taken."""
        for claim in claims:
            run = self.model.runs[claim.run_id]
            assert (claim.worker_id, claim.strikes) == (run.owner, run.strikes)
            assert claim.token > self.model.token, "tokens only grow"
            run.token = self.model.token = claim.token
            self.claims.append(claim)

    def newest_and_not_driven(self, claim: Claim) -> bool:
        run = self.model.runs.get(claim.run_id)
        return run is not None and run.token == claim.token and not self.model.driven(run)

    def pick(self, index: int) -> Claim | None:
        """One of the claims there ever were, the newest first.

        Not one whose worker is gone while nobody took the run: the contract leaves open what that may still do.
        """
        claim = self.claims[-1 - index % len(self.claims)] if self.claims else None
        if claim is not None and self.newest_and_not_driven(claim):
            return None if self.model.runs[claim.run_id].status is Status.RUNNING else claim
        return claim

    @rule(run_id=run_ids, agent=st.sampled_from(AGENTS), caller=st.sampled_from(CALLERS), data=st.data())
    def create(self, run_id: str, agent: str, caller: str, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from([None, *RUN_IDS[: RUN_IDS.index(run_id)]]))
        run = a_run(run_id, *data.draw(bodies), agent_name=agent, caller_id=caller, parent_run_id=parent)
        worker = data.draw(st.sampled_from([None, *self.workers]))
        began = time.monotonic()
        self.both(self.store.create(run, worker_id=worker), lambda model: model.create(began, run, worker))

    @rule(index=st.integers(0, 5), bodies=bodies, replace=st.booleans(), finished_step=st.booleans())
    def append(self, index: int, bodies: list[bytes], replace: bool, finished_step: bool) -> None:
        if (claim := self.pick(index)) is not None:
            run = self.model.runs.get(claim.run_id)
            first = run.next_seq if run else 0
            progress = b"%d" % first
            write = a_write(first, *bodies, progress=progress, replace=replace, finished_step=finished_step)
            self.both(self.store.append(claim, write), lambda model: model.append(claim, write))

    @rule(
        index=st.integers(0, 5),
        status=st.sampled_from([*sorted(ENDINGS), Status.INTERRUPTED]),
        last=bodies,
        strikes=st.sampled_from([0, 0, 3]),
        delay=st.sampled_from([timedelta(0), timedelta(0), an_hour]),
        keep=st.sampled_from([None, timedelta(0), an_hour]),
    )
    def settle(
        self, index: int, status: Status, last: list[bytes], strikes: int, delay: timedelta, keep: timedelta | None
    ) -> None:
        if (claim := self.pick(index)) is not None:
            run = self.model.runs.get(claim.run_id)
            ending = Ending(
                status=status,
                reason=f"it is {status}",
                entries=entries(run.next_seq if run else 0, *last),
                progress=b"settled" if last else None,
                strikes=strikes,
                delay=delay,
                keep=keep,
            )
            began = time.monotonic()
            self.both(self.store.settle(claim, ending), lambda model: model.settle(began, claim, ending))

    @rule(index=st.integers(0, 5))
    def remove_with_a_claim(self, index: int) -> None:
        claim = self.pick(index)
        if claim is not None and not self.newest_and_not_driven(claim):
            run_id = claim.run_id
            self.both_removing(run_id, claim)

    @rule(run_id=run_ids)
    def remove_without_a_claim(self, run_id: str) -> None:
        self.both_removing(run_id, None)

    def both_removing(self, run_id: str, claim: Claim | None) -> None:
        self.both(self.store.remove(run_id, claim=claim), lambda model: model.remove(run_id, claim))

    @rule(run_id=run_ids, slot=slots, statuses=st.sampled_from([CLAIMABLE, set(Status)]), steal=st.booleans())
    def claim(self, run_id: str, slot: int, statuses: set[Status], steal: bool) -> None:
        worker, began = self.workers[slot], time.monotonic()
        self.both(
            self.store.claim(run_id, worker, statuses=statuses, steal=steal),
            lambda model: model.claim(began, run_id, worker, statuses, steal),
        )

    @rule(slot=slots, agents=st.sets(st.sampled_from(AGENTS)), limit=st.integers(0, 4))
    def claim_next(self, slot: int, agents: set[str], limit: int) -> None:
        worker, began = self.workers[slot], time.monotonic()
        if self.model.time_will_tell(began):
            return
        turns = self.model.turns(agents, began)
        claims = self.run(self.store.claim_next(worker, agents=agents, limit=limit))
        assert set(ids(claims)) <= set(turns), "only runs that wait to be taken"
        assert sorted(turns[run_id] for run_id in ids(claims)) == sorted(turns.values())[:limit], "fair to the callers"
        for claim in claims:
            self.model.take(began, claim.run_id, worker)
        self.learn(sorted(claims, key=lambda claim: claim.token))

    @rule(run_id=run_ids)
    def request_cancel(self, run_id: str) -> None:
        self.both(self.store.request_cancel(run_id), lambda model: model.request_cancel(run_id))

    @rule(slot=slots)
    def cancels(self, slot: int) -> None:
        worker = self.workers[slot]
        assert sorted(self.run(self.store.cancels(worker))) == self.model.cancels(worker)

    @rule()
    def purge(self) -> None:
        expired = self.model.expired()
        self.run(self.store.purge())
        for run_id in expired:
            self.model.drop(run_id)

    @rule(slot=slots)
    def discharge(self, slot: int) -> None:
        gone = self.workers[slot]
        self.run(self.store.discharge(gone))
        self.model.alive.discard(gone)
        self.workers[slot] = self.run(self.enlist())

    @rule(run_id=run_ids, after=st.integers(-1, 8))
    def load_after(self, run_id: str, after: int) -> None:
        if run_id in self.model.runs:
            found = self.run(self.store.load(run_id, after=after)).entries
            assert list(found) == [entry for entry in self.model.runs[run_id].entries if entry.seq > after]

    # -- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        if self.workers:
            self.run(self.compare())

    async def compare(self) -> None:
        self.model.agree_with([record async for record in self.reader.records()])
        for run_id, run in self.model.runs.items():
            assert list((await self.reader.load(run_id)).entries) == run.entries
        interrupted = [record.run_id async for record in self.reader.records(RunFilter(interrupted=True))]
        assert interrupted == [run_id for run_id, run in self.model.runs.items() if self.model.interrupted(run)]


class DurableStoreMachine(StoreMachine):
    """A store in a child process, which is killed now and then, against the model; read from this process."""

    factory: ClassVar[str]
    location: ClassVar[str]
    #: How many calls were under way when the process was killed.
    cut_short: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.kill_in_the_next_call = False

    async def open(self) -> None:
        self.reader = type(self).build()
        await self.reader.open()
        await self.start()
        await self.clear()

    async def start(self) -> None:
        self.store = self.process = StoreProcess(self.factory, self.location)
        await self.store.open()
        self.workers = [await self.enlist() for _ in SLOTS]

    async def enlist(self) -> str:
        worker = Worker(worker_id=f"worker-{uuid.uuid4().hex}", process=self.process.child.identity)
        await self.store.enlist(worker)
        self.model.alive.add(worker.worker_id)
        return worker.worker_id

    async def close(self) -> None:
        await self.process.child.kill()
        await self.reader.close()

    def both(self, call: Awaitable[Any], expected: Callable[[Model], None]) -> None:
        if not self.kill_in_the_next_call:
            super().both(call, expected)
            return
        self.kill_in_the_next_call = False
        answer = asyncio.Future[Any](loop=self.runner.get_loop())
        self.run(self.kill_during(call, answer))
        if not isinstance(answer.exception(), ProcessGone):
            super().both(answer, expected)
        else:
            type(self).cut_short += 1
            self.adopt(expected)
        self.model.alive.clear()
        self.run(self.start())

    def both_removing(self, run_id: str, claim: Claim | None) -> None:
        """Not killed if the run has children: when that is cut short, some of them may be gone and others not."""
        later, self.kill_in_the_next_call = self.kill_in_the_next_call, False
        if not any(run.new.parent_run_id == run_id for run in self.model.runs.values()):
            self.kill_in_the_next_call, later = later, False
        super().both_removing(run_id, claim)
        self.kill_in_the_next_call |= later

    async def kill_during(self, call: Awaitable[Any], answer: asyncio.Future[Any]) -> None:
        """Kill the process at a moment of the call, and tell what the call gave, if it came to that."""
        child = self.process.child
        making, begun = asyncio.ensure_future(call), asyncio.ensure_future(child.until_begun())
        await asyncio.wait([making, begun], return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        await asyncio.sleep(random.choice((0, random.uniform(0, 0.002))))
        await child.kill()
        await asyncio.wait([making])
        if (error := making.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(making.result())

    def adopt(self, expected: Callable[[Model], None]) -> None:
        """The call was cut short: the store holds what it held before, or what it holds after. See which."""
        before, after = self.model, copy.deepcopy(self.model)
        for model in (before, after):
            model.alive.clear()
        with contextlib.suppress(CheckpointError):
            expected(after)
        self.model = after
        try:
            self.run(self.compare())
        except AssertionError:
            self.model = before
            self.run(self.compare())

    @rule()
    def kill(self) -> None:
        """The process dies in the middle of the next call that the model follows."""
        self.kill_in_the_next_call = True

    @rule()
    def restart(self) -> None:
        self.run(self.process.close())
        self.model.alive.clear()
        self.run(self.start())

    @rule()
    def reopen(self) -> None:
        self.run(self.reader.close())
        self.reader = type(self).build()
        self.run(self.reader.open())
