"""What is counted.

The contract of a ledger, and the one in memory.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

UNITS = ("tokens", "cost_usd", "runs", "seconds")


class Spend(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, cost, runs and seconds, together."""

    tokens: int = 0
    cost_usd: float = 0.0
    runs: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Spend") -> "Spend":
        return Spend(**{unit: getattr(self, unit) + getattr(other, unit) for unit in UNITS})

    def since(self, earlier: "Spend") -> "Spend":
        """What came on top of `earlier`; never negative, so that nothing is ever given back."""
        return Spend(**{unit: max(0, getattr(self, unit) - getattr(earlier, unit)) for unit in UNITS})

    def elementwise_max(self, other: "Spend") -> "Spend":
        """The larger of both, unit by unit."""
        return Spend(**{unit: max(getattr(self, unit), getattr(other, unit)) for unit in UNITS})

    def as_tuple(self) -> tuple[float, ...]:
        """The amounts in the order of `UNITS`."""
        return tuple(getattr(self, unit) for unit in UNITS)


NO_SPEND = Spend()


#: Spending is added up in stretches of this length: a window is precise to one of them.
BUCKET_LENGTH = timedelta(minutes=1)


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """What a run wants to set aside in one account before it spends it."""

    account: str
    window: timedelta
    #: By unit. There is room while what was spent and what others have set aside is below it.
    limits: dict[str, float]
    estimate: Spend


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """Why there was no room."""

    account: str
    unit: str
    spent: float
    limit: float


class Ledger(Protocol):
    """Adds up spending by account. Atomic under any number of tasks and, if it is durable, processes."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def reserve(self, run_id: str, reservations: Sequence[Reservation], now: datetime) -> Shortage | None:
        """Set all of `wanted` aside in place of what the run had set aside before; or nothing, and say why.

        Of any number of callers that do so at once, each sees what the others have set aside. A run that was booked
        as one already is not counted as one again, whatever its estimate says. What was set aside longer ago than the
        window, and is not settled, was lost with its run and does not count.
        """
        ...

    async def commit(
        self, run_id: str, accounts: Collection[str], total: Spend, now: datetime, *, already_booked: Spend = NO_SPEND
    ) -> None:
        """The run has spent `total` in all: book what was not booked before, and free what it had set aside.

        The same total again books nothing, so it may be said as often as one likes, by whoever drives the run.

        Args:
            booked: so much was booked before, even if the ledger has forgotten it.
        """
        ...

    async def spent(self, account: str, since: datetime) -> Spend:
        """What was spent since then, precise to a `BUCKET`."""
        ...

    async def purge(self, before: datetime) -> None:
        """Drop what was booked, and set aside, before then."""
        ...


class MemoryLedger:
    """A ledger for one process. Does not survive it."""

    def __init__(self) -> None:
        self._buckets: dict[str, dict[int, Spend]] = {}
        self._totals: dict[tuple[str, str], tuple[Spend, datetime]] = {}
        self._reserved: dict[tuple[str, str], tuple[Spend, datetime]] = {}

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def reserve(self, run_id: str, reservations: Sequence[Reservation], now: datetime) -> Shortage | None:
        reservations = [
            exclude_counted_run(each, self._totals.get((each.account, run_id), (NO_SPEND, now))[0])
            for each in reservations
        ]
        for each in reservations:
            taken = await self.spent(each.account, now - each.window)
            for (account, other), (amounts, at) in self._reserved.items():
                if account == each.account and other != run_id and at >= now - each.window:
                    taken = taken + amounts
            shortage = find_shortage(each, taken)
            if shortage is not None:
                return shortage
        for each in reservations:
            self._reserved[each.account, run_id] = each.estimate, now
        return None

    async def commit(
        self, run_id: str, accounts: Collection[str], total: Spend, now: datetime, *, already_booked: Spend = NO_SPEND
    ) -> None:
        for account in accounts:
            before = self._totals.get((account, run_id), (NO_SPEND, now))[0].elementwise_max(already_booked)
            buckets = self._buckets.setdefault(account, {})
            number = bucket_number(now)
            buckets[number] = buckets.get(number, NO_SPEND) + total.since(before)
            self._totals[account, run_id] = total.elementwise_max(before), now
            self._reserved.pop((account, run_id), None)

    async def spent(self, account: str, since: datetime) -> Spend:
        first = bucket_number(since)
        result = NO_SPEND
        for number, amounts in self._buckets.get(account, {}).items():
            if number >= first:
                result = result + amounts
        return result

    async def purge(self, before: datetime) -> None:
        first = bucket_number(before)
        for account, buckets in self._buckets.items():
            self._buckets[account] = {number: amounts for number, amounts in buckets.items() if number >= first}
        self._totals = {key: row for key, row in self._totals.items() if row[1] >= before}
        self._reserved = {key: row for key, row in self._reserved.items() if row[1] >= before}


def bucket_number(at: datetime) -> int:
    """The number of the stretch of time that `at` is in."""
    return int(at.timestamp() // BUCKET_LENGTH.total_seconds())


def exclude_counted_run(reservation: Reservation, total: Spend) -> Reservation:
    """`wanted` by a run that has `total` on the books: it is a new run only if it is not among the runs there."""
    if not total.runs:
        return reservation
    return msgspec.structs.replace(reservation, estimate=msgspec.structs.replace(reservation.estimate, runs=0))


def find_shortage(reservation: Reservation, taken: Spend) -> Shortage | None:
    """Why there is no room for `wanted` beside what is taken already; `None` if there is."""
    for unit, limit in reservation.limits.items():
        spent = getattr(taken, unit)
        # A whole run has to fit; of what is only an estimate a part has to.
        full = spent + reservation.estimate.runs > limit if unit == "runs" else spent >= limit
        if full:
            return Shortage(account=reservation.account, unit=unit, spent=spent, limit=limit)
    return None
