"""Tests of random call sequences: each call is made on the store and on the model, and the two are compared."""

import asyncio
import contextlib
import copy
import functools
import operator
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, reject, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import CheckpointError, RunNotFound
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, RELEASE_STATUSES, NewRun, Release, RunFilter, RunStatus
from holdfast.testing.store_process import ProcessExited
from holdfast.testing.store_suite.durability import DurableStoreUnderTest
from holdfast.testing.store_suite.environment import CrashingEnvironment, Environment
from holdfast.testing.store_suite.kills import THOROUGH
from holdfast.testing.store_suite.model import Model
from holdfast.testing.store_suite.store_under_test import (
    StoreUnderTest,
    get_run_ids,
    make_append,
    make_entries,
    make_run,
)

#: The parent of a run comes before it in this list, so no run is its own ancestor.
RUN_IDS = ["a", "A", "b..", "B:c", "d"]
AGENTS = ["agent", "Agent"]
CALLERS = ["x", "y"]
SLOTS = (0, 1)

run_ids = st.sampled_from(RUN_IDS)
agents = st.sampled_from(AGENTS)
callers = st.sampled_from(CALLERS)
slots = st.sampled_from(SLOTS)
bodies = st.lists(st.binary(max_size=20), max_size=3)
mostly_false = st.sampled_from([False, False, False, True])
delays = st.sampled_from([timedelta(0), timedelta(0), timedelta(hours=1)])
release_statuses = st.sampled_from(sorted(RELEASE_STATUSES))
retentions = st.sampled_from([None, timedelta(0), timedelta(hours=1)])
#: Chooses a claim: an index, and whether invalid claims count too.
which_claims = st.tuples(st.integers(0, 5), mostly_false)

ModelCall = Callable[[Model], None]


