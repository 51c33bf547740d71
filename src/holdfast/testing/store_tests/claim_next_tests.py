"""The next runs for a worker: order, priority, fairness."""

import asyncio
import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import NewRun, Release, RunFilter, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.clock import SYSTEM_CLOCK
from holdfast.config import LimitKind
from holdfast.testing.store_processes.store_environment import Environment
from holdfast.testing.store_processes.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    create_waiting,
    get_run_ids,
    list_run_ids,
    load_record,
    make_append,
    make_run,
)
from holdfast.testing.store_tests.kill_tests import THOROUGH


@pytest.mark.asyncio
class ClaimNextTests(StoreUnderTest):
    async def test_interrupted_runs_are_claimed(self, store: RunStore, worker: str) -> None:
        deregistered = await add_worker(store)
        await store.create(make_run("queued"))
        await create_claimed(store, deregistered, make_run("abandoned"))
        await store.release(
            await create_claimed(store, deregistered, make_run("released")), Release(status=RunStatus.INTERRUPTED)
        )
        await store.deregister_worker(deregistered)
        claims = await store.claim_next(worker, agents=["agent"], limit=10)
        assert sorted(get_run_ids(claims)) == ["abandoned", "queued", "released"]
        for claim in claims:
            record = await load_record(store, claim.run_id)
            assert (record.status, record.owner, record.owner_alive) == (RunStatus.RUNNING, worker, True)
            assert (record.token, record.strikes) == (claim.token, claim.strikes)
            assert claim.strikes == (2 if claim.run_id == "abandoned" else 1)
            await store.append(claim, make_append(1, b"more"))

    async def test_an_executed_run_is_not_claimed(self, store: RunStore, worker: str) -> None:
        await create_claimed(store, worker)
        assert get_run_ids(await store.claim_next(await add_worker(store), agents=["agent"], limit=10)) == []
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []

    async def test_only_runs_of_the_given_agents_are_claimed(self, store: RunStore, worker: str) -> None:
        for name in ("A", "B", "C"):
            await store.create(make_run(f"run-{name}", agent_name=name))
        assert get_run_ids(await store.claim_next(worker, agents=[], limit=10)) == []
        assert get_run_ids(await store.claim_next(worker, agents=["a"], limit=10)) == []
        assert sorted(get_run_ids(await store.claim_next(worker, agents={"C", "A", "D"}, limit=10))) == [
            "run-A",
            "run-C",
        ]

    async def test_no_more_runs_than_the_limit_are_claimed(self, store: RunStore, worker: str) -> None:
        for n in range(5):
            await store.create(make_run(f"run-{n}"))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=0)) == []
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=2)) == ["run-0", "run-1"]
        assert len(await list_run_ids(store, RunFilter(interrupted=True))) == 3

    async def test_the_oldest_of_each_caller_comes_before_the_second_of_any(self, store: RunStore, worker: str) -> None:
        for n in range(5):
            await store.create(make_run(f"busy-{n}", caller_id="busy"))
        for caller in ("quiet", "shy"):
            for n in range(2):
                await store.create(make_run(f"{caller}-{n}", caller_id=caller))
        first = get_run_ids(await store.claim_next(worker, agents=["agent"], limit=4))
        assert sorted(first) == ["busy-0", "busy-1", "quiet-0", "shy-0"]
        rest = get_run_ids(await store.claim_next(worker, agents=["agent"], limit=3))
        assert sorted(rest) == ["busy-2", "quiet-1", "shy-1"]

    async def test_runs_of_many_callers_are_claimed_once_each(self, store: RunStore, worker: str) -> None:
        names = [f"run-{n:03}" for n in range(300)]
        await asyncio.gather(*(store.create(make_run(name, caller_id=name)) for name in names))
        claimed: list[str] = []
        for limit in (100, 250, 250):
            claimed += get_run_ids(await store.claim_next(worker, agents=["agent"], limit=limit))
        assert Counter(claimed) == Counter(names)

    async def test_only_claim_next_skips_a_run_in_its_backoff(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.release(claim, Release(status=RunStatus.INTERRUPTED, delay=timedelta(hours=1)))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []
        assert await list_run_ids(store, RunFilter(interrupted=True)) == ["run-1"]
        assert (await store.claim("run-1", worker)).strikes == 1

    async def test_the_backoff_between_strikes_holds_when_the_owner_dies(self, store: RunStore, worker: str) -> None:
        await store.release(await create_claimed(store, worker), Release(status=RunStatus.INTERRUPTED, strikes=2))
        deregistered = await add_worker(store)
        [claim] = await store.claim_next(deregistered, agents=["agent"], limit=1)
        assert claim.strikes == 3
        await store.deregister_worker(deregistered)
        assert (await load_record(store)).is_interrupted
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []

    async def test_a_ready_run_is_found_behind_many_callers_in_their_backoff(
        self, store: RunStore, worker: str
    ) -> None:
        names = [f"run-{n:03}" for n in range(300)]
        claims = await asyncio.gather(
            *(create_claimed(store, worker, make_run(name, caller_id=name)) for name in names)
        )
        later = Release(status=RunStatus.INTERRUPTED, delay=timedelta(hours=1))
        await asyncio.gather(*(store.release(claim, later) for claim in claims))
        for name in (*names[::75], names[-1]):
            await store.create(make_run(f"{name}-ready", caller_id=f"{name}-ready"))
            assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == [f"{name}-ready"]
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []

    async def test_a_higher_priority_comes_first_also_behind_many_callers_in_their_backoff(
        self, store: RunStore, worker: str
    ) -> None:
        names = [f"run-{n:03}" for n in range(300)]
        claims = await asyncio.gather(
            *(create_claimed(store, worker, make_run(name, caller_id=name, priority=1)) for name in names)
        )
        later = Release(status=RunStatus.INTERRUPTED, delay=timedelta(hours=1))
        await asyncio.gather(*(store.release(claim, later) for claim in claims))
        await store.create(make_run("low", caller_id="a"))
        await store.create(make_run("high", caller_id="z", priority=1))
        claimed = [get_run_ids(await store.claim_next(worker, agents=["agent"], limit=1)) for _ in range(3)]
        assert claimed == [["high"], ["low"], []]

    async def test_a_run_is_claimed_after_its_backoff(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.release(claim, Release(status=RunStatus.INTERRUPTED, delay=timedelta(milliseconds=200)))
        async with asyncio.timeout(self.timeout.total_seconds()):
            while not await store.claim_next(worker, agents=["agent"], limit=1):
                await store.wait_for_change(timedelta(milliseconds=20))
        assert (await load_record(store)).owner_alive

    async def test_a_child_is_claimed_only_after_its_parent(self, store: RunStore, worker: str) -> None:
        parent = await create_claimed(store, worker, make_run("parent"))
        await store.create(make_run("child", parent_run_id="parent"))
        await store.create(make_run("grandchild", parent_run_id="child"))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []
        await store.release(parent, Release(status=RunStatus.PARKED))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []
        parent = await store.claim("parent", worker, statuses={RunStatus.PARKED})
        await store.release(parent, Release(status=RunStatus.INTERRUPTED))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == ["parent"]
        await store.release(await store.claim("parent", worker, steal=True), Release(status=RunStatus.FAILED))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == ["child"]

    async def test_a_background_child_is_claimed_beside_its_parent(self, store: RunStore, worker: str) -> None:
        await create_claimed(store, worker, make_run("parent"))
        dead = await add_worker(store)
        await create_claimed(store, dead, make_run("of-a-dead-worker", parent_run_id="parent", background=True))
        await store.deregister_worker(dead)
        await store.create(make_run("queued", parent_run_id="parent", background=True))
        past = SYSTEM_CLOCK.now() - timedelta(hours=1)
        await create_waiting(store, worker, make_run("due", parent_run_id="parent", background=True), wake_at=past)
        await store.create(make_run("attached", parent_run_id="parent"))
        claimed: list[str] = []
        async with asyncio.timeout(self.timeout.total_seconds()):
            while len(claimed) < 3:  # one after its backoff
                claimed += get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10))
                await store.wait_for_change(timedelta(milliseconds=20))
        assert sorted(claimed) == ["due", "of-a-dead-worker", "queued"]
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []

    async def test_a_child_does_not_use_up_its_callers_turn(self, store: RunStore, worker: str) -> None:
        await create_claimed(store, worker, make_run("parent", caller_id="other"))
        await store.create(make_run("child", parent_run_id="parent", caller_id="x"))
        await store.create(make_run("own", caller_id="x"))
        await store.create(make_run("next", caller_id="x"))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=1)) == ["own"]

    async def test_an_orphan_is_claimed(self, store: RunStore, worker: str) -> None:
        await store.create(make_run("orphan", parent_run_id="unknown"))
        with pytest.raises(RunNotFound):
            await store.load("unknown")
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == ["orphan"]

    async def test_concurrent_claimers_never_share_a_run(self, store: RunStore) -> None:
        for n in range(40):
            await store.create(make_run(f"run-{n}", caller_id=f"caller-{n % 3}"))
        workers = [await add_worker(store) for _ in range(8)]

        async def drain(worker_id: str) -> list[str]:
            claimed: list[str] = []
            while claims := await store.claim_next(worker_id, agents=["agent"], limit=3):
                claimed += get_run_ids(claims)
            return claimed

        claimed = Counter(
            run_id for claimed_ids in await asyncio.gather(*map(drain, workers)) for run_id in claimed_ids
        )
        assert claimed == Counter({f"run-{n}": 1 for n in range(40)})


