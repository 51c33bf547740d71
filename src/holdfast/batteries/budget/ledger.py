"""The contract of a ledger, and the one in memory."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from holdfast.batteries.budget.amounts import NOTHING, Amounts

#: Spending is added up in stretches of this length: a window is precise to one of them.
BUCKET = timedelta(minutes=1)


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """What a run wants to set aside in one account before it spends it."""

    account: str
    window: timedelta
    #: By unit. There is room while what was spent and what others have set aside is below it.
    limits: dict[str, float]
    estimate: Amounts


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

    async def reserve(self, run_id: str, wanted: Sequence[Reservation], now: datetime) -> Shortage | None:
        """Set all of `wanted` aside in place of what the run had set aside before; or nothing, and say why.

        Of any number of callers that do so at once, each sees what the others have set aside. A run that was booked
        as one already is not counted as one again, whatever its estimate says. What was set aside longer ago than the
        window, and is not settled, was lost with its run and does not count.
        """
        ...

    async def settle(
        self, run_id: str, accounts: Collection[str], total: Amounts, now: datetime, *, booked: Amounts = NOTHING
    ) -> None:
        """The run has spent `total` in all: book what was not booked before, and free what it had set aside.

        The same total again books nothing, so it may be said as often as one likes, by whoever drives the run.

        Args:
            booked: so much was booked before, even if the ledger has forgotten it.
        """
        ...

    async def spent(self, account: str, since: datetime) -> Amounts:
        """What was spent since then, precise to a `BUCKET`."""
        ...

    async def forget(self, before: datetime) -> None:
        """Drop what was booked, and set aside, before then."""
        ...


class MemoryLedger:
    """A ledger for one process. Does not survive it."""

    def __init__(self) -> None:
        self._buckets: dict[str, dict[int, Amounts]] = {}
        self._totals: dict[tuple[str, str], tuple[Amounts, datetime]] = {}
        self._reserved: dict[tuple[str, str], tuple[Amounts, datetime]] = {}

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def reserve(self, run_id: str, wanted: Sequence[Reservation], now: datetime) -> Shortage | None:
        wanted = [booked_once(each, self._totals.get((each.account, run_id), (NOTHING, now))[0]) for each in wanted]
        for each in wanted:
            taken = await self.spent(each.account, now - each.window)
            for (account, other), (amounts, at) in self._reserved.items():
                if account == each.account and other != run_id and at >= now - each.window:
                    taken = taken + amounts
            shortage = short_of(each, taken)
            if shortage is not None:
                return shortage
        for each in wanted:
            self._reserved[each.account, run_id] = each.estimate, now
        return None

    async def settle(
        self, run_id: str, accounts: Collection[str], total: Amounts, now: datetime, *, booked: Amounts = NOTHING
    ) -> None:
        for account in accounts:
            before = self._totals.get((account, run_id), (NOTHING, now))[0].at_least(booked)
            buckets = self._buckets.setdefault(account, {})
            number = bucket(now)
            buckets[number] = buckets.get(number, NOTHING) + total.since(before)
            self._totals[account, run_id] = total.at_least(before), now
            self._reserved.pop((account, run_id), None)

    async def spent(self, account: str, since: datetime) -> Amounts:
        first = bucket(since)
        result = NOTHING
        for number, amounts in self._buckets.get(account, {}).items():
            if number >= first:
                result = result + amounts
        return result

    async def forget(self, before: datetime) -> None:
        first = bucket(before)
        for account, buckets in self._buckets.items():
            self._buckets[account] = {number: amounts for number, amounts in buckets.items() if number >= first}
        self._totals = {key: row for key, row in self._totals.items() if row[1] >= before}
        self._reserved = {key: row for key, row in self._reserved.items() if row[1] >= before}


def bucket(at: datetime) -> int:
    """The number of the stretch of time that `at` is in."""
    return int(at.timestamp() // BUCKET.total_seconds())


def booked_once(wanted: Reservation, total: Amounts) -> Reservation:
    """`wanted` by a run that has `total` on the books: it is a new run only if it is not among the runs there."""
    if not total.runs:
        return wanted
    return msgspec.structs.replace(wanted, estimate=msgspec.structs.replace(wanted.estimate, runs=0))


def short_of(wanted: Reservation, taken: Amounts) -> Shortage | None:
    """Why there is no room for `wanted` beside what is taken already; `None` if there is."""
    for unit, limit in wanted.limits.items():
        spent = getattr(taken, unit)
        # A whole run has to fit; of what is only an estimate a part has to.
        full = spent + wanted.estimate.runs > limit if unit == "runs" else spent >= limit
        if full:
            return Shortage(account=wanted.account, unit=unit, spent=spent, limit=limit)
    return None
