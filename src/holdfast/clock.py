"""Time, so that a test can hand in its own."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits for it."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC. For records; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds that never jump back. For durations within one process."""
        ...

    async def sleep(self, duration: timedelta) -> None:
        """Return once `duration` has passed on this clock."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(duration.total_seconds())


SYSTEM_CLOCK = SystemClock()
