"""The outline of a run: its steps with their costs, and links to what a reader looks for."""

from collections.abc import Sequence

import msgspec

from holdfast.runtime.reading.run_summary import RunSummary
from holdfast.web.ui.run_view.run_steps import CallView, StepView

#: Steps that the outline names: the last of the window. Ranges of steps that it links to.
_MAX_STEPS, _MAX_RANGES = 30, 12


class StepRange(msgspec.Struct, frozen=True, kw_only=True):
    """Some consecutive steps of a long run."""

    first: int
    last: int


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a window."""

    steps: Sequence[StepView]
    #: All steps of a run that is longer than the window.
    ranges: Sequence[StepRange]
    failed: Sequence[CallView]
    edited: Sequence[CallView]
    max_cost: float

    def measure(self, step: StepView) -> int:
        """Return the cost of a step, as per cent of the highest."""
        return round(100 * step.cost_usd / self.max_cost) if self.max_cost else 0


def build_outline(run: RunSummary, steps: Sequence[StepView]) -> Outline:
    """Build the outline of the steps of a window."""
    calls = [view for step in steps for view in step.calls]
    shown = [step for step in steps if step.parts][-_MAX_STEPS:]
    return Outline(
        steps=shown,
        ranges=_list_ranges(run.steps) if shown and run.steps > len(shown) else [],
        failed=[view for view in calls if view.state == "error"],
        edited=[view for view in calls if view.changes],
        max_cost=max((step.cost_usd for step in shown), default=0.0),
    )


def _list_ranges(count: int) -> list[StepRange]:
    size = 10
    while count > size * _MAX_RANGES:
        size *= 10 if str(size)[0] == "5" or size * 5 * _MAX_RANGES < count else 5
    return [StepRange(first=first, last=min(count, first + size - 1)) for first in range(1, count + 1, size)]
