"""The agent of systems whose workflows are functions that name their steps: a step for each reply and each result."""

import itertools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from bench.systems.footprint import Footprint, footprint
from bench.systems.protocol import Job, Result, Workload, latencies, text

#: Runs a function once and records its result under a name.
Step = Callable[[str, Callable[[], Awaitable[str]]], Awaitable[Any]]


class BenchAgent:
    """An agent, and the times of its model calls by run."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.times: dict[str, list[float]] = defaultdict(list)

    async def run(self, run_id: str, step: Step) -> None:
        size = self._job["bytes"]

        async def ask_model(number: int, length: int) -> str:
            self.times[run_id].append(time.perf_counter())
            return text(number, length)

        async def call_tool(number: int) -> str:
            return text(number, size)

        transcript = []
        for number in range(0, 2 * self._job["steps"], 2):
            transcript.append(await step(f"model-{number}", lambda number=number: ask_model(number, size)))  # type: ignore[misc]
            transcript.append(await step(f"tool-{number}", lambda number=number: call_tool(number + 1)))  # type: ignore[misc]
        await step("answer", lambda: ask_model(2 * self._job["steps"], len("done")))

    def describe_one_run(self, before: Footprint, began: float) -> Result:
        """Return the result of a job with one run."""
        cost = footprint(self._job).since(before)
        (times,) = self.times.values()
        times[0] = began
        return {
            "seconds": times[-1] - began,
            "step_seconds": self._step_seconds(),
            "transcript_bytes": 2 * self._job["bytes"] * self._job["steps"],
            **cost,
        }

    def describe_many_runs(self, took: float) -> Result:
        """Return the result of a job with many runs."""
        shared = {"runs": self._job["runs"], "steps": self._job["steps"]}
        return {"seconds": took, **shared, "latencies": latencies(self._step_seconds())}

    def _step_seconds(self) -> list[float]:
        return [later - earlier for times in self.times.values() for earlier, later in itertools.pairwise(times)]


#: Runs this many agents to their ends. Returns the footprint before, when it began, and how long it took.
RunAll = Callable[[Job, BenchAgent, int], Awaitable[tuple[Footprint, float, float]]]


def make_workloads(run_all: RunAll) -> dict[str, Workload]:
    """Return the workloads of a system that runs agents in this way."""

    async def one_run(job: Job) -> Result:
        agent = BenchAgent(job)
        before, began, _ = await run_all(job, agent, 1)
        return agent.describe_one_run(before, began)

    async def many_runs(job: Job) -> Result:
        agent = BenchAgent(job)
        _, _, took = await run_all(job, agent, job["runs"])
        return agent.describe_many_runs(took)

    return {"w1": one_run, "w2": many_runs}
