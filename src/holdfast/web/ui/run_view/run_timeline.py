"""The timeline of a run: one row for its workers, one for each step, its calls and its child runs, on a common axis."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from holdfast.checkpoint.progress import AttemptRecord
from holdfast.runtime.reading.formatting import format_duration
from holdfast.runtime.reading.run_summary import RunSummary
from holdfast.web.ui.run_view.call_tree import CallGroup
from holdfast.web.ui.run_view.run_pauses import Death, list_deaths, list_parked
from holdfast.web.ui.run_view.run_steps import CallView, StepView
from holdfast.web.ui.run_view.time_axis import Axis, Fold, Tick, make_axis

#: Steps that a timeline shows: the last ones of the window. Child runs of one timeline.
_MAX_STEPS, _MAX_CHILDREN = 25, 20
#: A shorter pause before a step is not shown.
_MIN_PAUSE = timedelta(milliseconds=100)
#: The narrowest bar, in per cent.
_MIN_WIDTH = 0.4
#: The narrowest bar that a name is written on, and the place of the words beside a death, in per cent.
_MIN_LABELLED, _DEATH_WIDTH = 12, 40

BarKind = Literal["model", "tool", "bad", "wait", "parked", "now", "child", "worker", "undo"]
#: In these stretches no process works.
_IDLE = ("wait", "parked")
#: With more rows, routine calls are left out.
_MAX_ROWS = 24
#: How far a timeline can be zoomed in.
ZOOMS = (1, 2, 4, 8, 16, 32)


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of time."""

    kind: BarKind
    start: datetime
    end: datetime
    #: What is written on it.
    label: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the timeline."""

    label: str
    #: Where its link leads to: a place in the page, or a run.
    target: str
    bars: Sequence[Bar]
    depth: int = 0
    #: Shown instead of the time between its first and its last bar.
    text: str = ""
    is_edited: bool = False
    #: A call that did what it should: a long timeline leaves it out.
    is_routine: bool = False

    @property
    def took(self) -> str:
        if self.text or not self.bars:
            return self.text
        return format_duration(max(bar.end for bar in self.bars) - min(bar.start for bar in self.bars))

    @property
    def spoken(self) -> str:
        """What the bars say, in words."""
        if not self.bars:
            return ""
        kinds = {"bad": "failed", "wait": "waits", "child": "child run", "worker": "attempt", "now": "in progress"}
        names = dict.fromkeys(kinds.get(bar.kind, bar.kind) for bar in self.bars)
        return f"{', '.join(names)}, from {self.bars[0].start.astimezone(UTC):%H:%M:%S}"


class TimelineView(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a timeline the reader has chosen, and whether waits are folded."""

    to_scale: bool = False
    #: One of `ZOOMS`.
    zoom: int = 1
    #: Where the part begins, in per cent; `None`: the last part, which follows a run in progress.
    at: float | None = None
    #: Routine calls of a long timeline too.
    all_rows: bool = False

    @property
    def left(self) -> float:
        last = 100 - 100 / self.zoom
        return last if self.at is None else min(last, max(0.0, self.at))

    def move(self, parts: float) -> float:
        """Return the `at` of the part this many parts further on."""
        return round(min(100 - 100 / self.zoom, max(0.0, self.left + parts * 100 / self.zoom)), 2)

    def rescale(self, zoom: int) -> float:
        """Return the `at` of the part with the same middle."""
        middle = self.left + 50 / self.zoom
        return round(min(100 - 100 / zoom, max(0.0, middle - 50 / zoom)), 2)


#: All of it, with folded waits.
ALL = TimelineView()


class RunTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, and the axis that places them."""

    rows: Sequence[Row]
    axis: Axis
    deaths: Sequence[Death]
    #: What is shown: one of `zoom` equal parts, from `left` per cent of the axis.
    zoom: int = 1
    left: float = 0.0
    #: Routine calls that are left out.
    folded: int = 0

    def place(self, at: datetime) -> float:
        """Return the place of a moment, in per cent of what is shown."""
        return round(self._clip(self.axis.place(at)), 2)

    def measure(self, bar: Bar) -> float:
        """Return the width of a bar, in per cent of what is shown."""
        start = min(self._clip(self.axis.place(bar.start)), 100 - _MIN_WIDTH)
        return round(max(_MIN_WIDTH, self._clip(self.axis.place(bar.end)) - start), 2)

    def fits_label(self, bar: Bar) -> bool:
        """Whether the name of a worker fits on its bar, beside the words about a death."""
        x = self.place(bar.start)
        near = (x - self.place(death.at) for death in self.deaths if self.shows(death.at, death.at))
        return self.measure(bar) >= _MIN_LABELLED and not any(-_MIN_LABELLED < gap < _DEATH_WIDTH for gap in near)

    def shows(self, start: datetime, end: datetime) -> bool:
        """Whether a part of this stretch is shown."""
        return self.zoom == 1 or (
            self.axis.place(end) >= self.left and self.axis.place(start) <= self.left + 100 / self.zoom
        )

    @property
    def shown_rows(self) -> list[Row]:
        """The rows, without those that have nothing in the part that is shown."""
        found: list[Row] = []
        for row in self.rows:
            bars = [bar for bar in row.bars if self.shows(bar.start, bar.end)]
            if bars:
                found.append(msgspec.structs.replace(row, bars=bars, text=row.took))
        return found

    @property
    def folds(self) -> list[Fold]:
        shown = [fold for fold in self.axis.folds if self.shows(fold.start, fold.end)]
        ends = [(self._clip(fold.x), self._clip(fold.x + fold.width)) for fold in shown]
        return [
            msgspec.structs.replace(fold, x=round(x, 2), width=round(end - x, 2))
            for fold, (x, end) in zip(shown, ends, strict=True)
        ]

    @property
    def ticks(self) -> list[Tick]:
        right = self.left + 100 / self.zoom
        shown = [tick for tick in self.axis.ticks if self.left <= tick.x <= right]
        return [Tick(x=round(self._clip(tick.x), 2), label=tick.label) for tick in shown]

    def _clip(self, x: float) -> float:
        return min(100.0, max(0.0, (x - self.left) * self.zoom))


def build_timeline(
    steps: Sequence[StepView],
    *,
    attempts: Sequence[AttemptRecord] = (),
    children: Sequence[RunSummary] = (),
    open_bar: Bar | None = None,
    now: datetime,
    view: TimelineView = ALL,
) -> RunTimeline | None:
    """Build the timeline of the last steps of a window; `None` if there is nothing to show.

    A wait may be a thousand times longer than the work, so a stretch in which no process works is folded.

    Args:
        attempts: of the run, until the end of the window.
        children: of the run. Each is shown below the call that began it.
        open_bar: what the run does now.
    """
    parked = [(pause.start, pause.end) for pause in list_parked(attempts, now)]
    finished = [step for step in steps if step.finished and step.at is not None][-_MAX_STEPS:]
    rows = [row for step in finished for row in _list_rows(step, children, parked)]
    if open_bar is not None:
        number = steps[-1].number + steps[-1].finished if steps else 1
        label = {"wait": "waits", "parked": "parked"}.get(open_bar.kind, f"{number} · in progress")
        target = f"#{steps[-1].anchor}" if steps else "#main"
        rows.append(Row(label=label, target=target, bars=[open_bar]))
    return _place(rows, attempts, now, view)


def build_call_timeline(
    groups: Sequence[CallGroup],
    *,
    attempts: Sequence[AttemptRecord] = (),
    now: datetime,
    view: TimelineView = ALL,
) -> RunTimeline | None:
    """Build the timeline of a workflow: a row for each node of its tree, and rows for what ran at once."""
    rows: list[Row] = []
    for group in groups[-_MAX_STEPS:]:
        label = group.title if group.number is None else f"{group.number} · {group.title}"
        rows.append(Row(label=label, target=f"#{group.target}", bars=_list_group_bars(group, now)))
        rows += [_make_part_row(part, now) for part in group.parts if group.kind == "parallel"]
    return _place([row for row in rows if row.bars], attempts, now, view)


def _make_part_row(part: CallGroup, now: datetime) -> Row:
    bars = _list_group_bars(part, now)
    is_routine = all(bar.kind == "tool" for bar in bars)
    return Row(label=part.title, target=f"#{part.target}", bars=bars, depth=1, is_routine=is_routine)


def _list_group_bars(group: CallGroup, now: datetime) -> list[Bar]:
    bars: list[Bar] = []
    for call in group.calls:
        end = call.at or (now if call.is_open and not call.is_abandoned else None)
        if call.start is None or end is None:
            continue
        kind: BarKind = "child" if call.child is not None else "tool"
        if group.kind == "undo":
            kind = "undo"
        elif call.is_wait or call.state in ("waiting", "needs approval", "needs result"):
            kind = "wait"
        elif call.state == "failed":
            kind = "bad"
        bars.append(Bar(kind=kind, start=call.start, end=max(call.start, end)))
    return bars


def _place(
    rows: Sequence[Row], attempts: Sequence[AttemptRecord], now: datetime, view: TimelineView
) -> RunTimeline | None:
    """Put the rows on an axis, below one for the workers; `None` if there are none."""
    if not rows:
        return None
    start = min(bar.start for row in rows for bar in row.bars)
    end = max(bar.end for row in rows for bar in row.bars)
    shown = [_clip(each, start, end, now) for each in attempts]
    workers = [bar for bar in shown if bar is not None]
    worked = [bar for row in rows for bar in row.bars if bar.kind not in _IDLE]
    work = [(bar.start, bar.end) for bar in worked]
    axis = make_axis(start, end, work, folds=not view.to_scale, zoom=view.zoom)
    text = "" if not attempts else f"attempt {attempts[-1].number}"
    head = [Row(label="workers", target="#run-side", bars=workers, text=text)] if workers else []
    deaths = [*list_deaths(attempts, start, end)]
    is_long = len(rows) > _MAX_ROWS and not view.all_rows
    shown_rows = [row for row in rows if not (is_long and row.is_routine)]
    return RunTimeline(
        rows=[*head, *shown_rows],
        axis=axis,
        deaths=deaths,
        zoom=view.zoom,
        left=view.left,
        folded=len(rows) - len(shown_rows),
    )


def _split_pause(start: datetime, end: datetime, parked: Sequence[tuple[datetime, datetime]]) -> Iterator[Bar]:
    """Yield the parts of a pause: those in which the run was parked, and the others."""
    for first, last in parked:
        first, last = max(first, start), min(last, end)
        if last <= first:
            continue
        if first - start > _MIN_PAUSE:
            yield Bar(kind="wait", start=start, end=first)
        yield Bar(kind="parked", start=first, end=last)
        start = last
    if end - start > _MIN_PAUSE:
        yield Bar(kind="wait", start=start, end=end)


def _list_rows(
    step: StepView, children: Sequence[RunSummary], parked: Sequence[tuple[datetime, datetime]]
) -> Iterator[Row]:
    """Yield the row of a finished step, those of its calls, and those of their child runs."""
    assert step.at is not None
    times = step.times
    took = timedelta(milliseconds=times.took) if times is not None else step.took or timedelta(0)
    began = step.at - took
    views: dict[str, CallView] = {view.call.call_id: view for view in (*step.calls, *step.ended)}
    # Only the code of a workflow names an effect. It has no model: a call of it without a time of its own has waited.
    untimed: BarKind = "wait" if any(view.call.effect for view in views.values()) else "model"
    bars: list[Bar] = []
    if step.took is not None:
        bars += _split_pause(step.at - step.took, began, parked)
    if times is None or times.model:
        end = step.at if times is None else began + timedelta(milliseconds=times.model)
        bars.append(Bar(kind="model" if times is not None else untimed, start=began, end=end))
    calls: list[Row] = []
    for call in times.calls if times is not None else ():
        view = views.get(call.call_id)
        kind: BarKind = "bad" if view is not None and view.state == "error" else "tool"
        bar = Bar(
            kind=kind,
            start=began + timedelta(milliseconds=call.start),
            end=began + timedelta(milliseconds=call.end),
        )
        bars.append(bar)
        calls += _list_call_rows(step, call.call_id, view, bar, children)
    bars = bars or [Bar(kind=untimed, start=began, end=step.at)]
    yield Row(label=f"{step.number} · {step.title}", target=f"#{step.anchor}", bars=bars)
    yield from calls


def _list_call_rows(
    step: StepView, call_id: str, view: CallView | None, bar: Bar, children: Sequence[RunSummary]
) -> Iterator[Row]:
    label = view.call.tool if view is not None else call_id
    target = f"#{view.anchor if view is not None else step.anchor}"
    begun = [child for child in children if child.agent == label and bar.start <= child.created_at <= bar.end]
    is_edited = view is not None and bool(view.changes)
    is_routine = bar.kind == "tool" and not is_edited and not begun
    yield Row(label=label, target=target, bars=[bar], depth=1, is_edited=is_edited, is_routine=is_routine)
    for child in begun[:_MAX_CHILDREN]:
        end = max(child.created_at, min(child.updated_at, bar.end))
        stretch = Bar(kind="child", start=child.created_at, end=end)
        yield Row(label=child.run_id.rpartition(":")[2], target=f"/runs/{child.run_id}", bars=[stretch], depth=2)


def _clip(attempt: AttemptRecord, start: datetime, end: datetime, now: datetime) -> Bar | None:
    """Return the bar of an attempt within the window."""
    if attempt.began_at is None or attempt.saved_at is None:
        return None
    first, last = max(attempt.began_at, start), min(now if attempt.end is None else attempt.saved_at, end)
    if first > end or last < start:
        return None
    return Bar(kind="worker", start=first, end=max(first, last), label=attempt.worker_id)
