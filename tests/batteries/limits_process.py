"""A process that asks for permits at logical times. Each line of stdin has a time, how many to ask for, their tokens.

Prints how many were granted.
"""

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from holdfast.batteries.rate_limits import RateLimits
from holdfast.clock import SystemClock
from holdfast.core.ports import RatePermit
from holdfast.core.run.info import RunInfo
from holdfast.db.urls import tables_from_url

START = datetime(2030, 1, 1, tzinfo=UTC)


class LogicalClock(SystemClock):
    """Its wall clock stands still until it is set."""

    wall = START

    def now(self) -> datetime:
        return self.wall


async def ask(url: str, requests: int, tokens: int) -> None:
    clock = LogicalClock()
    tables = tables_from_url(url)
    limits = RateLimits(requests_per_minute=requests, tokens_per_minute=tokens, tables=tables, clock=clock)
    info = RunInfo(run_id="r", agent_name="a")
    while line := await asyncio.to_thread(sys.stdin.readline):
        at, count, each = (int(word) for word in line.split())
        clock.wall = START + timedelta(seconds=at)
        answers = await asyncio.gather(*(limits.acquire(info, "gpt", each) for _ in range(count)))
        print(sum(isinstance(answer, RatePermit) for answer in answers), flush=True)
    await limits.close()


if __name__ == "__main__":
    asyncio.run(ask(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
