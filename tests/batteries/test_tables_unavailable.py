"""A database that is away for a moment or for longer: batteries wait for it, and no run ends by it."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import apsw
import psycopg
import pytest
from tests.postgres_proxy import CuttingProxy, Harm
from tests.postgres_server import LocalServer
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, Reply, Usage, tool
from holdfast.batteries.audit import AuditQuery, AuditRow, AuditTable
from holdfast.batteries.budget import Budget, BudgetUnavailable, Ledger, Limit, Spend
from holdfast.checkpoint.record import RunStatus
from holdfast.core import Ports
from holdfast.db.postgres_tables import PostgresTables
from holdfast.db.sqlite_tables import SqliteTables
from holdfast.db.tables import Tables, TablesUnavailable
from holdfast.stores.memory import MemoryStore

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
IMPATIENT = timedelta(milliseconds=500)
TOKENS = Usage(input_tokens=10)
#: The whole of the statement: a transaction begins as READ COMMITTED.
COMMIT = b"COMMIT\0"


def through(proxy: CuttingProxy, url: str) -> str:
    return proxy.url(urlsplit(url).path.removeprefix("/"))


def cut_all(url: str) -> None:
    """Every connection to the database, as a restart of the server does it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )


def let_write(url: str, may: bool) -> None:
    """Whether sessions that begin from now on may write."""
    database = urlsplit(url).path.removeprefix("/")
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
        connection.execute(f'alter database "{database}" set default_transaction_read_only = {not may}'.encode())


@tool(effect="pure")
async def look() -> str:
    return "seen"


def budget_in(tables: Tables) -> Budget:
    return Budget(Limit(tokens=1000, per="all"), tables=tables)


# -- for a moment -----------------------------------------------------------------------------------------------------


async def test_a_run_goes_on_when_the_connection_of_its_budget_is_cut(url: str) -> None:
    async def cut(messages: object) -> Reply:
        await asyncio.to_thread(cut_all, url)
        return tool_reply(call("c2", "look"), usage=TOKENS)

    budget = budget_in(PostgresTables(url))
    model = ScriptedModel(tool_reply(call("c1", "look"), usage=TOKENS), cut, Reply(text="done", usage=TOKENS))
    result = await SimulatedHost(ports=Ports(budget=budget)).executor.run(
        Agent(name="a", model=model, tools=[look]), "go"
    )
    assert result.output == "done"
    assert (await budget.spent("all")).tokens == 30
    await budget.close()


async def test_a_server_that_starts_again_is_waited_for(server: LocalServer, url: str) -> None:
    tables = PostgresTables(url)
    ledger = Ledger(tables)
    await ledger.open()
    server.stop()
    settling = asyncio.create_task(ledger.commit("r", ["a"], Spend(tokens=5), NOW))
    await asyncio.to_thread(server.start)
    await settling
    assert (await ledger.spent("a", NOW)).tokens == 5
    await ledger.close()


def a_row(run_id: str) -> AuditRow:
    return AuditRow(at=NOW, kind="start", run_id=run_id, agent_name="a", caller_id="alice")


@pytest.mark.parametrize("harm", [Harm.CUT_BEFORE_IT, Harm.LOSE_THE_ANSWER])
@pytest.mark.parametrize("message", [b"INSERT INTO audit", COMMIT])
async def test_what_is_written_over_a_connection_that_is_cut_is_written_once(
    proxy: CuttingProxy, url: str, harm: Harm, message: bytes
) -> None:
    audit = AuditTable(PostgresTables(through(proxy, url)))
    await audit.open()
    proxy.harm(harm, message)
    await audit.add([a_row("one"), a_row("two")])
    assert proxy.landed.is_set()
    assert [row.run_id for row in await audit.query(AuditQuery())] == ["one", "two"]
    await audit.close()


async def test_it_is_said_if_nobody_knows_whether_something_was_written(proxy: CuttingProxy, url: str) -> None:
    audit = AuditTable(PostgresTables(through(proxy, url), timeout=IMPATIENT))
    await audit.open()
    proxy.harm(Harm.LOSE_THE_ANSWER, COMMIT, and_refuse=True)
    with pytest.raises(TablesUnavailable, match="outcome of this write is unknown"):
        await audit.add([a_row("one")])
    await audit.close()