class StoreMachine(RuleBasedStateMachine):
    """Compares a store with the model."""

    environment: ClassVar[Environment]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.workers: list[str] = []
        self.claims: list[Claim] = []

    @initialize(queued=st.lists(st.tuples(agents, callers, mostly_false), max_size=len(RUN_IDS)))
    def start_with_runs(self, queued: list[tuple[str, str, bool]]) -> None:
        self.workers = [self.add_worker() for _ in SLOTS]
        self.environment.run(self.clear())
        for run_id, (agent, caller, child) in zip(RUN_IDS, queued, strict=False):
            parent = RUN_IDS[0] if child else None
            self.create_in_both(make_run(run_id, agent_name=agent, caller_id=caller, parent_run_id=parent), None)

    async def clear(self) -> None:
        """Remove the runs of the previous example, which had the same location. Tokens retention growing."""
        store = self.environment.store
        for record in [record async for record in store.list_runs()]:
            self.model.token = max(self.model.token, record.token)
            with contextlib.suppress(RunNotFound):  # removed with its parent
                claim = await store.claim(record.run_id, self.workers[0], statuses=set(RunStatus), steal=True)
                self.model.token = max(self.model.token, claim.token)
                await store.remove(record.run_id, claim=claim)

    def add_worker(self) -> str:
        worker = self.environment.make_worker()
        self.environment.run(self.environment.store.register_worker(worker))
        self.model.alive.add(worker.worker_id)
        return worker.worker_id

    # -- calls --------------------------------------------------------------------------------------------------

    def call_both(self, call: Coroutine[Any, Any, Any], expected: ModelCall) -> None:
        """Make the call on the store and on the model. Both raise the same error, or neither does."""
        result, error = None, None
        try:
            result = self.environment.run(call)
        except CheckpointError as exc:
            error = exc
        try:
            expected(self.model)
        except CheckpointError as exc:
            assert type(error) is type(exc), f"the store returned {error or result!r}, expected {exc!r}"
            return
        assert error is None, f"the store raised {error!r}, expected success"
        self.record_claims([result] if isinstance(result, Claim) else [])

    def record_claims(self, claims: Sequence[Claim]) -> None:
        """Record the claims that the store returned for runs that the model has just claimed."""
        for claim in claims:
            run = self.model.runs[claim.run_id]
            assert (claim.worker_id, claim.strikes) == (run.owner, run.strikes)
            assert claim.token > self.model.token, "tokens only grow"
            run.token = self.model.token = claim.token
            self.claims.append(claim)

    def pick_claim(self, which: tuple[int, bool]) -> Claim | None:
        """Choose one of the valid claims, or of all claims, newest first.

        Skip a claim of a dead worker whose run was not claimed again: the contract does not define its writes.
        """
        index, any_claim = which
        if not any_claim and not any(map(self.model.is_valid, self.claims)):
            self.claim_some_run(index)
        claims = [claim for claim in self.claims if any_claim or self.model.is_valid(claim)]
        claim = claims[-1 - index % len(claims)] if claims else None
        return None if claim is None or self.model.is_abandoned(claim) else claim

    def claim_some_run(self, index: int) -> None:
        """Claim a run, so that there is a valid claim."""
        if self.model.runs:
            run_id, worker, began = (
                list(self.model.runs)[index % len(self.model.runs)],
                self.workers[0],
                time.monotonic(),
            )
            claiming = self.environment.store.claim(run_id, worker, statuses=set(RunStatus), steal=True)
            self.call_both(claiming, functools.partial(Model.assign, began=began, run_id=run_id, worker_id=worker))

    @rule(run_id=run_ids, agent=agents, caller=callers, data=st.data())
    def create(self, run_id: str, agent: str, caller: str, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from([None, *RUN_IDS[: RUN_IDS.index(run_id)]]))
        run = make_run(run_id, *data.draw(bodies), agent_name=agent, caller_id=caller, parent_run_id=parent)
        self.create_in_both(run, data.draw(st.sampled_from([None, *self.workers])))

    def create_in_both(self, run: NewRun, worker_id: str | None) -> None:
        began = time.monotonic()
        self.call_both(
            self.environment.store.create(run, worker_id=worker_id),
            functools.partial(Model.create, began=began, run=run, worker_id=worker_id),
        )

    @rule(which=which_claims, bodies=bodies, replace=st.booleans(), finished_step=st.booleans())
    def append(self, which: tuple[int, bool], bodies: list[bytes], replace: bool, finished_step: bool) -> None:
        if (claim := self.pick_claim(which)) is not None:
            first = self.model.next_seq(claim.run_id)
            progress = b"%d" % first if bodies else b""
            write = make_append(first, *bodies, progress=progress, rewrite=replace, step_finished=finished_step)
            self.call_both(
                self.environment.store.append(claim, write), functools.partial(Model.append, claim=claim, write=write)
            )

    @rule(
        which=which_claims,
        status=st.sampled_from(sorted(RELEASE_STATUSES)),
        last=bodies,
        delay=delays,
        retention=retentions,
    )
    def release(
        self,
        which: tuple[int, bool],
        status: RunStatus,
        last: list[bytes],
        delay: timedelta,
        retention: timedelta | None,
    ) -> None:
        if (claim := self.pick_claim(which)) is not None:
            release = Release(
                status=status,
                reason=f"it is {status}",
                entries=make_entries(self.model.next_seq(claim.run_id), *last),
                progress=b"released" if last else None,
                strikes=3 if delay else 0,
                delay=delay,
                retention=retention,
            )
            began = time.monotonic()
            self.call_both(
                self.environment.store.release(claim, release),
                functools.partial(Model.release, began=began, claim=claim, release=release),
            )

    @rule(which=which_claims, run_id=run_ids, with_claim=st.booleans())
    def remove(self, which: tuple[int, bool], run_id: str, with_claim: bool) -> None:
        claim = self.pick_claim(which) if with_claim else None
        if claim is None:
            self.remove_in_both(run_id, None)
        elif not self.model.is_released(claim):
            self.remove_in_both(claim.run_id, claim)

    def remove_in_both(self, run_id: str, claim: Claim | None) -> None:
        self.call_both(
            self.environment.store.remove(run_id, claim=claim),
            functools.partial(Model.remove, run_id=run_id, claim=claim),
        )

    @rule(
        run_id=run_ids, slot=slots, statuses=st.sampled_from([CLAIMABLE_STATUSES, set(RunStatus)]), steal=st.booleans()
    )
    def claim(self, run_id: str, slot: int, statuses: set[RunStatus], steal: bool) -> None:
        worker, began = self.workers[slot], time.monotonic()
        self.call_both(
            self.environment.store.claim(run_id, worker, statuses=statuses, steal=steal),
            functools.partial(
                Model.claim, began=began, run_id=run_id, worker_id=worker, statuses=statuses, steal=steal
            ),
        )

    @rule(slot=slots, only_one_agent=mostly_false, limit=st.sampled_from([1, 2, 3, 9, 0]))
    def claim_next(self, slot: int, only_one_agent: bool, limit: int) -> None:
        worker, began = self.workers[slot], time.monotonic()
        agent_names = AGENTS[:1] if only_one_agent else AGENTS
        turns = self.model.get_claim_order(agent_names, began)
        claims = self.environment.run(self.environment.store.claim_next(worker, agents=agent_names, limit=limit))
        if self.model.is_backoff_ambiguous(began, time.monotonic()):
            reject()
        assert set(get_run_ids(claims)) <= set(turns), "only claimable runs"
        assert sorted(turns[run_id] for run_id in get_run_ids(claims)) == sorted(turns.values())[:limit], (
            "fair to the callers"
        )
        for claim in claims:
            self.model.assign(began, claim.run_id, worker)
        self.record_claims(sorted(claims, key=operator.attrgetter("token")))

    @rule(run_id=run_ids)
    def request_cancel(self, run_id: str) -> None:
        self.call_both(
            self.environment.store.request_cancel(run_id), functools.partial(Model.request_cancel, run_id=run_id)
        )

    @rule(slot=slots, action=st.sampled_from(["purge", "purge", "deregister_worker"]))
    def purge_or_deregister(self, slot: int, action: str) -> None:
        if action == "purge":
            self.environment.run(self.environment.store.purge())
            self.model.purge()
        else:
            worker = self.workers[slot]
            self.environment.run(self.environment.store.deregister_worker(worker))
            self.model.alive.discard(worker)
            self.workers[slot] = self.add_worker()

    # -- invariants ---------------------------------------------------------------------------------------------

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        if self.workers:
            self.environment.run(self.compare())

    async def compare(self) -> None:
        reader = self.environment.reader
        self.model.assert_matches([record async for record in reader.list_runs()])
        for run_id, run in self.model.runs.items():
            stored = await reader.load(run_id)
            assert list(stored.entries) == run.entries
            assert stored.record == await reader.get_record(run_id)
        for worker in self.workers:
            assert sorted(await reader.pending_cancellations(worker)) == self.model.pending_cancellations(worker)
        interrupted = [record.run_id async for record in reader.list_runs(RunFilter(interrupted=True))]
        assert interrupted == [run_id for run_id, run in self.model.runs.items() if self.model.is_interrupted(run)]


