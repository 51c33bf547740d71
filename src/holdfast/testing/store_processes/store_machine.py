"""A state machine that makes random calls on a store and on the model, and compares the two."""

import contextlib
import functools
import operator
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.checkpoint.errors import CheckpointError, RunNotFound
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import (
    CLAIMABLE_STATUSES,
    RELEASE_STATUSES,
    NewRun,
    Notice,
    Release,
    RunFilter,
    RunStatus,
)
from holdfast.checkpoint.store import END, RunStore, get_record, iter_runs
from holdfast.checkpoint.workers import Claim
from holdfast.clock import SYSTEM_CLOCK
from holdfast.testing.store_processes.contract_model import PAST_YEAR, Model
from holdfast.testing.store_processes.store_environment import Environment
from holdfast.testing.store_processes.store_under_test import (
    get_run_ids,
    make_append,
    make_entries,
    make_mail,
    make_run,
)

#: The parent of a run comes before it in this list, so no run is its own ancestor.
RUN_IDS = ["a", "A", "b..", "B:c", "d"]
AGENTS = ["agent", "Agent"]
CALLERS = ["x", "y"]
SLOTS = (0, 1)
MAIL_IDS = ["m", "M", "m:1"]
TOPICS = ["t", "T"]

run_ids = st.sampled_from(RUN_IDS)
agents = st.sampled_from(AGENTS)
callers = st.sampled_from(CALLERS)
slots = st.sampled_from(SLOTS)
bodies = st.lists(st.binary(max_size=20), max_size=3)
mostly_false = st.sampled_from([False, False, False, True])
delays = st.sampled_from([timedelta(0), timedelta(0), timedelta(hours=1)])
retentions = st.sampled_from([None, timedelta(0), timedelta(hours=1)])
#: How many of the unread mail a write consumes, or -1 for mail that does not exist.
consumptions = st.sampled_from([0, 0, 1, 9, -1])
#: The topics and the time that a released run waits for. The time is long past, or far ahead.
waits = st.tuples(
    st.sampled_from([[], TOPICS[:1], TOPICS]),
    st.sampled_from([None, datetime(PAST_YEAR, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)]),
)
#: Chooses a claim: an index, and whether invalid claims count too.
which_claims = st.tuples(st.integers(0, 5), mostly_false)

ModelCall = Callable[[Model], None]


