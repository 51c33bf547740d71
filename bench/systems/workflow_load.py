"""What is measured of workflows, alike for all systems: many short ones, and one that sleeps."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

from bench.systems.protocol import Job, Result, latencies, processor_seconds

#: How long each sleep of a workflow lasts.
SLEEP_SECONDS = 0.001


async def measure_workflows(
    job: Job, execute: Callable[[int], Awaitable[object]], read_processor: Callable[[], float] = processor_seconds
) -> Result:
    """Run workflows to their results, `parallel` of them at a time. Measures each as its caller does."""
    times, numbers = list[float](), iter(range(job["runs"]))

    async def keep_executing() -> None:
        for number in numbers:
            began = time.perf_counter()
            await execute(number)
            times.append(time.perf_counter() - began)

    await execute(-1)  # the first one pays for connections and caches
    used, began = read_processor(), time.perf_counter()
    await asyncio.gather(*(keep_executing() for _ in range(job["parallel"])))
    took = time.perf_counter() - began
    shared = {"runs": job["runs"], "steps": job["steps"], "latencies": latencies(times)}
    return {"seconds": took, "cpu": read_processor() - used, **shared}


class SleepTimes:
    """When the code of a workflow that sleeps reached each round for the first time."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def reach(self, number: int) -> None:
        if len(self._times) == number:
            self._times.append(time.perf_counter())

    def is_reached(self, number: int) -> bool:
        return len(self._times) > number

    def describe(self) -> Result:
        """Return the result of the job. Each sleep lasts a thousandth of a second, which is taken away."""
        rounds = [after - before - SLEEP_SECONDS for before, after in itertools.pairwise(self._times)]
        return {"seconds": sum(rounds), "step_seconds": rounds}
