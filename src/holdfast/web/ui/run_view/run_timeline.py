"""The timeline of a run: one row for its workers, one for each step, its calls and its child runs, on a common axis."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from holdfast.checkpoint.progress import AttemptRecord
from holdfast.core.run.status import AttemptEnd
from holdfast.runtime.reading.formatting import format_duration
from holdfast.runtime.reading.run_summary import RunSummary
from holdfast.web.ui.run_view.call_tree import CallGroup
from holdfast.web.ui.run_view.run_steps import CallView, StepView
from holdfast.web.ui.run_view.time_axis import Axis, Fold, Tick, make_axis

#: Steps that a timeline shows: the last ones of the window. Child runs of one timeline.
_MAX_STEPS, _MAX_CHILDREN = 25, 20
#: A shorter pause before a step is not shown.
_MIN_PAUSE = timedelta(milliseconds=100)
#: The narrowest bar, in per cent.
_MIN_WIDTH = 0.4

BarKind = Literal["model", "tool", "bad", "wait", "parked", "now", "child", "worker", "undo"]
#: In these stretches no process works.
_IDLE = ("wait", "parked")
#: How far a timeline can be zoomed in.
ZOOMS = (1, 2, 4, 8, 16, 32)


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of time."""

    kind: BarKind
    start: datetime
    end: datetime


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


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a worker's process, and the attempt that followed."""

    worker_id: str
    at: datetime
    next: AttemptRecord | None = None

    @property
    def gap(self) -> timedelta | None:
        """The time until another worker resumed the run."""
        began = None if self.next is None else self.next.began_at
        return None if began is None else max(began - self.at, timedelta(0))


class RunTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, and the axis that places them."""

    rows: Sequence[Row]
    axis: Axis
    deaths: Sequence[Death]
    #: What is shown: one of `zoom` equal parts, from `left` per cent of the axis.
    zoom: int = 1
    left: float = 0.0

    def place(self, at: datetime) -> float:
        """Return the place of a moment, in per cent of what is shown."""
        return round(self._clip(self.axis.place(at)), 2)

    def measure(self, bar: Bar) -> float:
        """Return the width of a bar, in per cent of what is shown."""
        start = min(self._clip(self.axis.place(bar.start)), 100 - _MIN_WIDTH)
        return round(max(_MIN_WIDTH, self._clip(self.axis.place(bar.end)) - start), 2)

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
    parked = _list_parked(attempts, now)
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
        rows += [
            Row(label=part.title, target=f"#{part.target}", bars=_list_group_bars(part, now), depth=1)
            for part in group.parts
            if group.kind == "parallel"
        ]
    return _place([row for row in rows if row.bars], attempts, now, view)


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
    deaths = [*_list_deaths(attempts, start, end)]
    return RunTimeline(rows=[*head, *rows], axis=axis, deaths=deaths, zoom=view.zoom, left=view.left)


def _list_parked(attempts: Sequence[AttemptRecord], now: datetime) -> list[tuple[datetime, datetime]]:
    """Return the stretches in which the run was parked."""
    ends = [*(attempt.began_at for attempt in attempts[1:]), now]
    return [
        (attempt.saved_at, max(attempt.saved_at, end))
        for attempt, end in zip(attempts, ends, strict=False)
        if attempt.end is AttemptEnd.PARKED and attempt.saved_at is not None and end is not None
    ]


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
    bars: list[Bar] = []
    if step.took is not None:
        bars += _split_pause(step.at - step.took, began, parked)
    if times is None or times.model:
        end = step.at if times is None else began + timedelta(milliseconds=times.model)
        bars.append(Bar(kind="model", start=began, end=end))
    views: dict[str, CallView] = {view.call.call_id: view for view in step.calls}
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
    bars = bars or [Bar(kind="model", start=began, end=step.at)]
    yield Row(label=f"{step.number} · {step.title}", target=f"#{step.anchor}", bars=bars)
    yield from calls


def _list_call_rows(
    step: StepView, call_id: str, view: CallView | None, bar: Bar, children: Sequence[RunSummary]
) -> Iterator[Row]:
    label = view.call.tool if view is not None else call_id
    target = f"#{view.anchor if view is not None else step.anchor}"
    yield Row(label=label, target=target, bars=[bar], depth=1, is_edited=view is not None and bool(view.changes))
    begun = [child for child in children if child.agent == label and bar.start <= child.created_at <= bar.end]
    for child in begun[:_MAX_CHILDREN]:
        end = max(child.created_at, min(child.updated_at, bar.end))
        stretch = Bar(kind="child", start=child.created_at, end=end)
        yield Row(label=child.run_id.rpartition(":")[2], target=f"/runs/{child.run_id}", bars=[stretch], depth=2)


def _clip(attempt: AttemptRecord, start: datetime, end: datetime, now: datetime) -> Bar | None:
    """Return the bar of an attempt within the window."""
    if attempt.began_at is None or attempt.saved_at is None:
        return None
    first, last = max(attempt.began_at, start), min(now if attempt.end is None else attempt.saved_at, end)
    return Bar(kind="worker", start=first, end=max(first, last)) if first <= end and last >= start else None


def _list_deaths(attempts: Sequence[AttemptRecord], start: datetime, end: datetime) -> Iterator[Death]:
    for place, attempt in enumerate(attempts):
        following = attempts[place + 1] if place + 1 < len(attempts) else None
        # A process that died before its first save is known by the attempt that followed.
        at = attempt.saved_at or (None if following is None else following.began_at)
        if attempt.end is AttemptEnd.DIED and at is not None and at >= start:
            yield Death(worker_id=attempt.worker_id, at=min(at, end), next=following)
