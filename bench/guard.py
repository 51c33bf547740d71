"""The guard: compares ratios, not seconds, with the accepted baseline."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from bench.figures import Figure, Spread

_BASELINE = Path(__file__).parent / "baseline.json"

#: Smaller changes are noise, however small the spread of the repeats is.
_FLOOR = 0.15


@dataclass(frozen=True)
class GuardResult:
    """One ratio compared with its baseline."""

    key: str
    change: Literal["worse", "better", "same"]
    before: Spread
    now: Spread

    def __str__(self) -> str:
        by = abs(self.now.median / self.before.median - 1)
        return (
            f"{self.key} was {self.before.median:.2f} and is {self.now.median:.2f}:"
            f" {by:.0%} {self.change}, {_tolerance(self.before):.0%} would be noise"
        )


def our_ratios(figures: Iterable[Figure]) -> dict[str, Spread]:
    """Return our own ratios of a measurement."""
    return {
        figure.key: ratio for figure in figures if figure.subject.kind == "ours" and (ratio := figure.ratio) is not None
    }


def compare(figures: Iterable[Figure], baseline: Mapping[str, Spread]) -> list[GuardResult]:
    """Compare every ratio that the baseline has."""
    return [
        _compare(figure, baseline[figure.key], ratio)
        for figure in figures
        if figure.key in baseline and (ratio := figure.ratio) is not None
    ]


def _compare(figure: Figure, before: Spread, now: Spread) -> GuardResult:
    more = now.median / before.median - 1
    if abs(more) <= _tolerance(before):
        return GuardResult(figure.key, "same", before, now)
    worse = (more > 0) == (figure.measure.better == "less")
    return GuardResult(figure.key, "worse" if worse else "better", before, now)


def _tolerance(before: Spread) -> float:
    """Return the relative change that may be noise: the whole spread of the repeats."""
    return max(_FLOOR, (before.high - before.low) / before.median)


def format_results(results: list[GuardResult]) -> str:
    """Format the changes, the worse ones last."""
    changed = [str(result) for change in ("better", "worse") for result in results if result.change == change]
    return "\n".join([f"{len(results) - len(changed)} of {len(results)} ratios are as they were", *changed])


def read_baseline() -> dict[str, Spread]:
    """Return the accepted baseline, empty if there is none."""
    return msgspec.json.decode(_BASELINE.read_bytes(), type=dict[str, Spread]) if _BASELINE.exists() else {}


def accept(figures: Iterable[Figure]) -> None:
    """Make a measurement the baseline."""
    rounded = {
        key: Spread(*(round(each, 4) for each in msgspec.structs.astuple(spread)))
        for key, spread in our_ratios(figures).items()
    }
    lines = ",\n".join(f' "{key}": {msgspec.json.encode(spread).decode()}' for key, spread in rounded.items())
    _BASELINE.write_text(f"{{\n{lines}\n}}\n")
