"""Batteries with their defaults: their rows are in the store of the App. A restart remembers, processes share."""

import asyncio
import logging
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import psycopg
import pytest
from tests.batteries.shared_process import ALLOWED
from tests.postgres_server import fresh_database
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Reply, Usage
from holdfast.batteries.audit import Audit, AuditQuery
from holdfast.batteries.budget import Budget, BudgetExhausted, Limit
from holdfast.batteries.persona import Persona, Personas
from holdfast.batteries.rate_limits import RateLimits
from holdfast.batteries.schedule import Job, Schedule
from holdfast.batteries.skill import Parameter, Skill, Skills
from holdfast.core.agents.agent import ModelTiers
from holdfast.core.errors import DefinitionError
from holdfast.db.sqlite_tables import MemoryTables, SqliteTables
from holdfast.db.tables import Tables, TablesError
from holdfast.db.urls import tables_from_url
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock

START = datetime(2030, 1, 1, tzinfo=UTC)


def spender(tokens: int) -> Agent:
    async def model(messages: object, tools: object) -> Reply:
        return Reply(text="done", usage=Usage(input_tokens=tokens))

    return Agent(name="spender", model=model)


async def test_a_restart_remembers_the_money_spent(database_url: str) -> None:
    for spent in (0, 60):
        budget = Budget(Limit(tokens=100, per="all"))
        async with App([spender(60)], database_url, budget=budget) as app:
            assert (await budget.spent("all")).tokens == spent
            await app.run("spender", "go")
    async with App([spender(60)], database_url, budget=Budget(Limit(tokens=100, per="all"))) as app:
        with pytest.raises(BudgetExhausted, match="120 of 100"):
            await app.run("spender", "go")


