"""The ledger and its tables."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec

from holdfast.db.tables import BatteryTables, Cursor, Schema
from holdfast.ids import make_id

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
    #: Maximum per unit of the account's spending plus the reservations of other runs, unless a person has set another.
    limits: dict[str, float]
    estimate: Spend


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """The limit that refused a reservation."""

    account: str
    unit: str
    spent: float
    limit: float
    #: When there may be room again. `None`: never, unless the limit is raised.
    until: datetime | None = None


_SPEND_COLUMNS = (
    "tokens BIGINT NOT NULL, cost_usd DOUBLE PRECISION NOT NULL, "
    "runs BIGINT NOT NULL, seconds DOUBLE PRECISION NOT NULL"
)

SCHEMA = Schema(
    name="budget",
    migrations=[
        [
            f"CREATE TABLE budget_spent (account TEXT, bucket BIGINT, {_SPEND_COLUMNS}, PRIMARY KEY (account, bucket))",
            f"CREATE TABLE budget_total (account TEXT, run_id TEXT, {_SPEND_COLUMNS}, at DOUBLE PRECISION NOT NULL, "
            "PRIMARY KEY (account, run_id))",
            f"CREATE TABLE budget_reserved (account TEXT, run_id TEXT, {_SPEND_COLUMNS}, at DOUBLE PRECISION NOT NULL, "
            "PRIMARY KEY (account, run_id))",
        ],
        # Limits that a person has set, instead of those of the code.
        [
            "CREATE TABLE budget_limits (account TEXT, unit TEXT, seconds DOUBLE PRECISION, "
            "maximum DOUBLE PRECISION NOT NULL, PRIMARY KEY (account, unit, seconds))",
        ],
        # The limits of the code that opened the ledger last; and raises for which no run was resumed yet.
        [
            "CREATE TABLE budget_defaults (name TEXT PRIMARY KEY, maximum DOUBLE PRECISION NOT NULL)",
            "CREATE TABLE budget_raised (mark TEXT PRIMARY KEY)",
        ],
    ],
)

#: A run that waits because of the reservations of others looks again after as long as the newest of them is old, within
#: these bounds: a step in progress ends soon, a dead worker's does not.
_MIN_PAUSE, _MAX_PAUSE = timedelta(seconds=5), timedelta(minutes=10)


_SPEND_SUMS = "COALESCE(SUM(tokens), 0), COALESCE(SUM(cost_usd), 0), COALESCE(SUM(runs), 0), COALESCE(SUM(seconds), 0)"


class Ledger(BatteryTables):
    """Adds up spending per account. Atomic across tasks and processes."""

    schema = SCHEMA

    async def reserve(self, run_id: str, reservations: Sequence[Reservation], now: datetime) -> Shortage | None:
        """Replace the run's reservations with `reservations`; if one exceeds a limit, change nothing and return it.

        Concurrent callers see each other's reservations. A run that was already booked is not counted as a new
        run, whatever its estimate. A reservation older than its window belongs to a lost run and is ignored.
        """

        async def work(cursor: Cursor) -> Shortage | None:
            adjusted: list[Reservation] = []
            for each in reservations:
                limits = each.limits | await _load_limits(cursor, each.account, each.window, each.limits)
                total = await _load_total(cursor, each.account, run_id)
                adjusted.append(exclude_counted_run(msgspec.structs.replace(each, limits=limits), total))
            for each in adjusted:
                since = now - each.window
                spent = await _sum_spent(cursor, each.account, since)
                taken = spent + await _sum_reserved(cursor, each.account, run_id, since)
                shortage = find_shortage(each, taken)
                if shortage is not None:
                    until = await _find_room(cursor, each, run_id, spent, now)
                    return msgspec.structs.replace(shortage, until=until)
            for each in adjusted:
                await _upsert(cursor, "budget_reserved", each.account, run_id, each.estimate, now)
            return None

        return await self.transaction(work, lock=[f"budget {each.account}" for each in reservations])

    async def commit(
        self, run_id: str, accounts: Collection[str], total: Spend, now: datetime, *, already_booked: Spend = NO_SPEND
    ) -> None:
        """Book the part of the run's `total` that is not booked yet, and release its reservations.

        Idempotent: the same total again books nothing.

        Args:
            already_booked: booked earlier, even if the ledger has purged it.
        """

        async def work(cursor: Cursor) -> None:
            for account in accounts:
                before = (await _load_total(cursor, account, run_id)).elementwise_max(already_booked)
                await cursor.execute(
                    "INSERT INTO budget_spent VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (account, bucket) DO UPDATE SET "
                    "tokens = budget_spent.tokens + excluded.tokens, "
                    "cost_usd = budget_spent.cost_usd + excluded.cost_usd, "
                    "runs = budget_spent.runs + excluded.runs, seconds = budget_spent.seconds + excluded.seconds",
                    (account, bucket_number(now), *total.since(before).as_tuple()),
                )
                await _upsert(cursor, "budget_total", account, run_id, total.elementwise_max(before), now)
                await cursor.execute("DELETE FROM budget_reserved WHERE account = ? AND run_id = ?", (account, run_id))

        await self.transaction(work, lock=[f"budget {account}" for account in accounts])

    async def spent(self, account: str, since: datetime) -> Spend:
        """Return the spending since then, precise to `BUCKET_LENGTH`."""
        return await self.read(partial(_sum_spent, account=account, since=since))

    async def accounts(self, since: datetime) -> Mapping[str, Spend]:
        """Return the spending since then of every account that has any, precise to `BUCKET_LENGTH`."""

        async def work(cursor: Cursor) -> Mapping[str, Spend]:
            sql = f"SELECT account, {_SPEND_SUMS} FROM budget_spent WHERE bucket >= ? GROUP BY account"
            rows = await cursor.execute(sql, (bucket_number(since),))
            return {account: _parse_spend([spend]) for account, *spend in rows}

        return await self.read(work)

    async def set_limit(self, account: str, unit: str, window: timedelta, maximum: float | None) -> None:
        """Replace the maximum of one account; `None`: that of the code counts again."""
        key = (account, unit, window.total_seconds())

        async def work(cursor: Cursor) -> None:
            await cursor.execute("DELETE FROM budget_limits WHERE account = ? AND unit = ? AND seconds = ?", key)
            if maximum is not None:
                await cursor.execute("INSERT INTO budget_limits VALUES (?, ?, ?, ?)", (*key, float(maximum)))
            await _mark_raise(cursor)

        await self.transaction(work, lock=[f"budget {account}"])

    async def compare_defaults(self, defaults: Mapping[str, float]) -> None:
        """Replace the limits of the code, by name. One that was lower, or is gone, is marked as a raise."""

        async def work(cursor: Cursor) -> None:
            rows = await cursor.execute("SELECT name, maximum FROM budget_defaults")
            before = {str(name): float(str(maximum)) for name, maximum in rows}
            if before == defaults:
                return
            if any(name not in defaults or defaults[name] > maximum for name, maximum in before.items()):
                await _mark_raise(cursor)
            await cursor.execute("DELETE FROM budget_defaults")
            for name, maximum in defaults.items():
                await cursor.execute("INSERT INTO budget_defaults VALUES (?, ?)", (name, maximum))

        await self.transaction(work, lock=["budget defaults"])

    async def list_raises(self) -> Sequence[str]:
        """Return the marks of raises for which no run was resumed yet."""
        return [str(mark) for (mark,) in await self.select("SELECT mark FROM budget_raised")]

    async def forget_raises(self, marks: Sequence[str]) -> None:
        """Delete these marks: the runs were resumed."""

        async def work(cursor: Cursor) -> None:
            for mark in marks:
                await cursor.execute("DELETE FROM budget_raised WHERE mark = ?", (mark,))

        await self.transaction(work)

    async def limits(self, window: timedelta) -> Mapping[str, dict[str, float]]:
        """Return the limits of this window that a person has set, by account and unit."""

        async def work(cursor: Cursor) -> Mapping[str, dict[str, float]]:
            sql = "SELECT account, unit, maximum FROM budget_limits WHERE seconds = ?"
            found: dict[str, dict[str, float]] = {}
            for account, unit, maximum in await cursor.execute(sql, (window.total_seconds(),)):
                found.setdefault(account, {})[unit] = maximum
            return found

        return await self.read(work)

    async def purge(self, before: datetime) -> None:
        """Delete bookings and reservations older than `before`."""

        async def work(cursor: Cursor) -> None:
            await cursor.execute("DELETE FROM budget_spent WHERE bucket < ?", (bucket_number(before),))
            await cursor.execute("DELETE FROM budget_total WHERE at < ?", (before.timestamp(),))
            await cursor.execute("DELETE FROM budget_reserved WHERE at < ?", (before.timestamp(),))

        await self.transaction(work)


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


async def _mark_raise(cursor: Cursor) -> None:
    await cursor.execute("INSERT INTO budget_raised VALUES (?)", (make_id(),))


async def _find_room(
    cursor: Cursor, reservation: Reservation, run_id: str, spent: Spend, now: datetime
) -> datetime | None:
    """Return when there may be room for the reservation. `None`: never."""
    account, since = reservation.account, now - reservation.window
    shortage = find_shortage(reservation, spent)
    if shortage is None:  # those of other runs take the room
        sql = "SELECT MAX(at) FROM budget_reserved WHERE account = ? AND run_id <> ? AND at >= ?"
        ((newest,),) = await cursor.execute(sql, (account, run_id, since.timestamp()))
        age = timedelta(0) if newest is None else timedelta(seconds=now.timestamp() - float(str(newest)))
        return now + min(max(age, _MIN_PAUSE), _MAX_PAUSE)
    if find_shortage(reservation, NO_SPEND) is not None:
        return None
    # A run has to fit as a whole; of the other units some room is enough.
    unit, is_enough = shortage.unit, ">=" if shortage.unit == "runs" else ">"
    excess = shortage.spent - shortage.limit + (reservation.estimate.runs if unit == "runs" else 0)
    sql = f"""
        SELECT MIN(CASE WHEN freed {is_enough} ? THEN bucket END), MAX(bucket) FROM (
            SELECT bucket, SUM({unit}) OVER (ORDER BY bucket) AS freed FROM budget_spent
            WHERE account = ? AND bucket >= ?
        ) AS sums
    """
    ((first, last),) = await cursor.execute(sql, (excess, account, bucket_number(since)))
    leaves = int(str(last if first is None else first)) + 1
    return datetime.fromtimestamp(leaves * BUCKET_LENGTH.total_seconds(), tz=UTC) + reservation.window


async def _sum_spent(cursor: Cursor, account: str, since: datetime) -> Spend:
    sql = f"SELECT {_SPEND_SUMS} FROM budget_spent WHERE account = ? AND bucket >= ?"
    return _parse_spend(await cursor.execute(sql, (account, bucket_number(since))))


async def _sum_reserved(cursor: Cursor, account: str, run_id: str, since: datetime) -> Spend:
    sql = f"SELECT {_SPEND_SUMS} FROM budget_reserved WHERE account = ? AND run_id <> ? AND at >= ?"
    return _parse_spend(await cursor.execute(sql, (account, run_id, since.timestamp())))


async def _load_total(cursor: Cursor, account: str, run_id: str) -> Spend:
    sql = "SELECT tokens, cost_usd, runs, seconds FROM budget_total WHERE account = ? AND run_id = ?"
    return _parse_spend(await cursor.execute(sql, (account, run_id)))


async def _load_limits(cursor: Cursor, account: str, window: timedelta, units: Collection[str]) -> dict[str, float]:
    """Return what a person has set instead of the limits of these units."""
    sql = "SELECT unit, maximum FROM budget_limits WHERE account = ? AND seconds = ?"
    rows = await cursor.execute(sql, (account, window.total_seconds()))
    return {unit: maximum for unit, maximum in rows if unit in units}


async def _upsert(cursor: Cursor, table: str, account: str, run_id: str, spend: Spend, now: datetime) -> None:
    sql = f"""
        INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (account, run_id) DO UPDATE SET tokens = excluded.tokens, cost_usd = excluded.cost_usd,
            runs = excluded.runs, seconds = excluded.seconds, at = excluded.at
    """
    await cursor.execute(sql, (account, run_id, *spend.as_tuple(), now.timestamp()))


def _parse_spend(rows: Sequence[Sequence[object]]) -> Spend:
    if not rows:
        return NO_SPEND
    # PostgreSQL returns the sum of integers as a decimal.
    tokens, cost_usd, runs, seconds = (float(str(value)) for value in rows[0])
    return Spend(tokens=int(tokens), cost_usd=cost_usd, runs=int(runs), seconds=seconds)
