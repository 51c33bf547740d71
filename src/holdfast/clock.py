"""The clock, which a test or a simulator may replace. The only module that reads the time."""

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Protocol, runtime_checkable


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Do not call the callback."""
        ...


@runtime_checkable
class Clock(Protocol):
    """Tells the time and waits for it."""

    def now(self) -> datetime:
        """Return the wall clock time, aware, in UTC. For records; may jump."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease. For durations within one process."""
        ...

    async def sleep(self, duration: timedelta) -> None:
        """Return once `duration` has passed on this clock."""
        ...

    def call_later(self, delay: timedelta, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the running event loop once `delay` has passed on this clock."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    #: Not wrapped: a step reads it a dozen times.
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(duration.total_seconds())

    def call_later(self, delay: timedelta, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay.total_seconds(), callback)


SYSTEM_CLOCK = SystemClock()

#: The clock of whatever is given no other. A simulator sets its own in the context of each simulated process.
CLOCK: ContextVar[Clock] = ContextVar("holdfast_clock", default=SYSTEM_CLOCK)