class CrashingStoreMachine(StoreMachine):
    """Compares a store with the model, and kills its process in the middle of some calls."""

    environment: ClassVar[CrashingEnvironment]

    def call_both(self, call: Coroutine[Any, Any, Any], expected: ModelCall) -> None:
        if not self.has_effect(expected) or not self.environment.should_kill():
            super().call_both(self.environment.time_call(call), expected)
            return
        try:
            super().call_both(self.environment.kill_during(call), expected)
        except ProcessExited:
            self.resolve_interrupted_call(expected)
        finally:
            self.environment.replace_process()
        self.restart_workers()

    def has_effect(self, expected: ModelCall) -> bool:
        try:
            expected(copy.deepcopy(self.model))
        except CheckpointError:
            return False
        return True

    def restart_workers(self) -> None:
        """Register workers of the new process. Those of the old one are dead."""
        self.model.alive.clear()
        self.workers = [self.add_worker() for _ in SLOTS]

    def resolve_interrupted_call(self, expected: ModelCall) -> None:
        """Find out whether the interrupted call had its whole effect or none. Anything else is a failure."""
        before, after = self.model, copy.deepcopy(self.model)
        with contextlib.suppress(CheckpointError):
            expected(after)
        for model in (before, after):
            model.alive.clear()
        try:
            self.model = after
            self.environment.run(self.compare())
        except AssertionError:
            self.model = before
            self.environment.run(self.compare())

    def remove_in_both(self, run_id: str, claim: Claim | None) -> None:
        # An interrupted removal may leave some of the children: the contract does not demand that it is atomic.
        if self.model.has_children(run_id):
            with self.environment.pause_kills():
                super().remove_in_both(run_id, claim)
        else:
            super().remove_in_both(run_id, claim)

    @rule(restart_process=mostly_false)
    def reopen(self, restart_process: bool) -> None:
        if restart_process:
            self.environment.restart_process()
            self.restart_workers()
        else:
            self.environment.reopen_reader()


def run_sequences(machine: type[StoreMachine], environment: Environment) -> None:
    """Try sequences until the time has passed. A failing one is shrunk only in the thorough form, which takes long."""
    few_examples = settings(
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
        while not environment.is_time_up():
            run_state_machine_as_test(
                type(machine.__name__, (machine,), {"environment": environment}), settings=few_examples
            )
    finally:
        environment.close()


@pytest.mark.asyncio
class SequenceTests(StoreUnderTest):
    async def test_any_sequence_of_calls_matches_the_model(self, location: str) -> None:
        await asyncio.to_thread(self._run_sequences, location)

    def _run_sequences(self, location: str) -> None:
        """Run in a thread, because the environment has an event loop of its own."""
        build = functools.partial(self.build, location)
        run_sequences(StoreMachine, Environment(build, self.sequence_seconds * THOROUGH))


@pytest.mark.asyncio
class CrashingSequenceTests(DurableStoreUnderTest):
    async def test_any_sequence_of_calls_and_kills_matches_the_model(self, location: str) -> None:
        interrupted_calls = await asyncio.to_thread(self._run_crashing_sequences, location)
        assert interrupted_calls > 0, "no kill came in the middle of a call"

    def _run_crashing_sequences(self, location: str) -> int:
        environment = CrashingEnvironment(
            functools.partial(self.build, location),
            2 * self.sequence_seconds * THOROUGH,
            factory=self.factory,
            location=location,
            wait_until_idle=self.wait_until_idle,
        )
        run_sequences(CrashingStoreMachine, environment)
        return environment.interrupted_calls
