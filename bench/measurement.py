"""A measurement: every workload in every size on every system, interleaved."""

import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from bench.plan import Job, Size, Subject, jobs
from bench.records import Record
from bench.runner import Runner

#: (seconds, repeats): a job that takes longer is repeated less often.
_FEWER_REPEATS = ((20.0, 1), (8.0, 2))

#: Seconds that a job is expected to take if it was not measured before.
_UNKNOWN = 5.0


def measure(
    sizes: Sequence[tuple[str, Size]],
    *,
    peers: bool,
    repeats: int | None,
    time_limit: float,
    save: Callable[[list[Record]], None],
) -> list[Record]:
    """Run all jobs, and save the records after each size.

    Within a repeat all systems take turns, and each repeat begins with another one.
    """
    runner, records = Runner(time_limit=time_limit), list[Record]()
    able = _Programs(runner)
    try:
        for workload, size in sizes:
            asked = [job for job in jobs(workload, size, peers=peers) if able.run(job)]
            records += _repeat(runner, asked, repeats or size.repeats)
            save(records)
    finally:
        runner.close()
    return records


def estimate(
    sizes: Sequence[tuple[str, Size]], known: Iterable[Record], *, peers: bool, repeats: int | None
) -> tuple[float, int, int]:
    """Return the expected seconds by an earlier measurement, the number of jobs, and how many of them it has."""
    took: dict[tuple[str, int, Subject], list[float]] = defaultdict(list)
    for record in known:
        took[record.workload, record.size, record.subject].append(record.took / record.numbers.get("steps", 1))
    seconds, all_jobs, found = 0.0, 0, 0
    for workload, size in sizes:
        for job in jobs(workload, size, peers=peers):
            times = took.get((workload, size.number, job.subject))
            once = statistics.median(times) * job.numbers.get("steps", 1) if times else _UNKNOWN
            seconds += once * min(repeats or size.repeats, _most_repeats(once))
            all_jobs, found = all_jobs + 1, found + bool(times)
    return seconds, all_jobs, found


def _repeat(runner: Runner, asked: Sequence[Job], repeats: int) -> list[Record]:
    records, enough = list[Record](), defaultdict[Subject, int](lambda: repeats)
    for repeat in range(repeats):
        shift = repeat % len(asked) if asked else 0
        for number in range(len(asked)):
            job = asked[(number + shift) % len(asked)]
            if repeat >= enough[job.subject]:
                continue
            record = runner.run_job(job, repeat)
            records.append(record)
            said = f"failed: {record.failed}" if record.failed else f"{record.took:.1f} s"
            print(f"{job}, repeat {repeat + 1}: {said}", file=sys.stderr, flush=True)
            enough[job.subject] = min(enough[job.subject], 1 if record.failed else _most_repeats(record.took))
    return records


def _most_repeats(took: float) -> int:
    return min((times for seconds, times in _FEWER_REPEATS if took > seconds), default=sys.maxsize)


class _Programs:
    """The programs of the systems. One that cannot be started here is left out."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._workloads: dict[str, list[str]] = {}

    def run(self, job: Job) -> bool:
        system = job.subject.system
        if system not in self._workloads:
            try:
                self._workloads[system] = self._runner.workloads(system)
            except (RuntimeError, OSError, subprocess.CalledProcessError) as exc:
                print(f"{system} is left out: {exc}", file=sys.stderr, flush=True)
                self._workloads[system] = []
        return job.workload in self._workloads[system]
