"""The ledger in SQLite or PostgreSQL."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial

from holdfast.batteries.budget.ledger import (
    NO_SPEND,
    Reservation,
    Shortage,
    Spend,
    bucket_number,
    exclude_counted_run,
    find_shortage,
)
from holdfast.db.tables import Cursor, Schema, Tables

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
        ]
    ],
)

_SPEND_SUMS = "COALESCE(SUM(tokens), 0), COALESCE(SUM(cost_usd), 0), COALESCE(SUM(runs), 0), COALESCE(SUM(seconds), 0)"


class TablesLedger:
    """A durable `Ledger` that any number of processes may share."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def open(self) -> None:
        """Create or migrate the tables."""
        await self._tables.open(SCHEMA)

    async def close(self) -> None:
        """Close the database connection."""
        await self._tables.close()

    async def reserve(self, run_id: str, reservations: Sequence[Reservation], now: datetime) -> Shortage | None:
        """Replace the run's reservations, or return the limit that refuses one."""

        async def work(cursor: Cursor) -> Shortage | None:
            adjusted = [
                exclude_counted_run(each, await _load_total(cursor, each.account, run_id)) for each in reservations
            ]
            for each in adjusted:
                since = now - each.window
                taken = await _sum_spent(cursor, each.account, since)
                taken += await _sum_reserved(cursor, each.account, run_id, since)
                shortage = find_shortage(each, taken)
                if shortage is not None:
                    return shortage
            for each in adjusted:
                await _upsert(cursor, "budget_reserved", each.account, run_id, each.estimate, now)
            return None

        return await self._tables.transaction(work, lock=[f"budget {each.account}" for each in reservations])

    async def commit(
        self, run_id: str, accounts: Collection[str], total: Spend, now: datetime, *, already_booked: Spend = NO_SPEND
    ) -> None:
        """Book the part of `total` that is not booked yet, and release the reservations."""

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

        await self._tables.transaction(work, lock=[f"budget {account}" for account in accounts])

    async def spent(self, account: str, since: datetime) -> Spend:
        """Return the spending since then."""
        return await self._tables.read(partial(_sum_spent, account=account, since=since))

    async def accounts(self, since: datetime) -> Mapping[str, Spend]:
        """Return the spending since then of every account that has any."""

        async def work(cursor: Cursor) -> Mapping[str, Spend]:
            sql = f"SELECT account, {_SPEND_SUMS} FROM budget_spent WHERE bucket >= ? GROUP BY account"
            rows = await cursor.execute(sql, (bucket_number(since),))
            return {account: _parse_spend([spend]) for account, *spend in rows}

        return await self._tables.read(work)

    async def purge(self, before: datetime) -> None:
        """Delete bookings and reservations older than `before`."""

        async def work(cursor: Cursor) -> None:
            await cursor.execute("DELETE FROM budget_spent WHERE bucket < ?", (bucket_number(before),))
            await cursor.execute("DELETE FROM budget_total WHERE at < ?", (before.timestamp(),))
            await cursor.execute("DELETE FROM budget_reserved WHERE at < ?", (before.timestamp(),))

        await self._tables.transaction(work)


async def _sum_spent(cursor: Cursor, account: str, since: datetime) -> Spend:
    sql = f"SELECT {_SPEND_SUMS} FROM budget_spent WHERE account = ? AND bucket >= ?"
    return _parse_spend(await cursor.execute(sql, (account, bucket_number(since))))


async def _sum_reserved(cursor: Cursor, account: str, run_id: str, since: datetime) -> Spend:
    sql = f"SELECT {_SPEND_SUMS} FROM budget_reserved WHERE account = ? AND run_id <> ? AND at >= ?"
    return _parse_spend(await cursor.execute(sql, (account, run_id, since.timestamp())))


async def _load_total(cursor: Cursor, account: str, run_id: str) -> Spend:
    sql = "SELECT tokens, cost_usd, runs, seconds FROM budget_total WHERE account = ? AND run_id = ?"
    return _parse_spend(await cursor.execute(sql, (account, run_id)))


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
