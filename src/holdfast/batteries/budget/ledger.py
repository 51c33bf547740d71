"""Spending, the ledger protocol, and the ledger in memory."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

UNITS = ("tokens", "cost_usd", "runs", "seconds")

#: Spending is added up per bucket of this length, so a window is precise to one bucket.
BUCKET_LENGTH = timedelta(minutes=1)


class Spend(msgspec.Struct, frozen=True, kw_only=True):
    """An amount of tokens, cost, runs and seconds."""

    tokens: int = 0
    cost_usd: float = 0.0
    runs: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Spend") -> "Spend":
        return Spend(**{unit: getattr(self, unit) + getattr(other, unit) for unit in UNITS})

    def since(self, earlier: "Spend") -> "Spend":
        """Return the increase over `earlier`, per unit. Never negative, so spending is never refunded."""
        return Spend(**{unit: max(0, getattr(self, unit) - getattr(earlier, unit)) for unit in UNITS})

    def elementwise_max(self, other: "Spend") -> "Spend":
        """Return the larger amount of each unit."""
        return Spend(**{unit: max(getattr(self, unit), getattr(other, unit)) for unit in UNITS})

    def as_tuple(self) -> tuple[float, ...]:
        """Return the amounts in the order of `UNITS`."""
        return tuple(getattr(self, unit) for unit in UNITS)


NO_SPEND = Spend()


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """An amount that a run reserves in one account before it spends it."""

    account: str
    window: timedelta
    #: Maximum per unit of the account's spending plus the reservations of other runs.
    limits: dict[str, float]
    estimate: Spend


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """The limit that refused a reservation."""

    account: str
    unit: str
    spent: float
    limit: float


class Ledger(Protocol):
    """Adds up spending per account. Atomic across tasks and, if durable, across processes."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def reserve(self, run_id: str, reservations: Sequence[Reservation], now: datetime) -> Shortage | None:
        """Replace the run's reservations with `reservations`; if one exceeds a limit, change nothing and return it.

        Concurrent callers see each other's reservations. A run that was already booked is not counted as a new
        run, whatever its estimate. A reservation older than its window belongs to a lost run and is ignored.
        """
        ...

    async def commit(
        self, run_id: str, accounts: Collection[str], total: Spend, now: datetime, *, already_booked: Spend = NO_SPEND
    ) -> None:
        """Book the part of the run's `total` that is not booked yet, and release its reservations.

        Idempotent: the same total again books nothing.

        Args:
            already_booked: booked earlier, even if the ledger has purged it.
        """
        ...

    async def spent(self, account: str, since: datetime) -> Spend:
        """Return the spending since then, precise to `BUCKET_LENGTH`."""
        ...

    async def accounts(self, since: datetime) -> Mapping[str, Spend]:
        """Return the spending since then of every account that has any, precise to `BUCKET_LENGTH`."""
        ...

    async def purge(self, before: datetime) -> None:
        """Delete bookings and reservations older than `before`."""
        ...


class MemoryLedger:
    """Keeps spending in memory, for one process. It does not survive the process."""

    def __init__(self) -> None:
        self._buckets: dict[str, dict[int, Spend]] = {}
        #: Total and time, by account and run.
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
            for (account, other), (spend, at) in self._reserved.items():
                if account == each.account and other != run_id and at >= now - each.window:
                    taken = taken + spend
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
        buckets = self._buckets.get(account, {})
        return sum((spend for number, spend in buckets.items() if number >= first), NO_SPEND)

    async def accounts(self, since: datetime) -> Mapping[str, Spend]:
        first = bucket_number(since)
        recent = [account for account, buckets in self._buckets.items() if max(buckets, default=-1) >= first]
        return {account: await self.spent(account, since) for account in recent}

    async def purge(self, before: datetime) -> None:
        first = bucket_number(before)
        for account, buckets in self._buckets.items():
            self._buckets[account] = {number: spend for number, spend in buckets.items() if number >= first}
        self._totals = {key: entry for key, entry in self._totals.items() if entry[1] >= before}
        self._reserved = {key: entry for key, entry in self._reserved.items() if entry[1] >= before}


def bucket_number(at: datetime) -> int:
    """Return the number of the bucket that contains `at`."""
    return int(at.timestamp() // BUCKET_LENGTH.total_seconds())


def exclude_counted_run(reservation: Reservation, total: Spend) -> Reservation:
    """Return the reservation without a new run, if the run's booked `total` already counts it."""
    if not total.runs:
        return reservation
    return msgspec.structs.replace(reservation, estimate=msgspec.structs.replace(reservation.estimate, runs=0))


def find_shortage(reservation: Reservation, taken: Spend) -> Shortage | None:
    """Return the first limit that has no room for the reservation beside `taken`, or `None`."""
    for unit, limit in reservation.limits.items():
        spent = getattr(taken, unit)
        # A run is a whole unit and has to fit. The other units are estimates: some room is enough.
        full = spent + reservation.estimate.runs > limit if unit == "runs" else spent >= limit
        if full:
            return Shortage(account=reservation.account, unit=unit, spent=spent, limit=limit)
    return None
