"""The tables of batteries: where they are made, for whom, and what they keep."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.postgres_server import fresh_database

from holdfast.batteries.budget import Amounts, Reservation, TablesLedger
from holdfast.batteries.database.postgres import PostgresTables

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def url() -> Iterator[str]:
    """An empty database in PostgreSQL."""
    with fresh_database() as url:
        yield url


def administer(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


async def test_a_stricter_isolation_of_the_database_lets_nobody_spend_twice(url: str) -> None:
    database = urlsplit(url).path.removeprefix("/")
    administer(url, f'alter database "{database}" set default_transaction_isolation = "repeatable read"')
    ledgers = [TablesLedger(PostgresTables(url)) for _ in range(5)]
    for ledger in ledgers:
        await ledger.open()
    one = Reservation(account="a", window=timedelta(days=1), limits={"runs": 1}, estimate=Amounts(runs=1))
    shortages = await asyncio.gather(*(ledger.reserve(f"r{at}", [one], NOW) for at, ledger in enumerate(ledgers)))
    assert shortages.count(None) == 1
    for ledger in ledgers:
        await ledger.close()
