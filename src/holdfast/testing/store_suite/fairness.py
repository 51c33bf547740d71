"""A test of `claim_next` against a model of fairness, with random queues and limits."""

import asyncio
import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.limits import make_limit
from holdfast.checkpoint.record import NewRun, Release, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_suite.environment import Environment
from holdfast.testing.store_suite.kills import THOROUGH
from holdfast.testing.store_suite.store_under_test import StoreUnderTest, make_run

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

    caps: dict[tuple[str, str], int]
    queued: dict[str, NewRun]
    running: dict[str, NewRun] = field(default_factory=dict)

    def get_usage(self) -> Counter[tuple[str, str]]:
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


def _list_names(run: NewRun) -> list[tuple[str, str]]:
    return [("agent", run.agent_name), *([("key", run.key)] if run.key is not None else [])]


def _is_ordered(claimed: Iterable[NewRun], left: Iterable[NewRun]) -> bool:
    def get_kind(run: NewRun) -> tuple[object, ...]:
        return run.agent_name, run.caller_id, run.key, run.priority

    oldest_left = {get_kind(run): run.run_id for run in sorted(left, key=lambda run: run.run_id, reverse=True)}
    return all(run.run_id < oldest_left.get(get_kind(run), "~") for run in claimed)


async def check_queue(
    store: CheckpointStore, worker: str, prefix: str, runs: list[_Run], limits: dict[tuple[str, str], int], room: int
) -> None:
    """Queue the runs and claim them, `room` at a time, until none is left. End the oldest one after each claim."""
    caps = {(kind, f"{prefix}{name}"): cap for (kind, name), cap in limits.items()}
    for (kind, name), cap in caps.items():
        await store.set_limit(make_limit(kind, name, cap))
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
        def check(runs: list[_Run], limits: dict[tuple[str, str], int], room: int) -> None:
            call = check_queue(environment.store, worker.worker_id, f"q{next(numbers):05}-", runs, limits, room)
            environment.run(call)

        try:
            environment.run(environment.store.register_worker(worker))
            check()
        finally:
            environment.close()
