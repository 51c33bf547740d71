"""A measurement: every size on every system, interleaved."""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence

from bench.machine import describe_machine
from bench.plan import Size, Subject, capped, subjects
from bench.records import Record, Results
from bench.runner import ROOT, Runner

#: (seconds, repeats): a job that takes longer is repeated less often.
TIME_LIMIT = ((120.0, 1), (30.0, 2))


def measure(sizes: Sequence[Size], *, peers: bool, repeats: int | None, time_limit: float) -> Results:
    """Run all jobs. Within a repeat all systems take turns, and each repeat begins with another one."""
    runner, records = Runner(time_limit=time_limit), list[Record]()
    try:
        able = {system: _supports(runner, system) for system in _systems(sizes, peers)}
        for size in sizes:
            asked = [
                subject
                for subject in subjects(size.workload, peers=peers)
                if size.workload in able[subject.system] and not capped(size, subject)
            ]
            records += _repeat(runner, size, asked, repeats or size.repeats)
    finally:
        runner.close()
    return Results(machine=describe_machine(ROOT), records=records)


def _repeat(runner: Runner, size: Size, asked: list[Subject], repeats: int) -> list[Record]:
    records, enough = list[Record](), defaultdict[Subject, int](lambda: repeats)
    for repeat in range(repeats):
        shift = repeat % len(asked)
        for subject in asked[shift:] + asked[:shift]:
            if repeat >= enough[subject]:
                continue
            record = runner.run_job(size, subject, repeat)
            records.append(record)
            _log(size, subject, record)
            for seconds, times in TIME_LIMIT:
                if record.took > seconds:
                    enough[subject] = min(enough[subject], times)
            if record.failed is not None:
                enough[subject] = min(enough[subject], 2)
    return records


def _systems(sizes: Sequence[Size], peers: bool) -> set[str]:
    return {subject.system for size in sizes for subject in subjects(size.workload, peers=peers)}


def _supports(runner: Runner, system: str) -> list[str]:
    """Return the workloads of a system; none if its program cannot be started here."""
    try:
        return runner.workloads(system)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as exc:
        print(f"{system} is left out: {exc}", file=sys.stderr, flush=True)
        return []


def _log(size: Size, subject: Subject, record: Record) -> None:
    words = f"failed: {record.failed}" if record.failed else f"{record.took:.1f} s"
    print(
        f"{size.workload} {size.number:,} {subject}, repeat {record.repeat + 1}: {words}", file=sys.stderr, flush=True
    )
