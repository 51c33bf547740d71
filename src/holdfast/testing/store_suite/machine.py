"""Random sequences of calls, made on a store and on the model, compared after every one of them."""

import contextlib
import copy
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, reject, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import CheckpointError, RunNotFound
from holdfast.checkpoint.lifecycle import CLAIMABLE, ENDINGS, Status
from holdfast.checkpoint.record import Ending, NewRun, RunFilter
from holdfast.testing.store_process import ProcessGone
from holdfast.testing.store_suite.crash import THOROUGH
from holdfast.testing.store_suite.model import Model
from holdfast.testing.store_suite.subject import a_run, a_write, entries, ids
from holdfast.testing.store_suite.world import CrashingWorld, World

#: A run may be the child of one that comes earlier here, so that none is its own ancestor.
RUN_IDS = ["a", "A", "b..", "B:c", "d"]
AGENTS = ["agent", "Agent"]
CALLERS = ["x", "y"]
SLOTS = (0, 1)

run_ids = st.sampled_from(RUN_IDS)
agents = st.sampled_from(AGENTS)
callers = st.sampled_from(CALLERS)
slots = st.sampled_from(SLOTS)
bodies = st.lists(st.binary(max_size=20), max_size=3)
rarely = st.sampled_from([False, False, False, True])
delays = st.sampled_from([timedelta(0), timedelta(0), timedelta(hours=1)])
keeps = st.sampled_from([None, timedelta(0), timedelta(hours=1)])
#: Which of the claims: a number, and whether those that are not valid any more are meant too.
which_claims = st.tuples(st.integers(0, 5), rarely)

Expected = Callable[[Model], None]


