"""The ledger in the database of the checkpoints."""

from collections.abc import Collection, Sequence
from datetime import datetime

from holdfast.batteries.budget.amounts import NOTHING, Amounts
from holdfast.batteries.budget.ledger import Reservation, Shortage, booked_once, bucket, short_of
from holdfast.batteries.database.tables import Cursor, Schema, Tables

_AMOUNTS = (
    "tokens BIGINT NOT NULL, cost_usd DOUBLE PRECISION NOT NULL, "
    "runs BIGINT NOT NULL, seconds DOUBLE PRECISION NOT NULL"
)

SCHEMA = Schema(
    battery="budget",
    steps=[
        [
            f"CREATE TABLE budget_spent (account TEXT, bucket BIGINT, {_AMOUNTS}, PRIMARY KEY (account, bucket))",
            f"CREATE TABLE budget_total (account TEXT, run_id TEXT, {_AMOUNTS}, at DOUBLE PRECISION NOT NULL, "
            "PRIMARY KEY (account, run_id))",
            f"CREATE TABLE budget_reserved (account TEXT, run_id TEXT, {_AMOUNTS}, at DOUBLE PRECISION NOT NULL, "
            "PRIMARY KEY (account, run_id))",
        ]
    ],
)

_SUMS = "COALESCE(SUM(tokens), 0), COALESCE(SUM(cost_usd), 0), COALESCE(SUM(runs), 0), COALESCE(SUM(seconds), 0)"


class TablesLedger:
    """A `Ledger` that survives, and that any number of processes share."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def open(self) -> None:
        """Make the tables ready."""
        await self._tables.open(SCHEMA)

    async def close(self) -> None:
        """Let go of the database."""
        await self._tables.close()

    async def reserve(self, run_id: str, wanted: Sequence[Reservation], now: datetime) -> Shortage | None:
        """Set all of `wanted` aside, or nothing, and say why."""

        def work(cursor: Cursor) -> Shortage | None:
            fresh = [booked_once(each, _total(cursor, each.account, run_id)) for each in wanted]
            for each in fresh:
                since = now - each.window
                taken = _spent(cursor, each.account, since) + _set_aside(cursor, each.account, run_id, since)
                shortage = short_of(each, taken)
                if shortage is not None:
                    return shortage
            for each in fresh:
                _put(cursor, "budget_reserved", each.account, run_id, each.estimate, now)
            return None

        return await self._tables.write(work, alone=[f"budget {each.account}" for each in wanted])

    async def settle(
        self, run_id: str, accounts: Collection[str], total: Amounts, now: datetime, *, booked: Amounts = NOTHING
    ) -> None:
        """Book what was not booked before, and free what was set aside."""

        def work(cursor: Cursor) -> None:
            for account in accounts:
                before = _total(cursor, account, run_id).at_least(booked)
                cursor.execute(
                    "INSERT INTO budget_spent VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (account, bucket) DO UPDATE SET "
                    "tokens = budget_spent.tokens + excluded.tokens, "
                    "cost_usd = budget_spent.cost_usd + excluded.cost_usd, "
                    "runs = budget_spent.runs + excluded.runs, seconds = budget_spent.seconds + excluded.seconds",
                    (account, bucket(now), *total.since(before).in_order()),
                )
                _put(cursor, "budget_total", account, run_id, total.at_least(before), now)
                cursor.execute("DELETE FROM budget_reserved WHERE account = ? AND run_id = ?", (account, run_id))

        await self._tables.write(work, alone=[f"budget {account}" for account in accounts])

    async def spent(self, account: str, since: datetime) -> Amounts:
        """What was spent since then."""
        return await self._tables.read(lambda cursor: _spent(cursor, account, since))

    async def forget(self, before: datetime) -> None:
        """Drop what is older."""

        def work(cursor: Cursor) -> None:
            cursor.execute("DELETE FROM budget_spent WHERE bucket < ?", (bucket(before),))
            cursor.execute("DELETE FROM budget_total WHERE at < ?", (before.timestamp(),))
            cursor.execute("DELETE FROM budget_reserved WHERE at < ?", (before.timestamp(),))

        await self._tables.write(work)


def _spent(cursor: Cursor, account: str, since: datetime) -> Amounts:
    sql = f"SELECT {_SUMS} FROM budget_spent WHERE account = ? AND bucket >= ?"
    return _amounts(cursor.execute(sql, (account, bucket(since))))


def _set_aside(cursor: Cursor, account: str, run_id: str, since: datetime) -> Amounts:
    sql = f"SELECT {_SUMS} FROM budget_reserved WHERE account = ? AND run_id <> ? AND at >= ?"
    return _amounts(cursor.execute(sql, (account, run_id, since.timestamp())))


def _total(cursor: Cursor, account: str, run_id: str) -> Amounts:
    sql = "SELECT tokens, cost_usd, runs, seconds FROM budget_total WHERE account = ? AND run_id = ?"
    return _amounts(cursor.execute(sql, (account, run_id)))


def _put(cursor: Cursor, table: str, account: str, run_id: str, amounts: Amounts, now: datetime) -> None:
    sql = f"""
        INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (account, run_id) DO UPDATE SET tokens = excluded.tokens, cost_usd = excluded.cost_usd,
            runs = excluded.runs, seconds = excluded.seconds, at = excluded.at
    """
    cursor.execute(sql, (account, run_id, *amounts.in_order(), now.timestamp()))


def _amounts(rows: Sequence[tuple[object, ...]]) -> Amounts:
    if not rows:
        return NOTHING
    # PostgreSQL sums whole numbers as decimals.
    tokens, cost_usd, runs, seconds = (float(str(value)) for value in rows[0])
    return Amounts(tokens=int(tokens), cost_usd=cost_usd, runs=int(runs), seconds=seconds)
