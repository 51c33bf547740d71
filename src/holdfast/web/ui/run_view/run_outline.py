"""The outline of a run: its steps with their costs, by phase or by tens, and links to what a reader looks for."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from holdfast.runtime.reading.run_summary import RunSummary
from holdfast.web.ui.run_view.run_steps import CallView, StepView

#: Steps that are shown without groups, if the agent has no phases. Ranges of steps that the outline links to.
_MAX_UNGROUPED, _MAX_RANGES = 15, 12
#: With more steps, only the group of the reader is open.
_MAX_OPEN = 20
#: Parts that are no step of the loop: the end of the run.
_ENDINGS = ("phase", "answer", "error")


class StepRange(msgspec.Struct, frozen=True, kw_only=True):
    """Some consecutive steps of a long run."""

    first: int
    last: int


class StepGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive steps of the window: of one phase, or ten."""

    #: The name of the phase; empty: the numbers of the steps are its name.
    phase: str
    steps: Sequence[StepView]
    is_open: bool
    #: Whether the group has a line of its own. A short run without phases has none.
    has_head: bool = True

    @property
    def cost_usd(self) -> float:
        return sum(step.cost_usd for step in self.steps)

    @property
    def failed(self) -> int:
        return sum(view.state == "error" for step in self.steps for view in step.calls)


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a window."""

    steps: Sequence[StepView]
    groups: Sequence[StepGroup]
    #: All steps of a run that is longer than the window.
    ranges: Sequence[StepRange]
    failed: Sequence[CallView]
    edited: Sequence[CallView]
    #: Where the error of the run is, in this window.
    error: str
    max_cost: float

    def measure(self, step: StepView) -> int:
        """Return the cost of a step, as per cent of the highest."""
        return round(100 * step.cost_usd / self.max_cost) if self.max_cost else 0


def build_outline(run: RunSummary, steps: Sequence[StepView], current: str = "") -> Outline:
    """Build the outline of the steps of a window. `current`: the number of the step that the reader has chosen."""
    calls = [view for step in steps for view in step.calls]
    shown = [step for step in steps if step.finished or any(part.kind not in _ENDINGS for part in step.parts)]
    errors = [step for step in steps if any(part.kind == "error" for part in step.parts)]
    return Outline(
        steps=shown,
        groups=list(_group(shown, current, run.phase)),
        ranges=_list_ranges(run.steps) if shown and run.steps > len(shown) else [],
        failed=[view for view in calls if view.state == "error"],
        edited=[view for view in calls if view.changes],
        error=errors[-1].anchor if errors else "",
        max_cost=max((step.cost_usd for step in shown), default=0.0),
    )


def _group(steps: Sequence[StepView], current: str, current_phase: str) -> Iterator[StepGroup]:
    def get_phase(step: StepView) -> str:
        return step.phase if step.finished else current_phase

    has_phases = any(map(get_phase, steps))
    if not has_phases and len(steps) <= _MAX_UNGROUPED:
        if steps:
            yield StepGroup(phase="", steps=steps, is_open=True, has_head=False)
        return
    groups = [list(group) for _, group in groupby(steps, get_phase if has_phases else _get_ten)]
    chosen = next((at for at, group in enumerate(groups) if any(current == str(step.number) for step in group)), None)
    for at, group in enumerate(groups):
        is_open = len(steps) <= _MAX_OPEN or at == (len(groups) - 1 if chosen is None else chosen)
        yield StepGroup(phase=get_phase(group[-1]), steps=group, is_open=is_open)


def _get_ten(step: StepView) -> int:
    return (step.number - 1) // 10


def _list_ranges(count: int) -> list[StepRange]:
    size = 10
    while count > size * _MAX_RANGES:
        size *= 10 if str(size)[0] == "5" or size * 5 * _MAX_RANGES < count else 5
    return [StepRange(first=first, last=min(count, first + size - 1)) for first in range(1, count + 1, size)]
