"""The targets of the benchmarks, as data."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from bench.figures import Figure, Figures, times
from bench.plan import Subject

#: What the figure is divided by: its limit, the best peer, or nothing.
Against = Literal["limit", "peer", "nothing"]


@dataclass(frozen=True)
class Target:
    """A bound on one measure, for some variants of holdfast and some sizes."""

    words: str
    workload: str
    sizes: tuple[int, ...]
    variants: tuple[str, ...]
    measure: str
    against: Against = "nothing"
    at_most: float | None = None
    at_least: float | None = None


@dataclass(frozen=True)
class Outcome:
    """Whether one subject meets a target; `measured` is `None` if it was not measured."""

    words: str
    what: str
    bound: str
    measured: float | None
    met: bool | None


_BOTH = ("sqlite", "postgres")
_ONCE = ("sqlite-once", "postgres-once")

TARGETS = (
    Target("one run: within 1.5 times two raw commits", "w1", (1000,), ("sqlite-once",), "step", "limit", at_most=1.5),
    Target("one run: 5 times faster than the best peer", "w1", (1000,), ("sqlite-once",), "step", "peer", at_least=5),
    Target("one run: the last 100 of 5,000 steps cost what the first cost", "w1", (5000,), (*_BOTH, *_ONCE), "growth",
           at_most=1.1),
    Target("one run: disk at most 1.3 times the transcript", "w1", (5000,), (*_BOTH, *_ONCE), "disk", at_most=1.3),
    # Peers commit a reply before they call its tools, as the `once` variants do.
    Target("many runs: 12 times the best peer", "w2", (128, 1000), _ONCE, "rate", "peer", at_least=12),
    Target("many runs: a third of raw group commit", "w2", (128, 1000), _BOTH, "rate", "limit", at_least=0.33),
    Target("recovery: first resumed step within 0.3 s", "w3", (1000,), ("sqlite",), "first", at_most=0.3),
    Target("recovery: first resumed step within 0.5 s", "w3", (1000,), ("postgres",), "first", at_most=0.5),
    Target("recovery: all 1,000 runs within 2.5 s", "w3", (1000,), _BOTH, "last", at_most=2.5),
    Target("conversation: turn 200 costs what turn 2 costs", "w4", (200,), _BOTH, "turn growth", at_most=1.1),
    Target("events and retention, unused, cost a run under 10%", "w9", (0,), _BOTH, "slowdown", at_most=1.1),
    Target("100,000 runs: one is woken within 50 ms", "w8", (100_000,), _BOTH, "wake", at_most=50),
    Target("100,000 runs: a claim within 20 ms", "w8", (100_000,), _BOTH, "claim", at_most=20),
)  # fmt: skip

#: A fleet that grows by less than this misses its target, unless the processors are FULL percent busy.
GROWS = 1.1
FULL = 90.0


def outcomes(figures: Figures, targets: Iterable[Target] = TARGETS) -> list[Outcome]:
    """Check each target for each of its variants and sizes, the pydantic-ai agent, and the growth of the fleet."""
    plain = [
        _outcome(target, size, variant, figures)
        for target in targets
        for size in target.sizes
        for variant in target.variants
    ]
    return [*plain, _pydantic_ai(figures), *_fleet(figures)]


def _outcome(target: Target, size: int, variant: str, figures: Figures) -> Outcome:
    subject = Subject("holdfast", variant)
    figure = figures.get(target.workload, size, subject, target.measure)
    measured = _measured(target, figure, figures) if figure is not None else None
    what = f"{subject}, {size:,}"
    if target.at_most is not None:
        return _judge(target.words, what, measured, at_most=target.at_most)
    return _judge(target.words, what, measured, at_least=target.at_least or 0.0)


def _judge(
    words: str, what: str, measured: float | None, *, at_most: float | None = None, at_least: float = 0.0
) -> Outcome:
    bound = f"at least {at_least:g}" if at_most is None else f"at most {at_most:g}"
    if measured is None:
        return Outcome(words, what, bound, None, None)
    return Outcome(words, what, bound, measured, measured >= at_least if at_most is None else measured <= at_most)


def _measured(target: Target, figure: Figure, figures: Figures) -> float | None:
    if target.against == "nothing":
        return figure.value.median
    if target.against == "limit":
        return figure.ratio.median if figure.ratio is not None else None
    peer = figures.best_peer(figure)
    if peer is None:
        return None
    spread = times(peer, figure) if figure.measure.better == "less" else times(figure, peer)
    return spread.median if spread is not None else None


def _pydantic_ai(figures: Figures) -> Outcome:
    """Compare a durable pydantic-ai agent, less its two raw commits a step, with the bare one."""

    def step(system: str, variant: str) -> float | None:
        figure = figures.get("w5", 50, Subject(system, variant), "step")
        return figure.value.median if figure is not None else None

    ours, bare, commits = step("pydantic_ai", "holdfast-sqlite"), step("pydantic_ai", "bare"), step("raw", "sqlite-2")
    known = ours is not None and bare is not None and commits is not None
    measured = (ours - commits) / bare if known else None  # type: ignore[operator]
    words = "pydantic-ai: 1.3 times a bare agent, plus two raw commits a step"
    return _judge(words, "pydantic-ai holdfast-sqlite, 50", measured, at_most=1.3)


def _fleet(figures: Figures) -> Iterator[Outcome]:
    """Check that more workers make more steps, unless the processors are already full."""
    get: Callable[[int, str], Figure | None] = lambda workers, measure: figures.get(  # noqa: E731
        "w7", workers, Subject("holdfast", "postgres"), measure
    )
    for fewer, more in ((1, 2), (2, 4)):
        slow, fast, busy = get(fewer, "rate"), get(more, "rate"), get(fewer, "busy")
        growth = times(fast, slow) if slow is not None and fast is not None else None
        judged = _judge(
            "a fleet grows with its workers until the cores are full", f"{fewer} to {more} workers",
            growth.median if growth is not None else None, at_least=GROWS,
        )  # fmt: skip
        if growth is None or busy is None:
            yield judged
            continue
        what = f"{judged.what}, processors {busy.value.median:.0f}% busy with {fewer}"
        yield Outcome(judged.words, what, judged.bound, growth.median, judged.met or busy.value.median >= FULL)
