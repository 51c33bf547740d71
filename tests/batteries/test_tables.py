"""The tables of batteries: where they are made, for whom, and what they keep."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.postgres_server import fresh_database
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App, WorkerSettings
from holdfast.batteries.audit import Audit, AuditQuery
from holdfast.batteries.budget import Budget, Ledger, Limit, Reservation, Spend
from holdfast.batteries.budget.ledger import SCHEMA
from holdfast.batteries.persona import Personas
from holdfast.batteries.rate_limits import RateLimits
from holdfast.batteries.schedule import Schedule
from holdfast.core.agents.agent import ModelTiers
from holdfast.db.postgres_tables import PostgresTables
from holdfast.db.sqlite_tables import MemoryTables
from holdfast.db.tables import Tables, TablesError, UsesTables
from holdfast.db.urls import tables_from_url
from holdfast.stores.postgres import PostgresStore

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


class CountedTables(MemoryTables):
    """Tables that count how often they are closed."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    "make",
    [
        lambda tables: Audit(tables=tables),
        lambda tables: Budget(Limit(tokens=1), tables=tables),
        lambda tables: RateLimits(tables=tables),
        lambda tables: Schedule(tables=tables),
        lambda tables: Personas(ModelTiers({"fast": ScriptedModel("done")}), tables=tables),
    ],
    ids=["audit", "budget", "rate limits", "schedule", "personas"],
)
async def test_a_battery_closes_the_tables_that_it_was_given(make: Callable[[Tables], UsesTables]) -> None:
    tables = CountedTables()
    battery = make(tables)
    await battery.open(MemoryTables())
    assert tables.closed == 0
    await battery.close()
    assert tables.closed == 1


@pytest.fixture
def url() -> Iterator[str]:
    """An empty database in PostgreSQL."""
    with fresh_database() as url:
        yield url


def administer(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.mark.parametrize("attempt", range(3))
async def test_batteries_and_the_checkpoints_may_come_to_a_new_database_at_once(url: str, attempt: int) -> None:
    store, batteries = PostgresStore(url), [PostgresTables(url) for _ in range(3)]
    await asyncio.gather(store.open(), *(tables.open(SCHEMA) for tables in batteries))
    await store.close()
    for tables in batteries:
        await tables.close()


@pytest.mark.parametrize("name", ["user", "order", "public"])
async def test_any_name_of_a_schema_will_do(url: str, name: str) -> None:
    ledger = Ledger(PostgresTables(url, schema=name))
    await ledger.open()
    await ledger.commit("r", ["a"], Spend(tokens=5), NOW)
    await ledger.close()
    with psycopg.connect(url) as connection:
        assert connection.execute(f'select tokens from "{name}".budget_spent'.encode()).fetchall() == [(5,)]


async def test_whoever_finds_the_tables_made_needs_no_right_to_make_them(url: str) -> None:
    ledger = Ledger(PostgresTables(url))
    await ledger.open()
    await ledger.close()
    role = urlsplit(url).path.removeprefix("/") + "_user"
    administer(
        url,
        f"create role {role}",
        f"grant usage on schema holdfast to {role}",
        f"grant all on all tables in schema holdfast to {role}",
    )
    try:
        restricted = Ledger(PostgresTables(make_conninfo(url, options=f"-c role={role}")))
        await restricted.open()
        await restricted.commit("r", ["a"], Spend(tokens=5), NOW)
        assert (await restricted.spent("a", NOW)).tokens == 5
        await restricted.close()
    finally:
        administer(url, f"drop owned by {role}", f"drop role {role}")


async def test_a_stricter_isolation_of_the_database_lets_nobody_spend_twice(url: str) -> None:
    database = urlsplit(url).path.removeprefix("/")
    administer(url, f'alter database "{database}" set default_transaction_isolation = "repeatable read"')
    ledgers = [Ledger(PostgresTables(url)) for _ in range(5)]
    for ledger in ledgers:
        await ledger.open()
    one = Reservation(account="a", window=timedelta(days=1), limits={"runs": 1}, estimate=Spend(runs=1))
    shortages = await asyncio.gather(*(ledger.reserve(f"r{at}", [one], NOW) for at, ledger in enumerate(ledgers)))
    assert shortages.count(None) == 1
    for ledger in ledgers:
        await ledger.close()


@pytest.mark.parametrize("text", ["a\0b", "\ud83d"])
async def test_text_that_cannot_be_kept_is_refused_by_both_databases(database_url: str, text: str) -> None:
    ledger = Ledger(tables_from_url(database_url))
    await ledger.open()
    with pytest.raises(TablesError, match="without NUL or lone surrogates"):
        await ledger.commit("r", [text], Spend(tokens=1), NOW)
    with pytest.raises(TablesError, match="without NUL or lone surrogates"):
        await ledger.spent(text, NOW)
    await ledger.commit("r", ["a"], Spend(tokens=1), NOW)
    await ledger.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://app:hunter2@db/prod",
        "postgresql://app:%zzhunter2@db/prod",
        "host=db password=hunter2",
        "host=db password=hunter2:3",
    ],
)
def test_no_password_is_shown(url: str) -> None:
    with pytest.raises(TablesError) as caught:
        tables_from_url(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_app_with_batteries_in_a_database_may_be_opened_again(database_url: str) -> None:
    audit = Audit(tables=tables_from_url(database_url))
    budget = Budget(Limit(runs=10, per="all"), tables=tables_from_url(database_url))
    agent = Agent(name="a", model=ScriptedModel("first", "second"))
    app = App([agent], "memory:", audit=audit, budget=budget, worker=WorkerSettings(handle_signals=False))
    assert [app.run_sync(agent, "go").output for _ in range(2)] == ["first", "first"]

    async def ends() -> int:
        found = await audit.query(AuditQuery(kind="end"))
        await audit.close()
        return len(found)

    assert asyncio.run(ends()) == 2