#: Agent, caller, key and priority of a run.
_Run = tuple[str, str, str | None, int]

_runs = st.tuples(
    st.sampled_from("AB"),
    st.sampled_from("xyz"),
    st.sampled_from([None, "k", "l", "m"]),
    st.sampled_from([-1, 0, 0, 3]),
)
_K = ("key", "k")
#: By kind and name. Each lets at least one run pass, so that every queue can be drained.
_limits = st.dictionaries(st.sampled_from([("agent", "A"), _K, ("key", "l")]), st.integers(min_value=1, max_value=3))


@dataclass
class FairnessModel:
    """The queued and the running runs of one example, by id, and what `claim_next` may choose."""

    caps: dict[tuple[LimitKind, str], int]
    queued: dict[str, NewRun]
    running: dict[str, NewRun] = field(default_factory=dict)

    def get_usage(self) -> Counter[tuple[LimitKind, str]]:
        return Counter(itertools.chain.from_iterable(_list_names(run) for run in self.running.values()))

    def is_free(self, run: NewRun) -> bool:
        usage = self.get_usage()
        return all(usage[name] < self.caps[name] for name in _list_names(run) if name in self.caps)

    def claim(self, run_ids: Sequence[str], limit: int) -> None:
        """Check one result of `claim_next`, and apply it."""
        claimed = {run_id: self.queued.pop(run_id) for run_id in run_ids}
        self.running |= claimed
        assert all(self.get_usage()[name] <= cap for name, cap in self.caps.items()), "no limit is exceeded"
        free = [run for run in self.queued.values() if self.is_free(run)]
        assert len(claimed) == limit or not free, "no run is left while it has a slot and there is room"
        assert _is_ordered(claimed.values(), self.queued.values()), "the oldest of the same kind first"
        for run in free:
            assert all(other.priority >= run.priority for other in claimed.values()), "a higher priority comes first"
            turns = Counter(other.caller_id for other in claimed.values() if other.priority == run.priority)
            most = max(turns.values(), default=0)
            assert turns[run.caller_id] >= most - 1, "no caller gets a second turn before another has its first"