async def _append(store: RunStore, claim: Claim, write: Append) -> None:
    """`append` may return a future, which belongs to the running loop."""
    await store.append(claim, write)


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
            parent = RUN_IDS[0] if child and run_id != RUN_IDS[0] else None
            self.create_in_both(make_run(run_id, agent_name=agent, caller_id=caller, parent_run_id=parent), None)

    async def clear(self) -> None:
        """Remove the runs of the previous example, which had the same location. Tokens keep growing."""
        store = self.environment.store
        for record in [record async for record in iter_runs(store)]:
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
                SYSTEM_CLOCK.monotonic(),
            )
            claiming = self.environment.store.claim(run_id, worker, statuses=set(RunStatus), steal=True)
            self.call_both(claiming, functools.partial(Model.assign, began=began, run_id=run_id, worker_id=worker))

    @rule(run_id=run_ids, agent=agents, caller=callers, data=st.data())
    def create(self, run_id: str, agent: str, caller: str, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from([None, *RUN_IDS[: RUN_IDS.index(run_id)]]))
        background = parent is not None and data.draw(mostly_false)
        run = make_run(
            run_id,
            *data.draw(bodies),
            agent_name=agent,
            caller_id=caller,
            parent_run_id=parent,
            background=background,
        )
        self.create_in_both(run, data.draw(st.sampled_from([None, *self.workers])))

    def create_in_both(self, run: NewRun, worker_id: str | None) -> None:
        began = SYSTEM_CLOCK.monotonic()
        self.call_both(
            self.environment.store.create(run, worker_id=worker_id),
            functools.partial(Model.create, began=began, run=run, worker_id=worker_id),
        )

    @rule(
        which=which_claims,
        bodies=bodies,
        replace=st.booleans(),
        finished_step=st.booleans(),
        consumption=consumptions,
        unless_mail=st.sampled_from([[], [], TOPICS[:1]]),
    )
    def append(
        self,
        which: tuple[int, bool],
        bodies: list[bytes],
        replace: bool,
        finished_step: bool,
        consumption: int,
        unless_mail: list[str],
    ) -> None:
        if (claim := self.pick_claim(which)) is not None:
            first = self.model.next_seq(claim.run_id)
            progress = b"%d" % first if bodies else b""
            write = make_append(
                first,
                *bodies,
                progress=progress,
                rewrite=replace,
                step_finished=finished_step,
                consumed=self.pick_mail(claim.run_id, consumption),
                unless_mail=unless_mail,
            )
            self.call_both(
                _append(self.environment.store, claim, write), functools.partial(Model.append, claim=claim, write=write)
            )

    @rule(
        which=which_claims,
        status=st.sampled_from(sorted(RELEASE_STATUSES)),
        last=bodies,
        delay=delays,
        retention=retentions,
        consumption=consumptions,
        wait=waits,
        notified=st.none() | run_ids,
    )
    def release(
        self,
        which: tuple[int, bool],
        status: RunStatus,
        last: list[bytes],
        delay: timedelta,
        retention: timedelta | None,
        consumption: int,
        wait: tuple[list[str], datetime | None],
        notified: str | None,
    ) -> None:
        wake_on, wake_at = wait if status is RunStatus.WAITING else (wait[0], None)
        if (claim := self.pick_claim(which)) is not None:
            release = Release(
                status=status,
                despite_cancel=status is RunStatus.PARKED and consumption % 2 == 1,
                reason=f"it is {status}",
                entries=make_entries(self.model.next_seq(claim.run_id), *last),
                progress=b"released" if last else None,
                strikes=3 if delay else 0,
                delay=delay if wake_at is None else timedelta(0),
                retention=retention,
                consumed=self.pick_mail(claim.run_id, consumption),
                wake_on=wake_on,
                wake_at=wake_at,
                notify=_make_notice(claim.run_id, notified),
            )
            began = SYSTEM_CLOCK.monotonic()
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
        worker, began = self.workers[slot], SYSTEM_CLOCK.monotonic()
        self.call_both(
            self.environment.store.claim(run_id, worker, statuses=statuses, steal=steal),
            functools.partial(
                Model.claim, began=began, run_id=run_id, worker_id=worker, statuses=statuses, steal=steal
            ),
        )

    @rule(slot=slots, only_one_agent=mostly_false, limit=st.sampled_from([1, 2, 3, 9, 0]))
    def claim_next(self, slot: int, only_one_agent: bool, limit: int) -> None:
        worker, began = self.workers[slot], SYSTEM_CLOCK.monotonic()
        agent_names = AGENTS[:1] if only_one_agent else AGENTS
        turns = self.model.get_claim_order(agent_names, began)
        claims = self.environment.run(self.environment.store.claim_next(worker, agents=agent_names, limit=limit))
        if self.model.is_backoff_ambiguous(began, SYSTEM_CLOCK.monotonic()):
            reject()
        assert set(get_run_ids(claims)) <= set(turns), "only claimable runs"
        assert sorted(turns[run_id] for run_id in get_run_ids(claims)) == sorted(turns.values())[:limit], (
            "fair to the callers"
        )
        for claim in claims:
            self.model.assign(began, claim.run_id, worker)
        self.record_claims(sorted(claims, key=operator.attrgetter("token")))

    @rule(run_id=run_ids, mail_id=st.sampled_from(MAIL_IDS), topic=st.sampled_from(TOPICS), body=st.binary(max_size=9))
    def post(self, run_id: str, mail_id: str, topic: str, body: bytes) -> None:
        mail, began = make_mail(mail_id, topic=topic, body=body), SYSTEM_CLOCK.monotonic()
        self.call_both(
            self.environment.store.post(run_id, mail),
            functools.partial(Model.post, began=began, run_id=run_id, mail=mail),
        )

    def pick_mail(self, run_id: str, consumption: int) -> list[str]:
        """Return the ids of some unread mail, or an id that does not exist."""
        run = self.model.runs.get(run_id)
        unread = [] if run is None else list(run.unread)
        return ["unknown"] if consumption < 0 else unread[:consumption]

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
        self.model.assert_matches([record async for record in iter_runs(reader)])
        for run_id, run in self.model.runs.items():
            stored = await reader.load(run_id)
            assert list(stored.entries) == run.entries
            assert stored.record == await get_record(reader, run_id)
            for mail in (stored.mail, (await reader.load(run_id, after=END)).mail):
                assert [(each.mail_id, each.topic, each.body) for each in mail] == [
                    (each.mail_id, each.topic, each.body) for each in run.unread.values()
                ]
        for worker in self.workers:
            pending = await reader.pending(worker)
            assert sorted(pending.cancels) == self.model.pending_cancels(worker)
            assert sorted(pending.mail) == self.model.pending_mail(worker)
        assert [record.run_id for record in (await reader.list_page()).records] == list(self.model.runs)[::-1]
        interrupted = [record.run_id async for record in iter_runs(reader, RunFilter(interrupted=True))]
        assert interrupted == [run_id for run_id, run in self.model.runs.items() if self.model.is_interrupted(run)]


def _make_notice(sender: str, run_id: str | None) -> Notice | None:
    mail = make_mail(f"from {sender}", topic=TOPICS[0])
    return None if run_id is None else Notice(run_id=run_id, mail=mail)
