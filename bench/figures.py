"""From records to figures: median, spread, and ratio to the raw limit."""

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from bench.measures import Measure
from bench.plan import WORKLOADS, Subject, limit_of
from bench.records import Record


class Spread(msgspec.Struct, frozen=True):
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


class Figures:
    """The figures of a measurement."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._found = {(each.workload, each.size, each.subject, each.measure.name): each for each in _figures(records)}

    def __iter__(self) -> Iterator[Figure]:
        return iter(self._found.values())

    def get(self, workload: str, size: int, subject: Subject, measure: str) -> Figure | None:
        return self._found.get((workload, size, subject, measure))

    def of(self, workload: str, measure: str) -> list[Figure]:
        """Return the figures of all subjects and sizes, from the smallest size."""
        found = [each for each in self if (each.workload, each.measure.name) == (workload, measure)]
        return sorted(found, key=lambda figure: figure.size)

    def best_peer(self, like: Figure) -> Figure | None:
        """Return the best peer in the measure, workload and size of `like`."""
        rivals = [
            each
            for each in self.of(like.workload, like.measure.name)
            if each.size == like.size and each.subject.kind == "peer"
        ]
        best = min if like.measure.better == "less" else max
        return best(rivals, key=lambda each: each.value.median, default=None)


def times(over: Figure, under: Figure) -> Spread | None:
    """Divide `over` by `under` repeat by repeat. `None` if they share no repeat."""
    shared = over.values.keys() & under.values.keys()
    return Spread.of([over.values[each] / under.values[each] for each in shared]) if shared else None


def _figures(records: Iterable[Record]) -> Iterator[Figure]:
    """Yield every measure of every subject in every size, in the order of the records. Failed jobs have none."""
    found: dict[tuple[str, int, Subject], dict[int, Record]] = defaultdict(dict)
    for record in records:
        if record.result is not None:
            found[record.workload, record.size, record.subject][record.repeat] = record
    for (workload, size, subject), repeats in found.items():
        limit = limit_of(workload, subject)
        beside = found.get((workload, size, limit), {}) if limit is not None else {}
        for measure in WORKLOADS[workload].measures:
            if values := _read(measure, repeats):
                ratios = _ratios(measure, values, _read(measure, beside))
                yield Figure(workload, size, subject, measure, values, ratios)


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