def _list_names(run: NewRun) -> list[tuple[LimitKind, str]]:
    names: list[tuple[LimitKind, str]] = [("agent", run.agent_name)]
    return [*names, ("key", run.concurrency_key)] if run.concurrency_key else names


def _is_ordered(claimed: Iterable[NewRun], left: Iterable[NewRun]) -> bool:
    def get_kind(run: NewRun) -> tuple[object, ...]:
        return run.agent_name, run.caller_id, run.concurrency_key, run.priority

    oldest_left = {get_kind(run): run.run_id for run in sorted(left, key=lambda run: run.run_id, reverse=True)}
    return all(run.run_id < oldest_left.get(get_kind(run), "~") for run in claimed)


async def check_queue(
    store: RunStore, worker: str, prefix: str, runs: list[_Run], limits: dict[tuple[LimitKind, str], int], room: int
) -> None:
    """Queue the runs and claim them, `room` at a time, until none is left. End the oldest one after each claim."""
    caps = {(kind, f"{prefix}{name}"): cap for (kind, name), cap in limits.items()}
    for (kind, name), cap in caps.items():
        await store.set_limit(kind, name, cap)
    queued = [
        make_run(
            f"{prefix}{number:03}",
            agent_name=f"{prefix}{agent}",
            caller_id=caller,
            key=None if key is None else f"{prefix}{key}",
            priority=priority,
        )
        for number, (agent, caller, key, priority) in enumerate(runs)
    ]
    for run in queued:
        await store.create(run)
    model = FairnessModel(caps, {run.run_id: run for run in queued})
    claims: dict[str, Claim] = {}
    while model.queued:
        found = await store.claim_next(worker, agents=[f"{prefix}A", f"{prefix}B"], limit=room)
        claims |= {claim.run_id: claim for claim in found}
        model.claim([claim.run_id for claim in found], room)
        oldest = next(iter(claims))
        await store.release(claims.pop(oldest), Release(status=RunStatus.DONE))
        del model.running[oldest]


@pytest.mark.asyncio
class FairnessTests(StoreUnderTest):
    async def test_any_queue_is_drained_as_the_model_of_fairness_demands(self, location: str) -> None:
        await asyncio.to_thread(self._check_queues, location)

    def _check_queues(self, location: str) -> None:
        """Run in a thread, because the environment has an event loop of its own."""
        environment = Environment(functools.partial(self.build, location), 0)
        worker = environment.make_worker()
        numbers = itertools.count()

        @settings(
            max_examples=20 * THOROUGH,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if THOROUGH > 1 else [])],
        )
        @example([("B", "z", "m", 3), ("A", "x", "m", -1), ("A", "z", "l", 3)], {("agent", "A"): 3}, 2)
        @example([("A", "x", "k", 0), ("A", "y", "k", 0)], {_K: 1}, 2)
        @example(
            [("A", "x", None, 0), ("A", "y", "k", 0), ("A", "z", "k", 0), ("A", "x", None, 0)], {("key", "k"): 1}, 2
        )
        @given(st.lists(_runs, min_size=1, max_size=12), _limits, st.sampled_from([1, 2, 4, 20]))
        def check(runs: list[_Run], limits: dict[tuple[LimitKind, str], int], room: int) -> None:
            call = check_queue(environment.store, worker.worker_id, f"q{next(numbers):05}-", runs, limits, room)
            environment.run(call)

        try:
            environment.run(environment.store.register_worker(worker))
            check()
        finally:
            environment.close()
