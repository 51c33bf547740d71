"""Records of measurements that were never made."""

from typing import Any

from bench.plan import WORKLOADS
from bench.records import Record, Results

MACHINE: dict[str, str | int] = {
    "processor": "a processor", "cores": 2, "memory_bytes": 8 << 30, "kernel": "Linux", "file_system": "ext4",
    "python": "3.11",
}  # fmt: skip


def record(
    workload: str, system: str, variant: str, size: int, *, repeat: int = 0, failed: str | None = None, **result: Any
) -> Record:
    numbers = {"steps": 20, WORKLOADS[workload].axis: size}
    return Record(
        workload=workload, system=system, variant=variant, numbers=numbers, repeat=repeat, took=1.0,
        result=None if failed else result, failed=failed,
    )  # fmt: skip


def one_run(system: str, variant: str, seconds: float, *, repeat: int = 0, size: int = 1000, disk: int = 1) -> Record:
    return record(
        "w1", system, variant, size, repeat=repeat, seconds=seconds, first_steps=0.001, last_steps=0.001,
        disk_bytes=disk, written_bytes=1, transcript_bytes=1, curve=[[1, 0.001]],
    )  # fmt: skip


def many_runs(system: str, variant: str, rate: float, *, repeat: int = 0, size: int = 128) -> Record:
    latencies = {"p50": 0.001, "p99": 0.002}
    return record(
        "w2", system, variant, size, repeat=repeat, runs=size, steps=20, seconds=size * 20 / rate, latencies=latencies
    )


def results(*records: Record) -> Results:
    return Results(machine=MACHINE, records=list(records))