@pytest.mark.parametrize("battery", ["budget", "rate_limits"])
def test_two_processes_share_one_limit(database_url: str, battery: str) -> None:
    arguments = [sys.executable, "-m", "tests.batteries.shared_process", database_url, battery]
    processes = [
        subprocess.Popen([*arguments, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in ("first", "second")
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    calls = 0
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        calls += output.count("called")
    assert calls == ALLOWED


async def test_a_fire_is_one_run_in_two_apps_and_after_a_restart(database_url: str) -> None:
    clock = ManualClock(START)

    def make_app() -> App:
        return App([spender(1)], database_url, schedule=Schedule(clock=clock))

    async with make_app() as first, make_app() as second:
        job = await first.schedule.add("hourly", agent="spender", prompt="go", cron="0 * * * *")
        await advance_until(second, clock, job.next_at)
        assert (await second.result(job.run_id(job.next_at))).output == "done"
    async with make_app() as third:
        again = START + timedelta(hours=2)
        await advance_until(third, clock, again)
        await third.result(job.run_id(again))
        runs = (await third.list()).runs
    assert sorted(run.run_id for run in runs) == [job.run_id(job.next_at), job.run_id(again)]


async def advance_until(app: App, clock: ManualClock, fire: datetime) -> None:
    """Advance the clock to `fire`, and on until the job is marked."""
    await clock.advance(fire - clock.now())
    async with asyncio.timeout(30):
        while (await get_job(app)).next_at <= fire:
            await clock.advance(timedelta(seconds=5))


async def get_job(app: App) -> Job:
    [job] = await app.schedule.jobs()
    return job


async def test_a_job_of_an_unknown_agent_is_left_to_other_processes(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(START)
    async with App([spender(1)], "memory:", worker=False, schedule=Schedule(clock=clock)) as app:
        await app.schedule.add("elsewhere", agent="unknown", prompt="go", cron="0 * * * *")
        await clock.advance(timedelta(hours=2))
        assert (await app.schedule.tick()).failed == []
    assert caplog.records == []


def test_a_schedule_needs_a_store() -> None:
    with pytest.raises(DefinitionError, match=r"^schedule .* give it one"):
        App([spender(1)], None, schedule=Schedule())
    with pytest.raises(DefinitionError, match="no schedule"):
        App([spender(1)], "memory:").schedule  # noqa: B018


# -- where the rows are -------------------------------------------------------------------------------------------


def use_all_batteries(url: str) -> App:
    tiers = ModelTiers({"fast": ScriptedModel("done")}, default="fast")
    return App(
        [spender(1), Personas(tiers)],
        url,
        worker=False,
        budget=Budget(Limit(tokens=100)),
        rate_limits=RateLimits(requests_per_minute=10),
        audit=Audit(),
        schedule=Schedule(),
        tools=[Skills(tiers)],
    )


async def test_all_batteries_of_an_app_share_one_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())  # a thread of an earlier test may be about to end
    async with use_all_batteries(f"sqlite:{tmp_path}/runs.db") as app:
        await app.run("spender", "go")
        threads = [thread for thread in {*threading.enumerate()} - before if thread.name == "holdfast-tables"]
        assert len(threads) == 1
    threads[0].join(60)
    assert not threads[0].is_alive()


async def test_all_batteries_of_an_app_share_one_connection() -> None:
    with fresh_database() as url:
        async with use_all_batteries(url) as app:
            await app.run("spender", "go")
            async with asyncio.timeout(60):
                # A schedule's pass may be in the middle of a transaction.
                while not (found := await asyncio.to_thread(count_connections, url)):
                    pass
            assert found == 1


def count_connections(url: str) -> int:
    """Count the idle connections of batteries. Only they send COMMIT: the store does not."""
    sql = "select count(*) from pg_stat_activity where datname = current_database() and query = 'COMMIT'"
    with psycopg.connect(url) as connection:
        row = connection.execute(sql).fetchone()
    assert row is not None
    return int(row[0])


async def test_a_battery_may_keep_its_rows_elsewhere(tmp_path: Path) -> None:
    money = f"sqlite:{tmp_path}/money.db"
    budget = Budget(Limit(tokens=100, per="all"), tables=tables_from_url(money))
    async with App([spender(7)], f"sqlite:{tmp_path}/runs.db", budget=budget) as app:
        await app.run("spender", "go")
    other = Budget(Limit(tokens=100, per="all"), tables=tables_from_url(money))
    assert (await other.spent("all")).tokens == 7
    await other.close()


async def test_without_a_store_rows_are_in_memory_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.app")
    budget = Budget(Limit(tokens=10, per="all"))
    async with App([spender(20)], None, budget=budget) as app:
        await app.run("spender", "go")
        with pytest.raises(BudgetExhausted):
            await app.run("spender", "go")
    [said] = [each for each in caplog.records if each.name == "holdfast.app"]
    assert (said.levelname, said.message.partition(":")[0]) == ("INFO", "Budget keeps its rows in memory")


class HostTable(MemoryStore):
    """A host's own table holds checkpoints, and no tables of batteries."""

    durable = True


async def test_a_durable_store_without_tables_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    async with App([spender(1)], HostTable(), budget=Budget(Limit(tokens=10)), audit=Audit()):
        pass
    warned = [each.message.split()[0] for each in caplog.records if each.levelname == "WARNING"]
    assert warned == ["Budget", "Audit"]


async def test_a_battery_outside_an_app_says_that_it_is_not_open() -> None:
    with pytest.raises(TablesError, match="the budget tables are not open: give the battery to an App"):
        await Budget(Limit(tokens=10)).spent("all")
    wrong: Tables = "sqlite:money.db"  # type: ignore[assignment]
    with pytest.raises(TablesError, match="tables is a str: give `tables_from_url"):
        Budget(Limit(tokens=10), tables=wrong)


# -- databases that cannot be used --------------------------------------------------------------------------------


class NewerTables(MemoryTables):
    async def open(self, schema: object) -> None:
        raise TablesError("a newer holdfast made the tables")


async def test_an_app_does_not_open_with_tables_that_it_cannot_use(tmp_path: Path) -> None:
    audit, budget = Audit(), Budget(Limit(tokens=10), tables=NewerTables())
    app = App([spender(1)], f"sqlite:{tmp_path}/runs.db", audit=audit, budget=budget)
    with pytest.raises(TablesError, match="newer holdfast"):
        async with app:
            pass
    with pytest.raises(TablesError, match="not open"):
        await audit.query()


async def test_an_app_opens_while_the_database_of_a_battery_is_locked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = Audit(tables=SqliteTables(tmp_path / "audit.db", timeout=timedelta(milliseconds=1)))
    holder = apsw.Connection(str(tmp_path / "audit.db"))
    holder.execute("BEGIN EXCLUSIVE")
    async with App([spender(1)], "memory:", audit=audit) as app:
        assert "the tables of Audit cannot be opened" in caplog.text
        await app.run("spender", "go", run_id="r")
        holder.close()
        assert [row.kind for row in await audit.query(AuditQuery(run_id="r"))][-1] == "end"


# -- stored agents ------------------------------------------------------------------------------------------------


async def test_an_app_runs_the_personas_that_another_process_saved(database_url: str) -> None:
    clock, tiers = ManualClock(START), ModelTiers({"fast": ScriptedModel("done", "done")}, default="fast")
    here, elsewhere = Personas(tiers, clock=clock), Personas(tiers)
    async with App([elsewhere], database_url):
        await elsewhere.save(Persona(owner="al", name="first"))
        async with App([spender(1), here], database_url, worker=False) as app:
            assert sorted(app.agents) == ["al/first", "spender"]
            assert (await app.run("al/first", "go")).output == "done"
            await elsewhere.save(Persona(owner="al", name="second"))
            await here.save(Persona(owner="al", name="third"))
            assert "al/third" in app.agents
            assert "al/second" not in app.agents
            async with asyncio.timeout(30):
                while "al/second" not in app.agents:
                    await clock.advance(timedelta(seconds=30))
            assert (await app.run("al/second", "go")).output == "done"


async def test_skills_of_an_app_are_tools_of_its_runs() -> None:
    skills = Skills(ModelTiers({"fast": ScriptedModel("short")}, default="fast"))
    model = ScriptedModel(tool_reply(call("c1", "al_sum_up", text="long")), "done")
    async with App([Agent(name="a", model=model)], "memory:", tools=[skills]) as app:
        await skills.save(Skill(owner="al", name="sum up", parameters=[Parameter(name="text")]))
        result = await app.run("a", "go")
    assert result.messages[-2].content == "short"
