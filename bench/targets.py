"""The targets of the benchmarks, as data."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.figures import Better, Figure, times
from bench.plan import Subject

#: What the figure is divided by: its raw limit, the best peer, or nothing.
Against = Literal["limit", "peer", "bound"]


@dataclass(frozen=True)
class Target:
    """A bound on one measure, for some subjects and sizes."""

    words: str
    workload: str
    sizes: tuple[int, ...]
    subjects: tuple[Subject, ...]
    measure: str
    against: Against
    bound: float
    better: Better


@dataclass(frozen=True)
class Outcome:
    """Whether one subject meets a target; `measured` is `None` if it was not measured."""

    target: Target
    what: str
    measured: float | None
    met: bool | None


def _ours(*variants: str) -> tuple[Subject, ...]:
    return tuple(Subject("holdfast", variant) for variant in variants)


_ALL = _ours("sqlite", "sqlite-once", "postgres", "postgres-once")
_TWO = _ours("sqlite", "postgres")

TARGETS = (
    Target(
        "one run: within 1.5 times raw SQLite with two commits a step",
        "w1", (1000,), _ours("sqlite-once"), "step", "limit", 1.5, "less",
    ),
    Target(
        "one run: 5 times faster than the best peer",
        "w1", (1000,), _ours("sqlite-once"), "step", "peer", 5, "more",
    ),
    Target("many runs: a third of raw group commit", "w2", (128, 1000), _TWO, "rate", "limit", 1 / 3, "more"),
    # Peers commit a reply before they call its tools, as the `once` variants do.
    Target("many runs: 12 times the best peer", "w2", (128, 1000), _ALL, "rate", "peer", 12, "more"),
    Target(
        "5,000 steps: the last hundred at most 1.1 times the first",
        "w1", (5000,), _ALL, "growth", "bound", 1.1, "less",
    ),
    Target("5,000 steps: disk at most 1.3 times the transcript", "w1", (5000,), _ALL, "disk", "bound", 1.3, "less"),
    Target(
        "recovery: the first resumed step within 0.3 s of the process's start",
        "w3", (1000,), _ours("sqlite"), "first", "bound", 0.3, "less",
    ),
    Target(
        "recovery: the first resumed step within 0.5 s of the process's start",
        "w3", (1000,), _ours("postgres"), "first", "bound", 0.5, "less",
    ),
    Target("recovery: all 1,000 runs resumed within 2.5 s", "w3", (1000,), _TWO, "last", "bound", 2.5, "less"),
    Target("100,000 waiting runs: one is woken within 50 ms", "w8", (100_000,), _TWO, "wake", "bound", 50, "less"),
    Target(
        "100,000 waiting runs: an idle worker uses no more than beside a few",
        "w8", (100_000,), _TWO, "cpu_share ratio", "bound", 1.5, "less",
    ),
    Target("200,000 queued runs: a claim within 20 ms", "w9", (200_000,), _TWO, "claim", "bound", 20, "less"),
)  # fmt: skip

#: A fleet that grows by less than this misses its target, unless the processors are FULL percent busy.
GROWS = 1.1
FULL = 90.0


def outcomes(figures: Sequence[Figure], targets: Iterable[Target] = TARGETS) -> list[Outcome]:
    """Check each target for each of its subjects and sizes, and the growth of the fleet."""
    found = {(each.workload, each.size, each.subject, each.measure.name): each for each in figures}
    plain = [
        _outcome(target, size, subject, found.get((target.workload, size, subject, target.measure)), figures)
        for target in targets
        for size in target.sizes
        for subject in target.subjects
    ]
    return plain + _fleet(lambda size, measure: found.get(("w7", size, Subject("holdfast", "postgres"), measure)))


def best_peer(figures: Iterable[Figure], like: Figure) -> Figure | None:
    """Return the best peer in the measure, workload and size of `like`."""
    rivals = [
        each
        for each in figures
        if (each.workload, each.size, each.measure.name) == (like.workload, like.size, like.measure.name)
        and each.subject.kind == "peer"
    ]
    best = min if like.measure.better == "less" else max
    return best(rivals, key=lambda each: each.value.median, default=None)


def _outcome(target: Target, size: int, subject: Subject, figure: Figure | None, figures: Sequence[Figure]) -> Outcome:
    what = f"{subject} at {size:,}"
    measured = _measured(target, figure, figures) if figure is not None else None
    if measured is None:
        return Outcome(target, what, None, None)
    met = measured <= target.bound if target.better == "less" else measured >= target.bound
    return Outcome(target, what, measured, met)


def _measured(target: Target, figure: Figure, figures: Sequence[Figure]) -> float | None:
    if target.against == "bound":
        return figure.value.median
    if target.against == "limit":
        return figure.ratio.median if figure.ratio is not None else None
    peer = best_peer(figures, figure)
    if peer is None:
        return None
    spread = times(peer, figure) if figure.measure.better == "less" else times(figure, peer)
    return spread.median if spread is not None else None


def _fleet(figure: Callable[[int, str], Figure | None]) -> list[Outcome]:
    """Check that more workers make more steps, unless the processors are already full."""
    target = Target(
        "a fleet grows with its workers until the cores are full", "w7", (1, 2, 4), (), "rate", "bound", GROWS, "more"
    )
    outcomes = []
    for fewer, more in ((1, 2), (2, 4)):
        slow, fast, busy = figure(fewer, "rate"), figure(more, "rate"), figure(fewer, "busy")
        growth = times(fast, slow) if slow is not None and fast is not None else None
        if growth is None or busy is None:
            outcomes.append(Outcome(target, f"{fewer} to {more} workers", None, None))
            continue
        met = growth.median >= GROWS or busy.value.median >= FULL
        what = f"{fewer} to {more} workers, processors {busy.value.median:.0f}% busy with {fewer}"
        outcomes.append(Outcome(target, what, growth.median, met))
    return outcomes