async def test_a_connection_that_reached_a_standby_is_not_kept(url: str) -> None:
    """A session that may only read, as those of a standby, stays one when others may write again."""
    ledger = Ledger(PostgresTables(url, timeout=IMPATIENT))
    await ledger.open()
    let_write(url, False)
    cut_all(url)
    with pytest.raises(TablesUnavailable, match="read-only"):
        await ledger.commit("r", ["a"], Spend(tokens=5), NOW)
    let_write(url, True)
    await ledger.commit("r", ["a"], Spend(tokens=5), NOW)
    assert (await ledger.spent("a", NOW)).tokens == 5
    await ledger.close()


# -- for longer -------------------------------------------------------------------------------------------------------


class Outage:
    """A database that a test takes away, and gives back."""

    tables: Tables

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


class ServerAway(Outage):
    def __init__(self, proxy: CuttingProxy, url: str) -> None:
        self.tables = PostgresTables(through(proxy, url), timeout=IMPATIENT)
        self._proxy, self._url = proxy, url

    def begin(self) -> None:
        self._proxy.refusing = True
        cut_all(self._url)

    def end(self) -> None:
        self._proxy.refusing = False


class FileLocked(Outage):
    def __init__(self, path: Path) -> None:
        self.tables = SqliteTables(path, timeout=timedelta(milliseconds=50))
        self._other = apsw.Connection(str(path))

    def begin(self) -> None:
        self._other.execute("BEGIN IMMEDIATE")

    def end(self) -> None:
        self._other.execute("ROLLBACK")


@pytest.fixture(params=["server away", "file locked"])
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> Outage:
    if request.param == "server away":
        return ServerAway(request.getfixturevalue("proxy"), request.getfixturevalue("url"))
    return FileLocked(tmp_path / "runs.db")


@pytest.mark.parametrize("moment", ["before it begins", "in a tool", "in the last model call"])
async def test_a_run_whose_budget_is_away_is_left_and_goes_on_when_it_is_back(outage: Outage, moment: str) -> None:
    def now(this: str) -> None:
        if this == moment:
            outage.begin()

    @tool(effect="once")
    async def work() -> str:
        now("in a tool")
        return "worked"

    async def answers(messages: object) -> Reply:
        now("in the last model call")
        return Reply(text="done", usage=TOKENS)

    store = MemoryStore()
    budget = budget_in(outage.tables)
    await budget.spent("all")
    model = ScriptedModel(tool_reply(call("c1", "work"), usage=TOKENS), answers)
    agent = Agent(name="a", model=model, tools=[work])
    one = SimulatedHost(store, ports=Ports(budget=budget))
    now("before it begins")
    with pytest.raises(BudgetUnavailable) as caught:
        await one.executor.run(agent, "go", run_id="r")
    assert isinstance(caught.value.__cause__, TablesUnavailable)
    [record] = await one.list_records()
    assert record.status is RunStatus.INTERRUPTED
    assert "budget" in record.reason

    moment = "never again"
    outage.end()
    assert (await SimulatedHost(store, ports=Ports(budget=budget)).resume(agent, "r")).output == "done"
    assert len(model.requests) == 2
    assert (await budget.spent("all")).tokens == 20
    await budget.close()


async def test_a_full_disk_is_no_reason_to_give_up(tmp_path: Path) -> None:
    tables = SqliteTables(tmp_path / "runs.db")
    audit = AuditTable(tables)
    await audit.open()
    await tables.read(lambda cursor: cursor.execute("PRAGMA max_page_count = 20"))
    with pytest.raises(TablesUnavailable, match="free space"):
        await audit.add([a_row("x" * 1_000_000)])
    await tables.read(lambda cursor: cursor.execute("PRAGMA max_page_count = 2000"))
    await audit.add([a_row("one")])
    assert [row.run_id for row in await audit.query(AuditQuery())] == ["one"]
    await audit.close()
