"""The guard: compares ratios, not seconds, with the accepted baseline."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from bench.figures import Figure, Spread

BASELINE = Path(__file__).parent / "baseline.json"

#: Smaller changes are noise, however small the spread of the repeats is.
FLOOR = 0.15

Change = Literal["worse", "better", "same"]


class Expected(msgspec.Struct, frozen=True):
    """The accepted ratio of one figure, with the spread of its repeats."""

    median: float
    low: float
    high: float

    @property
    def tolerance(self) -> float:
        """The relative change that may be noise: the whole spread of the repeats."""
        return max(FLOOR, (self.high - self.low) / self.median)


@dataclass(frozen=True)
class GuardResult:
    """One figure compared with its baseline."""

    key: str
    change: Change
    expected: Expected
    now: Spread

    def __str__(self) -> str:
        by = abs(self.now.median / self.expected.median - 1)
        words = (
            f"{self.key} was {self.expected.median:.2f} and is {self.now.median:.2f}:"
            f" {by:.0%} {self.change}, {self.expected.tolerance:.0%} would be noise"
        )
        return words if self.change != "same" else f"{self.key} is as it was"


def make_baseline(figures: Iterable[Figure]) -> dict[str, Expected]:
    """Return our own ratios of a measurement."""
    return {
        figure.key: Expected(ratio.median, ratio.low, ratio.high)
        for figure in figures
        if figure.subject.kind == "ours" and (ratio := figure.ratio) is not None
    }


def compare(figures: Iterable[Figure], baseline: Mapping[str, Expected]) -> list[GuardResult]:
    """Compare every figure that the baseline has."""
    known = [(figure, baseline[figure.key]) for figure in figures if figure.key in baseline]
    return [
        GuardResult(figure.key, _change(figure, ratio, expected), expected, ratio)
        for figure, expected in known
        if (ratio := figure.ratio) is not None
    ]


def _change(figure: Figure, now: Spread, expected: Expected) -> Change:
    more = now.median / expected.median - 1
    if abs(more) <= expected.tolerance:
        return "same"
    return "worse" if (more > 0) == (figure.measure.better == "less") else "better"


def format_results(results: list[GuardResult]) -> str:
    """Format the changes, the worse ones last."""
    changed = [result for change in ("better", "worse") for result in results if result.change == change]
    lines = [str(result) for result in changed]
    same = len(results) - len(changed)
    return "\n".join([f"{same} of {len(results)} ratios are as they were", *lines])


def baseline() -> dict[str, Expected]:
    """Return the accepted baseline, empty if there is none."""
    return msgspec.json.decode(BASELINE.read_bytes(), type=dict[str, Expected]) if BASELINE.exists() else {}


def accept(figures: Iterable[Figure]) -> None:
    """Make a measurement the baseline."""
    rounded = {
        key: Expected(*(round(each, 4) for each in msgspec.structs.astuple(expected)))
        for key, expected in make_baseline(figures).items()
    }
    BASELINE.write_bytes(msgspec.json.format(msgspec.json.encode(rounded), indent=1) + b"\n")
