"""Measures a step: the model call and the tool calls."""

from holdfast.clock import Clock
from holdfast.core.state import CallTime, StepTimes


class StepTimer:
    """The times of the step under way, in this process."""

    __slots__ = ("_began", "_calls", "_clock", "_replied")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: float | None = None
        self._replied: float | None = None
        self._calls: list[tuple[str, float, float]] = []

    def begin(self) -> None:
        """The model is asked now."""
        self._began, self._replied = self._clock.monotonic(), None

    def reply(self) -> None:
        """The reply is complete. Without `begin`, an earlier process has recorded it."""
        self._replied = self._clock.monotonic()
        if self._began is None:
            self._began = self._replied

    def add_call(self, call_id: str, started_at: float) -> None:
        """A call that was started then has its result."""
        self._calls.append((call_id, started_at, self._clock.monotonic()))

    def end(self) -> StepTimes | None:
        """Return the times of the step, which is finished; `None` if it was not measured."""
        began, replied, calls = self._began, self._replied, self._calls
        self._began = self._replied = None
        self._calls = []
        if began is None:
            return None
        now = self._clock.monotonic()

        def to_milliseconds(at: float) -> int:
            return round((at - began) * 1000)

        return StepTimes(
            took=to_milliseconds(now),
            model=to_milliseconds(now if replied is None else replied),
            calls=tuple(CallTime(each, to_milliseconds(start), to_milliseconds(end)) for each, start, end in calls),
        )
