"""The raw limits: the messages of the workload, made safe, and nothing else. `python -m bench.systems.raw JOB`.

Variants: `file` (append and sync), `sqlite-N` and `postgres-N` (N commits a step: with two, a reply is safe before its
tools are called), `sqlite-group-N` and `postgres-group-N` (the same, one commit for all runs that wait).
"""

import asyncio
import itertools
import time
from collections.abc import Iterator

from bench.systems.footprint import footprint
from bench.systems.protocol import Job, Result, Workload, kill_self, latencies, main, since_process_start, text
from bench.systems.raw.group_commit import GroupCommit
from bench.systems.raw.log import Log, open_log
from bench.systems.raw.row import Row
from bench.systems.workflow_load import measure_workflows


def step(job: Job, run: int, number: int) -> Iterator[list[Row]]:
    """The rows of a step, by commit: both together, or the reply before the result."""
    rows = [Row(run, seq, text(seq, job["bytes"]).encode()) for seq in (2 * number, 2 * number + 1)]
    yield from [rows[:1], rows[1:]] if job["variant"].endswith("-2") else [rows]


def one_run(job: Job) -> Result:
    log = open_log(job)
    before, times = footprint(job), [time.perf_counter()]
    for number in range(job["steps"]):
        for rows in step(job, 0, number):
            log.append(rows)
        times.append(time.perf_counter())
    cost = footprint(job).since(before)
    log.close()
    return {
        "seconds": times[-1] - times[0],
        "step_seconds": [after - earlier for earlier, after in itertools.pairwise(times)],
        "transcript_bytes": 2 * job["bytes"] * job["steps"],
        **cost,
    }


async def many_runs(job: Job) -> Result:
    log = open_log(job)
    group, times = GroupCommit(log), list[float]()

    async def one(run: int) -> None:
        for number in range(job["steps"]):
            began = time.perf_counter()
            for rows in step(job, run, number):
                await group.append(rows)
            times.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(one(run) for run in range(job["runs"])))
    took = time.perf_counter() - began
    group.stop()
    log.close()
    return {"seconds": took, "runs": job["runs"], "steps": job["steps"], "latencies": latencies(times)}


async def many_workflows(job: Job) -> Result:
    """Commit the result of each step of a workflow, alone or with those of the others that wait."""
    log = open_log(job)
    group = GroupCommit(log) if "group" in job["variant"] else None

    async def execute(run: int) -> None:
        for number in range(job["steps"]):
            row = Row(run + 1, number, text(number, job["bytes"]).encode())
            if group is None:
                log.append([row])
            else:
                await group.append([row])

    result = await measure_workflows(job, execute)
    if group is not None:
        group.stop()
    log.close()
    return result


def many_sleeps(job: Job) -> Result:
    """Commit a row for each sleep, and sleep for nothing."""
    log, times = open_log(job), [time.perf_counter()]
    for number in range(job["sleeps"]):
        log.append([Row(0, number, b"sleep")])
        times.append(time.perf_counter())
    log.close()
    rounds = [after - earlier for earlier, after in itertools.pairwise(times)]
    return {"seconds": sum(rounds), "step_seconds": rounds}


def interrupted(job: Job) -> Result:
    """Lists what is there, reads it all, and adds a step to each: what any recovery has to do."""
    log = open_log(job)
    if job["phase"] == "prepare":
        for number in range(job["steps"]):
            log.append([row for run in range(job["runs"]) for rows in step(job, run, number) for row in rows])
        kill_self()
    runs = log.runs()
    found = since_process_start()
    ends = dict[int, int]()
    first = 0.0
    for run in runs:
        ends[run] = len(log.load(run)) // 2
        if not first:
            _resume(job, log, {run: ends[run]})
            first = since_process_start()
    loaded = since_process_start()
    _resume(job, log, {run: end for run, end in ends.items() if run != runs[0]})
    log.close()
    assert len(runs) == job["runs"]
    return {"find": found, "load": loaded, "first": first, "last": since_process_start()}


def _resume(job: Job, log: Log, ends: dict[int, int]) -> None:
    rows = [row for run, end in ends.items() for rows in step(job, run, end) for row in rows]
    if rows:
        log.append(rows)


if __name__ == "__main__":
    workloads: dict[str, Workload] = {"w1": one_run, "w2": many_runs, "w3": interrupted, "w5": one_run}
    main(workloads | {"w11": many_workflows, "w12": many_workflows, "w13": many_sleeps}, packages=["psycopg"])
