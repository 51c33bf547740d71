"""A process that spends from an account, step by step, until a limit is reached. Prints the total."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from holdfast.batteries.budget import Ledger, Reservation, Spend
from holdfast.db.urls import tables_from_url


async def spend(url: str, name: str, limit: int, step: int) -> int:
    ledger = Ledger(tables_from_url(url))
    await ledger.open()
    print("ready", flush=True)
    sys.stdin.readline()
    reservation = Reservation(
        account="all", window=timedelta(days=1), limits={"tokens": limit}, estimate=Spend(tokens=step)
    )
    total = 0
    while await ledger.reserve(name, [reservation], datetime.now(UTC)) is None:
        total += step
        for _ in range(2):  # committed twice, booked once
            await ledger.commit(name, ["all"], Spend(tokens=total), datetime.now(UTC))
    await ledger.close()
    return total


if __name__ == "__main__":
    url, name, limit, step = sys.argv[1:]
    print(asyncio.run(spend(url, name, int(limit), int(step))), flush=True)
