"""The waterfall of a run: for each step the time before it, the model call and the tool calls."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Literal

import msgspec

from holdfast.checkpoint.progress import AttemptRecord
from holdfast.core.run.status import AttemptEnd
from holdfast.runtime.reading.formatting import format_duration
from holdfast.web.ui.run_view.run_steps import CallView, StepView

#: Steps that a waterfall shows: the last ones of the window.
_MAX_STEPS = 25
#: A shorter pause between two steps is not shown.
_MIN_PAUSE = timedelta(milliseconds=100)

BarKind = Literal["run", "tool", "wait", "bad", "mark"]


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the waterfall."""

    label: str
    kind: BarKind
    start: datetime
    end: datetime
    step: int
    #: Shown instead of its length.
    text: str = ""

    @property
    def took(self) -> str:
        return self.text or format_duration(self.end - self.start)


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A bar with its place, in thousandths of the width."""

    bar: Bar
    x: float
    width: float


class RunTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The waterfall, and what its time was spent on."""

    lanes: Sequence[Lane]
    worked: timedelta
    waited: timedelta


def build_timeline(
    steps: Sequence[StepView],
    *,
    attempts: Sequence[AttemptRecord] = (),
    waits_since: datetime | None = None,
    now: datetime,
) -> RunTimeline | None:
    """Build the waterfall of the last steps of a window; `None` if no step is finished.

    A wait may be a thousand times longer than the work, so the axis is not the clock: a pause takes at most the width
    of all the work.

    Args:
        attempts: of the run, until the end of the window. Those that resumed it within the window are marked.
        waits_since: when the step in progress began to wait, if it does.
    """
    finished = [step for step in steps if step.finished and step.at is not None][-_MAX_STEPS:]
    bars = [bar for step in finished for bar in _list_bars(step)]
    if waits_since is not None:
        number = steps[-1].number if steps else 1
        bars.append(Bar(label="waits", kind="wait", start=waits_since, end=max(now, waits_since), step=number))
    if not bars:
        return None
    bars = _add_resumes(bars, attempts)
    waited = sum((bar.end - bar.start for bar in bars if bar.kind == "wait"), timedelta(0))
    worked = max(bar.end for bar in bars) - bars[0].start - waited
    return RunTimeline(lanes=list(_place(bars, max(worked, timedelta(milliseconds=1)))), worked=worked, waited=waited)


def _add_resumes(bars: Sequence[Bar], attempts: Sequence[AttemptRecord]) -> list[Bar]:
    """Add a mark where a worker resumed the run. After a wait the bar of the wait says enough."""
    marked = list(bars)
    for before, attempt in pairwise(attempts):
        at = attempt.began_at
        if at is None or at < bars[0].start or before.end is AttemptEnd.WAITING:
            continue
        following = next((bar for bar in bars if bar.end >= at), bars[-1])
        text = f"attempt {attempt.number}"
        marked.append(Bar(label="resumed", kind="mark", start=at, end=at, step=following.step, text=text))
    return sorted(marked, key=lambda bar: bar.start)


def _list_bars(step: StepView) -> Iterator[Bar]:
    """Yield the bars of a finished step, in the order of time."""
    assert step.at is not None
    number, times = step.number, step.times
    took = timedelta(milliseconds=times.took) if times is not None else step.took or timedelta(0)
    began = step.at - took
    if step.took is not None and step.took - took > _MIN_PAUSE:
        label = "queued" if number == 1 else "paused"
        yield Bar(label=label, kind="wait", start=step.at - step.took, end=began, step=number)
    if times is None:
        yield Bar(label=f"step {number}", kind="run", start=began, end=step.at, step=number)
        return
    if times.model:
        yield Bar(label="model", kind="run", start=began, end=began + timedelta(milliseconds=times.model), step=number)
    calls: dict[str, CallView] = {view.call.call_id: view for part in step.parts for view in part.calls}
    for call in times.calls:
        view = calls.get(call.call_id)
        failed = view is not None and view.call.state == "error"
        yield Bar(
            label=view.call.tool if view is not None else call.call_id,
            kind="bad" if failed else "tool",
            start=began + timedelta(milliseconds=call.start),
            end=began + timedelta(milliseconds=call.end),
            step=number,
        )


def _place(bars: Sequence[Bar], worked: timedelta) -> Iterator[Lane]:
    """Place the bars on an axis on which each pause is cut to the length of all the work."""
    pauses = [bar for bar in bars if bar.kind == "wait" and bar.end - bar.start > worked]
    origin = bars[0].start

    def place(at: datetime) -> timedelta:
        return at - origin - sum((_cut_pause(pause, at, worked) for pause in pauses), timedelta(0))

    total = max(place(bar.end) for bar in bars) or timedelta(milliseconds=1)
    for bar in bars:
        start, end = place(bar.start), place(bar.end)
        yield Lane(
            bar=bar, x=round(1000 * (start / total), 1), width=max(4.0, round(1000 * ((end - start) / total), 1))
        )


def _cut_pause(pause: Bar, at: datetime, length: timedelta) -> timedelta:
    """Return the time to cut before `at`, so that the pause takes `length`: all of it, or the part that has passed."""
    passed = max(min(at, pause.end) - pause.start, timedelta(0))
    return passed - length * (passed / (pause.end - pause.start))
