"""Records of measurements, and the file that keeps them."""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from bench.plan import WORKLOADS, Subject


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One job and its result."""

    workload: str
    system: str
    variant: str
    #: The sizes of the job.
    numbers: dict[str, int]
    repeat: int
    #: Seconds from the start of the job's first process to the end of its last.
    took: float
    result: dict[str, Any] | None = None
    #: Why there is no result.
    failed: str | None = None

    @property
    def subject(self) -> Subject:
        return Subject(self.system, self.variant)

    @property
    def size(self) -> int:
        return self.numbers[WORKLOADS[self.workload].axis]


class Results(msgspec.Struct, kw_only=True):
    """One measurement: the machine it was made on, and every job."""

    machine: dict[str, str | int]
    records: list[Record]


def read(path: Path) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results)


def write(path: Path, results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = b",\n".join(msgspec.json.encode(record) for record in results.records)
    path.write_bytes(b'{"machine":%s,"records":[\n%s\n]}\n' % (msgspec.json.encode(results.machine), lines))


def join_results(earlier: Iterable[Record], later: Iterable[Record]) -> list[Record]:
    """Join two measurements. The later one wins where both have a workload in the same size."""
    later = list(later)
    again = {(record.workload, record.size) for record in later}
    kept = [record for record in earlier if (record.workload, record.size) not in again]
    order = list(WORKLOADS)
    return sorted(kept + later, key=lambda each: (order.index(each.workload), each.size))


def condense_result(result: dict[str, Any]) -> dict[str, Any]:
    """Replace the times of all steps by a curve of medians."""
    seconds = result.get("step_seconds")
    if not seconds:
        return result
    part = min(100, max(1, len(seconds) // 2))
    kept = {name: value for name, value in result.items() if name != "step_seconds"}
    return kept | {
        "first_steps": statistics.median(seconds[:part]),
        "last_steps": statistics.median(seconds[-part:]),
        "curve": [[at, statistics.median(seconds[begin:end])] for begin, at, end in _windows(len(seconds))],
    }


def _windows(steps: int) -> list[tuple[int, int, int]]:
    """Return begin, middle and end of windows that grow with the distance from the start."""
    found, begin = [], 0
    while begin < steps:
        end = min(steps, begin + max(5, begin // 3))
        found.append((begin, (begin + end) // 2 + 1, end))
        begin = end
    return found
