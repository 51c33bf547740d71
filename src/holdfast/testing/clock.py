"""A clock that stands still until a test moves it."""

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta


class ManualClock:
    """A `holdfast.clock.Clock` whose time passes only in `advance`."""

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._start = start
        self._order = itertools.count()
        self._sleepers: list[tuple[datetime, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start).total_seconds()

    async def sleep(self, duration: timedelta) -> None:
        if duration <= timedelta(0):
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + duration, next(self._order), woken))
        await woken

    @property
    def sleepers(self) -> int:
        """How many tasks wait for this clock now."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def advance(self, duration: timedelta) -> None:
        """Let `duration` pass. Sleepers wake in the order of their times, each seeing its own time as now.

        A task that was woken has run up to its next wait when this returns, if that takes it a few turns of the loop.
        """
        end = self._now + duration
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
                await _settle()
        self._now = end


async def _settle() -> None:
    """Give every task that is ready some turns, so that it reaches its next wait."""
    for _ in range(10):
        await asyncio.sleep(0)
