"""The axis of a timeline: where a moment is, in per cent, with folded stretches and ticks."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.runtime.reading.formatting import format_duration

#: The width of a folded stretch, and of all together at most, in per cent.
_FOLD_WIDTH, _MAX_FOLDED = 8.0, 45.0
#: A shorter stretch without work is not folded, nor one that is a smaller part of the time that is not idle.
_MIN_FOLD, _FOLD_PART = timedelta(seconds=2), 0.3
_MAX_TICKS = 6
#: Room that the label of a tick needs, in per cent.
_LABEL_WIDTH = 6.0
#: Distances of ticks, in seconds.
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400, 604800)


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch in which no process worked, drawn narrower than it is."""

    start: datetime
    end: datetime
    x: float
    width: float

    @property
    def label(self) -> str:
        return format_duration(self.end - self.start)


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """A mark on the axis."""

    x: float
    label: str


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """Places moments between its start and its end."""

    start: datetime
    end: datetime
    folds: Sequence[Fold] = ()
    ticks: Sequence[Tick] = ()
    #: Per cent for a second that is not folded.
    scale: float

    def place(self, at: datetime) -> float:
        """Return the place of a moment, in per cent. A moment outside is placed at an end."""
        at = min(max(at, self.start), self.end)
        x = self.scale * (at - self.start).total_seconds()
        for fold in self.folds:
            length = fold.end - fold.start
            passed = max(min(at, fold.end) - fold.start, timedelta(0))
            x += fold.width * (passed / length) - self.scale * passed.total_seconds()
        return min(100.0, max(0.0, x))


def make_axis(
    start: datetime, end: datetime, work: Sequence[tuple[datetime, datetime]], *, folds: bool = True, zoom: int = 1
) -> Axis:
    """Make the axis. Long stretches outside of all `work` are folded. With `zoom` it has that many times the ticks."""
    end = max(end, start + timedelta(milliseconds=1))
    idle = _list_idle(start, end, work) if folds else []
    active = (end - start) - sum((last - first for first, last in idle), timedelta(0))
    idle = [gap for gap in idle if gap[1] - gap[0] > max(_MIN_FOLD, active * _FOLD_PART)]
    active = (end - start) - sum((last - first for first, last in idle), timedelta(0))
    width = min(_FOLD_WIDTH, _MAX_FOLDED / len(idle)) if idle else 0.0
    if active <= timedelta(0):  # nothing but a wait
        return Axis(start=start, end=end, scale=100 / (end - start).total_seconds())
    scale = (100 - width * len(idle)) / active.total_seconds()
    placed: list[Fold] = []
    for first, last in idle:
        x = Axis(start=start, end=end, folds=placed, scale=scale).place(first)
        placed.append(Fold(start=first, end=last, x=round(x, 2), width=width))
    axis = Axis(start=start, end=end, folds=placed, scale=scale)
    return msgspec.structs.replace(axis, ticks=_list_ticks(axis, active, zoom))


def _list_idle(
    start: datetime, end: datetime, work: Sequence[tuple[datetime, datetime]]
) -> list[tuple[datetime, datetime]]:
    gaps: list[tuple[datetime, datetime]] = []
    reached = start
    for first, last in sorted(work):
        if first > reached:
            gaps.append((reached, first))
        reached = max(reached, last)
    return [*gaps, (reached, end)] if end > reached else gaps


def _list_ticks(axis: Axis, active: timedelta, zoom: int) -> list[Tick]:
    """Return a tick at the start, after each fold, and at equal distances between."""
    step = next((each for each in _STEPS if active.total_seconds() / each <= _MAX_TICKS * zoom), _STEPS[-1])
    ticks = [Tick(x=0.0, label=f"{axis.start.astimezone(UTC):%H:%M:%S}")]
    ticks += [Tick(x=fold.x + fold.width, label="") for fold in axis.folds]
    length = (axis.end - axis.start).total_seconds()
    at = step
    while at < length and len(ticks) < 3 * _MAX_TICKS * zoom:
        moment = axis.start + timedelta(seconds=at)
        fold = next((each for each in axis.folds if each.start <= moment < each.end), None)
        if fold is None:
            x = axis.place(moment)
            room = min((each.x for each in axis.folds if each.x > x), default=100.0) - x
            label = f"+{format_duration(timedelta(seconds=at))}" if room * zoom > _LABEL_WIDTH else ""
            ticks.append(Tick(x=round(x, 2), label=label))
            at += step
        else:  # the first after the fold
            at = step * (int((fold.end - axis.start).total_seconds() / step) + 1)
    return ticks