class StoreMachine(RuleBasedStateMachine):
    """A store against the model."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.workers: list[str] = []
        self.claims: list[Claim] = []

    @initialize(queued=st.lists(st.tuples(agents, callers, rarely), max_size=len(RUN_IDS)))
    def begin_with_some_runs(self, queued: list[tuple[str, str, bool]]) -> None:
        self.workers = [self.enlist() for _ in SLOTS]
        self.world.run(self.clear())
        for run_id, (agent, caller, child) in zip(RUN_IDS, queued, strict=False):
            parent = RUN_IDS[0] if child else None
            self.both_create(a_run(run_id, agent_name=agent, caller_id=caller, parent_run_id=parent), None)

    async def clear(self) -> None:
        """Remove what the example before this one left: the place is the same, and tokens grow on."""
        store = self.world.store
        for record in [record async for record in store.records()]:
            self.model.token = max(self.model.token, record.token)
            with contextlib.suppress(RunNotFound):  # gone with its parent
                claim = await store.claim(record.run_id, self.workers[0], statuses=set(Status), steal=True)
                self.model.token = max(self.model.token, claim.token)
                await store.remove(record.run_id, claim=claim)

    def enlist(self) -> str:
        worker = self.world.worker()
        self.world.run(self.world.store.enlist(worker))
        self.model.alive.add(worker.worker_id)
        return worker.worker_id

    # -- calls --------------------------------------------------------------------------------------------------

    def both(self, call: Coroutine[Any, Any, Any], expected: Expected) -> None:
        """Make the call, and have the model do the same: both raise the same error, or neither does."""
        result, error = None, None
        try:
            result = self.world.run(call)
        except CheckpointError as exc:
            error = exc
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

    def pick(self, which: tuple[int, bool]) -> Claim | None:
        """One of the valid claims, or of all there ever were, the newest first.

        Not one whose worker is gone while nobody took the run: the contract leaves open what that may still do.
        """
        index, any_claim = which
        if not any_claim and not any(map(self.model.is_valid, self.claims)):
            self.claim_some_run(index)
        claims = [claim for claim in self.claims if any_claim or self.model.is_valid(claim)]
        claim = claims[-1 - index % len(claims)] if claims else None
        return None if claim is None or self.model.is_abandoned(claim) else claim

    def claim_some_run(self, index: int) -> None:
        """So that there is something to do under a claim."""
        if self.model.runs:
            run_id, worker = list(self.model.runs)[index % len(self.model.runs)], self.workers[0]
            taking, began = self.world.store.claim(run_id, worker, statuses=set(Status), steal=True), time.monotonic()
            self.both(taking, lambda model: model.take(began, run_id, worker))

    @rule(run_id=run_ids, agent=agents, caller=callers, data=st.data())
    def create(self, run_id: str, agent: str, caller: str, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from([None, *RUN_IDS[: RUN_IDS.index(run_id)]]))
        run = a_run(run_id, *data.draw(bodies), agent_name=agent, caller_id=caller, parent_run_id=parent)
        self.both_create(run, data.draw(st.sampled_from([None, *self.workers])))

    def both_create(self, run: NewRun, worker_id: str | None) -> None:
        began = time.monotonic()
        self.both(self.world.store.create(run, worker_id=worker_id), lambda model: model.create(began, run, worker_id))

    @rule(which=which_claims, bodies=bodies, replace=st.booleans(), finished_step=st.booleans())
    def append(self, which: tuple[int, bool], bodies: list[bytes], replace: bool, finished_step: bool) -> None:
        if (claim := self.pick(which)) is not None:
            first = self.model.next_seq(claim.run_id)
            progress = b"%d" % first if bodies else b""
            write = a_write(first, *bodies, progress=progress, replace=replace, finished_step=finished_step)
            self.both(self.world.store.append(claim, write), lambda model: model.append(claim, write))

    @rule(which=which_claims, status=st.sampled_from(sorted(ENDINGS)), last=bodies, delay=delays, keep=keeps)
    def settle(
        self, which: tuple[int, bool], status: Status, last: list[bytes], delay: timedelta, keep: timedelta | None
    ) -> None:
        if (claim := self.pick(which)) is not None:
            ending = Ending(
                status=status,
                reason=f"it is {status}",
                entries=entries(self.model.next_seq(claim.run_id), *last),
                progress=b"settled" if last else None,
                strikes=3 if delay else 0,
                delay=delay,
                keep=keep,
            )
            began = time.monotonic()
            self.both(self.world.store.settle(claim, ending), lambda model: model.settle(began, claim, ending))

    @rule(which=which_claims, run_id=run_ids, with_a_claim=st.booleans())
    def remove(self, which: tuple[int, bool], run_id: str, with_a_claim: bool) -> None:
        claim = self.pick(which) if with_a_claim else None
        if claim is None:
            self.both_remove(run_id, None)
        elif not self.model.is_settled(claim):
            self.both_remove(claim.run_id, claim)

    def both_remove(self, run_id: str, claim: Claim | None) -> None:
        self.both(self.world.store.remove(run_id, claim=claim), lambda model: model.remove(run_id, claim))

    @rule(run_id=run_ids, slot=slots, statuses=st.sampled_from([CLAIMABLE, set(Status)]), steal=st.booleans())
    def claim(self, run_id: str, slot: int, statuses: set[Status], steal: bool) -> None:
        worker, began = self.workers[slot], time.monotonic()
        self.both(
            self.world.store.claim(run_id, worker, statuses=statuses, steal=steal),
            lambda model: model.claim(began, run_id, worker, statuses, steal),
        )

    @rule(slot=slots, only_one_agent=rarely, limit=st.sampled_from([1, 2, 3, 9, 0]))
    def claim_next(self, slot: int, only_one_agent: bool, limit: int) -> None:
        worker, began = self.workers[slot], time.monotonic()
        wanted = AGENTS[:1] if only_one_agent else AGENTS
        turns = self.model.turns(wanted, began)
        claims = self.world.run(self.world.store.claim_next(worker, agents=wanted, limit=limit))
        if self.model.cannot_tell(began, time.monotonic()):
            reject()
        assert set(ids(claims)) <= set(turns), "only runs that wait to be taken"
        assert sorted(turns[run_id] for run_id in ids(claims)) == sorted(turns.values())[:limit], "fair to the callers"
        for claim in claims:
            self.model.take(began, claim.run_id, worker)
        self.learn(sorted(claims, key=lambda claim: claim.token))

    @rule(run_id=run_ids)
    def request_cancel(self, run_id: str) -> None:
        self.both(self.world.store.request_cancel(run_id), lambda model: model.request_cancel(run_id))

    @rule(slot=slots, what=st.sampled_from(["purge", "purge", "discharge"]))
    def tidy_up(self, slot: int, what: str) -> None:
        if what == "purge":
            self.world.run(self.world.store.purge())
            self.model.purge()
        else:
            gone = self.workers[slot]
            self.world.run(self.world.store.discharge(gone))
            self.model.alive.discard(gone)
            self.workers[slot] = self.enlist()

    # -- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        if self.workers:
            self.world.run(self.compare())

    async def compare(self) -> None:
        reader = self.world.reader
        self.model.agree_with([record async for record in reader.records()])
        for run_id, run in self.model.runs.items():
            assert list((await reader.load(run_id)).entries) == run.entries
        for worker in self.workers:
            assert sorted(await reader.cancels(worker)) == self.model.cancels(worker)
        interrupted = [record.run_id async for record in reader.records(RunFilter(interrupted=True))]
        assert interrupted == [run_id for run_id, run in self.model.runs.items() if self.model.interrupted(run)]


class CrashingStoreMachine(StoreMachine):
    """A store in a process that is killed in the middle of a call now and then, against the model."""

    world: ClassVar[CrashingWorld]

    def both(self, call: Coroutine[Any, Any, Any], expected: Expected) -> None:
        if not self.changes_something(expected) or not self.world.wants_to_kill():
            super().both(self.world.take_time(call), expected)
            return
        try:
            super().both(self.world.kill_during(call), expected)
        except ProcessGone:
            self.find_out(expected)
        finally:
            self.world.replace_the_process()
        self.begin_anew()

    def changes_something(self, expected: Expected) -> bool:
        try:
            expected(copy.deepcopy(self.model))
        except CheckpointError:
            return False
        return True

    def begin_anew(self) -> None:
        """The process is a new one, with workers of its own."""
        self.model.alive.clear()
        self.workers = [self.enlist() for _ in SLOTS]

    def find_out(self, expected: Expected) -> None:
        """The call was cut short: the store holds what it held before, or what it should hold after. See which."""
        before, after = self.model, copy.deepcopy(self.model)
        with contextlib.suppress(CheckpointError):
            expected(after)
        for model in (before, after):
            model.alive.clear()
        try:
            self.model = after
            self.world.run(self.compare())
        except AssertionError:
            self.model = before
            self.world.run(self.compare())

    def both_remove(self, run_id: str, claim: Claim | None) -> None:
        # Cut short, the removal of a run with children may leave some of them: that is not promised to be at once.
        if self.model.has_children(run_id):
            with self.world.peace():
                super().both_remove(run_id, claim)
        else:
            super().both_remove(run_id, claim)

    @rule(the_process=rarely)
    def reopen(self, the_process: bool) -> None:
        if the_process:
            self.world.end_the_process()
            self.begin_anew()
        else:
            self.world.reopen_the_reader()


def try_sequences(machine: type[StoreMachine], world: World) -> None:
    """Try sequences of calls until it is enough. A found one is shrunk only in the thorough form: that takes long."""
    some = settings(
        max_examples=3,
        stateful_step_count=40,
        deadline=None,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if THOROUGH > 1 else [])],
    )
    try:
        while not world.is_over():
            run_state_machine_as_test(type(machine.__name__, (machine,), {"world": world}), settings=some)
    finally:
        world.close()
