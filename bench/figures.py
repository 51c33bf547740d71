"""From records to figures: median, spread, and ratio to the raw limit."""

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.plan import Subject, limit_of
from bench.records import Record

Better = Literal["less", "more"]


@dataclass(frozen=True)
class Measure:
    """One quantity that is read from a result."""

    name: str
    title: str
    unit: str
    read: Callable[[dict[str, Any], dict[str, int]], float]
    better: Better = "less"
    #: The ratio: to the raw limit of the same repeat, the value itself if it is a ratio, or none.
    ratio: Literal["limit", "itself", "none"] = "limit"


def _step(result: dict[str, Any], numbers: dict[str, int]) -> float:
    return float(result["seconds"]) / numbers["steps"] * 1e3


def _rate(result: dict[str, Any], numbers: dict[str, int]) -> float:
    return float(result["runs"] * result["steps"] / result["seconds"])


def _timed(name: str) -> Callable[[dict[str, Any], dict[str, int]], float]:
    return lambda result, numbers: float(result[name])


def _compared(name: str, title: str, unit: str = "ms", factor: float = 1e3) -> tuple[Measure, Measure]:
    """A call on a store with many runs, and its ratio to the same call with a few."""
    return (
        Measure(name, title, unit, lambda r, n: r["many"][name] * factor, ratio="none"),
        Measure(
            f"{name} ratio", f"{title}, many / few", "×", lambda r, n: r["many"][name] / r["few"][name], ratio="itself"
        ),
    )


_STEP = Measure("step", "a step", "ms", _step)
_FIRST = Measure("first steps", "first hundred", "ms", lambda r, n: r["first_steps"] * 1e3, ratio="none")
_LAST = Measure("last steps", "last hundred", "ms", lambda r, n: r["last_steps"] * 1e3, ratio="none")
_GROWTH = Measure("growth", "last / first", "×", lambda r, n: r["last_steps"] / r["first_steps"], ratio="itself")
_DISK = Measure("disk", "disk / transcript", "×", lambda r, n: r["disk_bytes"] / r["transcript_bytes"], ratio="itself")
_WRITTEN = Measure(
    "written", "written / transcript", "×", lambda r, n: r["written_bytes"] / r["transcript_bytes"], ratio="itself"
)

MEASURES: dict[str, tuple[Measure, ...]] = {
    "w1": (_STEP, _FIRST, _LAST, _GROWTH, _DISK, _WRITTEN),
    "w2": (
        Measure("rate", "steps a second", "/s", _rate, "more"),
        Measure("p50", "p50 of a step", "ms", lambda r, n: r["latencies"]["p50"] * 1e3, ratio="none"),
        Measure("p99", "p99 of a step", "ms", lambda r, n: r["latencies"]["p99"] * 1e3, ratio="none"),
    ),
    "w3": (
        Measure("find", "found", "s", _timed("find")),
        Measure("load", "all read", "s", _timed("load")),
        Measure("first", "first resumed step", "s", _timed("first")),
        Measure("last", "all resumed", "s", _timed("last")),
    ),
    "w4": (_STEP, _DISK, _WRITTEN),
    "w5": (_STEP, _FIRST, _LAST, _DISK),
    "w6": (
        Measure("processor", "of one processor", "%", lambda r, n: r["cpu_share"] * 100, ratio="none"),
        Measure("memory", "memory a run", "KB", lambda r, n: r["memory_bytes"] / n["runs"] / 1e3, ratio="none"),
        Measure("idle", "written a second", "KB", lambda r, n: r["written_bytes"] / n["seconds"] / 1e3, ratio="none"),
    ),
    "w7": (
        Measure("rate", "steps a second", "/s", _rate, "more", "none"),
        Measure("busy", "processors busy", "%", lambda r, n: r["machine_busy"] * 100, ratio="none"),
    ),
    "w8": (
        *_compared("wake", "signal to next model call"),
        *_compared("result", "submit to result"),
        *_compared("page", "first page"),
        *_compared("cpu_share", "idle worker, of one processor", "%", 100),
    ),
    "w9": (*_compared("claim", "a claim"), *_compared("page", "first page")),
    "w10": (
        *_compared("submit", "submit"),
        *_compared("result", "submit to result"),
        *_compared("page", "first page"),
        *_compared("purge", "purge of 500 runs"),
    ),
}


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of the repeats."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Figure:
    """One measure of one subject in one size, over all repeats."""

    workload: str
    size: int
    subject: Subject
    measure: Measure
    #: By repeat.
    values: dict[int, float]
    ratios: dict[int, float]

    @property
    def value(self) -> Spread:
        return Spread.of(list(self.values.values()))

    @property
    def ratio(self) -> Spread | None:
        return Spread.of(list(self.ratios.values())) if self.ratios else None

    @property
    def key(self) -> str:
        return f"{self.workload} {self.size} {self.subject}: {self.measure.name}"


def times(over: Figure, under: Figure) -> Spread | None:
    """Divide `over` by `under` repeat by repeat. `None` if they share no repeat."""
    shared = over.values.keys() & under.values.keys()
    return Spread.of([over.values[each] / under.values[each] for each in shared]) if shared else None


def figures(records: Iterable[Record]) -> list[Figure]:
    """Return every measure of every subject in every size, in the order of the records. Failed jobs have none."""
    jobs: dict[tuple[str, int, Subject], dict[int, Record]] = defaultdict(dict)
    for record in records:
        if record.result is not None:
            jobs[record.workload, record.size, record.subject][record.repeat] = record
    found = []
    for (workload, size, subject), repeats in jobs.items():
        limit = limit_of(workload, subject)
        beside = jobs.get((workload, size, limit), {}) if limit is not None else {}
        for measure in MEASURES[workload]:
            values = _read(measure, repeats)
            if values:
                ratios = _ratios(measure, values, _read(measure, beside))
                found.append(Figure(workload, size, subject, measure, values, ratios))
    return found


def _read(measure: Measure, repeats: dict[int, Record]) -> dict[int, float]:
    """Read a measure by repeat. Some systems cannot report every measure."""
    found = {}
    for repeat, record in repeats.items():
        with contextlib.suppress(KeyError):
            found[repeat] = measure.read(record.result or {}, record.numbers)
    return found


def _ratios(measure: Measure, values: dict[int, float], limits: dict[int, float]) -> dict[int, float]:
    if measure.ratio == "itself":
        return values
    if measure.ratio == "none":
        return {}
    return {repeat: values[repeat] / limits[repeat] for repeat in values.keys() & limits.keys()}
