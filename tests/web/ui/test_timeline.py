"""The timeline of a run: where its bars, folds and marks are."""

from datetime import UTC, datetime, timedelta

from holdfast.checkpoint.progress import AttemptRecord
from holdfast.core.run.state import CallTime, StepTimes
from holdfast.core.run.status import AttemptEnd
from holdfast.web.ui.run_view.run_steps import StepView
from holdfast.web.ui.run_view.run_timeline import TimelineView, build_timeline

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def make_attempt(number: int, began_at: datetime, end: AttemptEnd) -> AttemptRecord:
    return AttemptRecord(number=number, worker_id=f"w-{number}", began_at=began_at, saved_at=began_at, end=end)


def test_a_long_pause_is_folded_and_a_death_is_marked() -> None:
    # A second of work, an hour without a worker, and a second of work again.
    hour = timedelta(hours=1)
    first = StepView(number=1, first_seq=1, finished=True, at=NOW, took=SECOND, times=StepTimes(1000, 1000))
    second = StepView(
        number=2, first_seq=3, finished=True, at=NOW + hour + SECOND, took=hour + SECOND, times=StepTimes(1000, 1000)
    )
    attempts = [
        make_attempt(1, NOW, AttemptEnd.DIED),
        make_attempt(2, NOW + hour - timedelta(minutes=1), AttemptEnd.DONE),
    ]
    timeline = build_timeline([first, second], attempts=attempts, now=NOW + 2 * hour)
    assert timeline is not None
    workers, one, two = timeline.rows
    assert (workers.label, workers.took) == ("workers", "attempt 2")
    assert [(bar.kind, timeline.place(bar.start), timeline.measure(bar)) for bar in one.bars] == [("model", 0, 46)]
    assert [(bar.kind, timeline.place(bar.start), timeline.measure(bar)) for bar in two.bars] == [
        ("wait", 46, 8),
        ("model", 54, 46),
    ]
    [fold] = timeline.folds
    assert (fold.x, fold.width, fold.label) == (46, 8, "1 h")
    [death] = timeline.deaths
    assert (death.worker_id, death.at, death.gap) == ("w-1", NOW, hour - timedelta(minutes=1))
    [*_, last] = timeline.ticks
    assert last.x <= 100


def test_to_scale_nothing_is_folded() -> None:
    first = StepView(number=1, first_seq=1, finished=True, at=NOW, took=SECOND, times=StepTimes(1000, 1000))
    later = NOW + 99 * SECOND
    second = StepView(number=2, first_seq=3, finished=True, at=later, took=99 * SECOND, times=StepTimes(1000, 1000))
    timeline = build_timeline([first, second], now=later, view=TimelineView(to_scale=True))
    assert timeline is not None
    assert list(timeline.folds) == []
    assert [timeline.measure(bar) for row in timeline.rows for bar in row.bars] == [1, 98, 1]


def test_a_parked_stretch_is_not_a_wait_and_a_zoom_shows_a_part() -> None:
    first = StepView(number=1, first_seq=1, finished=True, at=NOW, took=SECOND, times=StepTimes(1000, 1000))
    later = NOW + 99 * SECOND
    second = StepView(number=2, first_seq=3, finished=True, at=later, took=99 * SECOND, times=StepTimes(1000, 1000))
    attempts = [
        make_attempt(1, NOW + 10 * SECOND, AttemptEnd.PARKED),
        make_attempt(2, NOW + 60 * SECOND, AttemptEnd.DONE),
    ]
    steps, view = [first, second], TimelineView(to_scale=True)
    timeline = build_timeline(steps, attempts=attempts, now=later, view=view)
    assert timeline is not None
    assert [(bar.kind, timeline.measure(bar)) for bar in timeline.rows[-1].bars] == [
        ("wait", 10),
        ("parked", 50),
        ("wait", 38),
        ("model", 1),
    ]
    view = TimelineView(to_scale=True, zoom=4)
    assert (view.left, view.move(-1), view.move(1), view.rescale(2), view.rescale(8)) == (75, 50, 75, 50, 81.25)
    tail = build_timeline(steps, attempts=attempts, now=later, view=view)
    assert tail is not None
    [shown] = tail.shown_rows
    assert (shown.label, shown.took) == ("2 · begins", "2 min")
    assert [(bar.kind, tail.place(bar.start), tail.measure(bar)) for bar in shown.bars] == [
        ("wait", 0, 96),
        ("model", 96, 4),
    ]
    assert all(0 <= tick.x <= 100 for tick in tail.ticks)
    assert len(tail.ticks) > 2


def test_calls_have_rows_below_their_step_and_an_attempt_before_the_window_has_none() -> None:
    times = StepTimes(1000, 400, (CallTime("c1", 400, 900),))
    step = StepView(number=9, first_seq=1, finished=True, at=NOW, took=SECOND, times=times)
    attempts = [
        make_attempt(1, NOW - 9 * SECOND, AttemptEnd.DIED),
        make_attempt(2, NOW - 8 * SECOND, AttemptEnd.WAITING),
        make_attempt(3, NOW - SECOND / 2, AttemptEnd.DONE),
    ]
    timeline = build_timeline([step], attempts=attempts, now=NOW)
    assert timeline is not None
    assert [(row.label, row.depth, len(row.bars)) for row in timeline.rows] == [
        ("workers", 0, 1),
        ("9 · begins", 0, 2),
        ("c1", 1, 1),
    ]
    assert list(timeline.deaths) == []
