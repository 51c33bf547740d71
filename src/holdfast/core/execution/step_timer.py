"""Measures a step: the model call and the tool calls."""

from holdfast.clock import Clock
from holdfast.core.state import CallTime, StepTimes


class StepTimer:
    """The times of the step under way, in this process."""

    __slots__ = ("_began_at", "_calls", "_clock", "_replied_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: `None` between two steps.
        self._began_at: float | None = None
        self._replied_at: float | None = None
        self._calls: list[CallTime] = []

    def begin(self) -> None:
        """The model is asked now."""
        self._began_at, self._replied_at = self._clock.monotonic(), None

    def reply(self) -> None:
        """The reply is complete. Without `begin`, an earlier process has recorded it."""
        self._replied_at = self._clock.monotonic()
        if self._began_at is None:
            self._began_at = self._replied_at

    def add_call(self, call_id: str, started_at: float) -> None:
        """A call that was started then has its result."""
        began_at = self._began_at
        if began_at is not None:
            start, end = started_at - began_at, self._clock.monotonic() - began_at
            self._calls.append(CallTime(call_id, round(start * 1000), round(end * 1000)))

    def end(self) -> StepTimes | None:
        """Return the times of the step, which is finished; `None` if it was not measured."""
        began_at, replied_at, calls = self._began_at, self._replied_at, self._calls
        self._began_at, self._replied_at, self._calls = None, None, []
        if began_at is None:
            return None
        took = round((self._clock.monotonic() - began_at) * 1000)
        model = took if replied_at is None else round((replied_at - began_at) * 1000)
        return StepTimes(took, model, tuple(calls))
