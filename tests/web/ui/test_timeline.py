"""The waterfall of a run: where its bars and marks are."""

from datetime import UTC, datetime, timedelta

from holdfast.checkpoint.progress import AttemptRecord
from holdfast.core.run.state import StepTimes
from holdfast.core.run.status import AttemptEnd
from holdfast.web.ui.run_view.run_steps import StepView
from holdfast.web.ui.run_view.run_timeline import build_timeline

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def make_attempt(number: int, began_at: datetime, end: AttemptEnd) -> AttemptRecord:
    return AttemptRecord(number=number, worker_id=f"w-{number}", began_at=began_at, saved_at=began_at, end=end)


def test_a_resume_is_marked_at_the_end_of_a_long_pause() -> None:
    # A second of work, an hour without a worker, and a second of work again.
    hour = timedelta(hours=1)
    first = StepView(number=1, first_seq=1, finished=True, at=NOW, took=SECOND, times=StepTimes(1000, 1000))
    second = StepView(
        number=2, first_seq=3, finished=True, at=NOW + hour + SECOND, took=hour + SECOND, times=StepTimes(1000, 1000)
    )
    attempts = [
        make_attempt(1, NOW - SECOND, AttemptEnd.DIED),
        make_attempt(2, NOW + hour - timedelta(minutes=1), AttemptEnd.DONE),
    ]
    timeline = build_timeline([first, second], attempts=attempts, now=NOW + 2 * hour)
    assert timeline is not None
    bars = [(lane.bar.label, lane.bar.took, lane.bar.step) for lane in timeline.lanes]
    assert bars == [("model", "1.0 s", 1), ("paused", "1 h", 2), ("resumed", "attempt 2", 2), ("model", "1.0 s", 2)]
    # The pause is cut to the length of all the work.
    assert [(round(lane.x), round(lane.width)) for lane in timeline.lanes] == [
        (0, 250),
        (250, 500),
        (742, 4),
        (750, 250),
    ]


def test_a_resume_after_a_wait_or_before_the_window_is_not_marked() -> None:
    step = StepView(number=9, first_seq=1, finished=True, at=NOW, took=SECOND, times=StepTimes(1000, 1000))
    attempts = [
        make_attempt(1, NOW - 9 * SECOND, AttemptEnd.DIED),
        make_attempt(2, NOW - 8 * SECOND, AttemptEnd.WAITING),
        make_attempt(3, NOW, AttemptEnd.DONE),
    ]
    timeline = build_timeline([step], attempts=attempts, now=NOW)
    assert timeline is not None
    assert [lane.bar.label for lane in timeline.lanes] == ["model"]
