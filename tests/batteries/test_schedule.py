"""Schedules over every kind of job store, and the runner with a host's own parts."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App
from holdfast.batteries.schedule import (
    Job,
    JobExists,
    JobNotFound,
    JobTable,
    Missed,
    Schedule,
    ScheduleError,
    ScheduleRunner,
    cron_next,
)
from holdfast.core.errors import DefinitionError
from holdfast.db.sqlite_tables import MemoryTables
from holdfast.db.tables import Tables
from holdfast.db.urls import tables_from_url
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock

START = datetime(2030, 1, 1, tzinfo=UTC)


def job(name: str = "j", next_at: datetime = START) -> Job:
    return Job(name=name, agent="a", prompt="p", cron="0 * * * *", next_at=next_at)


@pytest.fixture
async def jobs(battery_url: str) -> AsyncIterator[JobTable]:
    made = JobTable(tables_from_url(battery_url))
    await made.open()
    yield made
    await made.close()


class TestJobTable:
    async def test_an_added_job_is_stored_unchanged(self, jobs: JobTable) -> None:
        kept = Job(
            name="nightly é",
            agent="a",
            prompt="p\n",
            cron="0 3 * * *",
            timezone="Europe/Lisbon",
            missed="all",
            caller_id="alice",
            next_at=START,
        )
        await jobs.add(kept)
        await jobs.add(job("b"))
        assert await jobs.get("nightly é") == kept
        assert [each.name for each in await jobs.jobs()] == ["b", "nightly é"]

    async def test_a_name_is_taken_once(self, jobs: JobTable) -> None:
        await jobs.add(job())
        with pytest.raises(JobExists, match="exists already"):
            await jobs.add(job())

    async def test_a_removed_job_is_gone(self, jobs: JobTable) -> None:
        await jobs.add(job())
        await jobs.remove("j")
        for missing in (jobs.get("j"), jobs.remove("j")):
            with pytest.raises(JobNotFound, match="there is no job named 'j'"):
                await missing

    async def test_due_jobs_are_returned_oldest_first(self, jobs: JobTable) -> None:
        for name, hour in (("late", 2), ("soon", 5), ("first", 1)):
            await jobs.add(job(name, START + timedelta(hours=hour)))
        due = await jobs.due(START + timedelta(hours=2))
        assert [each.name for each in due] == ["first", "late"]

    async def test_only_one_reader_of_a_job_advances_it(self, jobs: JobTable) -> None:
        await jobs.add(job())
        seen = await jobs.get("j")
        assert await jobs.advance(seen, START + timedelta(hours=1))
        assert not await jobs.advance(seen, START + timedelta(hours=9))
        assert (await jobs.get("j")).next_at == START + timedelta(hours=1)


class Submissions:
    """Takes submitted runs as an App does: the same id again is the same run."""

    def __init__(self) -> None:
        self.runs: dict[str, tuple[str, str]] = {}
        self.calls = 0
        self.failing = False

    async def __call__(self, agent: str, prompt: str, *, run_id: str, caller_id: str) -> str:
        self.calls += 1
        if self.failing:
            raise ConnectionError("the store is down")
        self.runs[run_id] = (agent, prompt)
        return run_id


def make_schedule(submissions: Submissions, clock: ManualClock, tables: Tables | None = None) -> Schedule:
    schedule = Schedule(tables=tables or MemoryTables(), clock=clock)
    schedule.bind(submissions)
    return schedule


def fires(submissions: Submissions) -> list[str]:
    return sorted(run_id.rpartition(":")[2] for run_id in submissions.runs)


async def test_each_fire_submits_one_run_with_an_id_of_job_and_time() -> None:
    clock, submissions = ManualClock(START), Submissions()
    schedule = make_schedule(submissions, clock)
    await schedule.add("hourly", "a", "p", "0 * * * *")
    for _ in range(3):
        await clock.advance(timedelta(minutes=30))
        await schedule.tick()
        await schedule.tick()
    assert fires(submissions) == ["20300101T010000Z"]
    await clock.advance(timedelta(minutes=30))
    await schedule.tick()
    assert fires(submissions) == ["20300101T010000Z", "20300101T020000Z"]


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("once", ["20300101T010000Z"]),
        ("all", ["20300101T010000Z", "20300101T020000Z", "20300101T030000Z"]),
        ("none", []),
    ],
)
async def test_missed_fires_are_made_up_for_as_the_job_says(missed: Missed, expected: list[str]) -> None:
    clock, submissions = ManualClock(START), Submissions()
    schedule = make_schedule(submissions, clock)
    await schedule.add("hourly", "a", "p", "0 * * * *", missed=missed)
    await clock.advance(timedelta(hours=3, minutes=30))
    for _ in range(5):
        await schedule.tick()
    assert fires(submissions) == expected
    await clock.advance(timedelta(minutes=30))
    await schedule.tick()
    assert fires(submissions) == [*expected, "20300101T040000Z"]


@pytest.mark.parametrize(("late", "expected"), [(60, ["20300101T010000Z"]), (61, [])])
async def test_a_fire_that_is_late_by_at_most_a_minute_was_not_missed(late: int, expected: list[str]) -> None:
    clock, submissions = ManualClock(START), Submissions()
    schedule = make_schedule(submissions, clock)
    await schedule.add("hourly", "a", "p", "0 * * * *", missed="none")
    await clock.advance(timedelta(hours=1, seconds=late))
    await schedule.tick()
    assert fires(submissions) == expected


async def test_in_a_fleet_a_fire_happens_once(database_url: str) -> None:
    clock, submissions = ManualClock(START), Submissions()
    fleet = [make_schedule(submissions, clock, tables_from_url(database_url)) for _ in range(4)]
    await fleet[0].add("hourly", "a", "p", "0 * * * *")
    for _ in range(3):
        await clock.advance(timedelta(hours=1))
        await asyncio.gather(*(each.tick() for each in fleet))
    assert fires(submissions) == ["20300101T010000Z", "20300101T020000Z", "20300101T030000Z"]
    for each in fleet:
        await each.close()


async def test_a_failing_job_stays_due() -> None:
    clock, submissions = ManualClock(START), Submissions()
    schedule = make_schedule(submissions, clock)
    await schedule.add("hourly", "a", "p", "0 * * * *")
    await clock.advance(timedelta(hours=1))
    submissions.failing = True
    assert len((await schedule.tick()).failed) == 1
    submissions.failing = False
    assert len((await schedule.tick()).ran) == 1
    assert fires(submissions) == ["20300101T010000Z"]


async def test_run_now_submits_extra_runs() -> None:
    clock, submissions = ManualClock(START), Submissions()
    schedule = make_schedule(submissions, clock)
    await schedule.add("hourly", "a", "p", "0 * * * *")
    assert await schedule.run_now("hourly") != await schedule.run_now("hourly")
    assert len(submissions.runs) == 2
    assert await schedule.upcoming("hourly", 2) == [START + timedelta(hours=1), START + timedelta(hours=2)]


async def test_a_removed_job_fires_no_more_and_its_next_fires_were_known() -> None:
    clock, submissions = ManualClock(START), Submissions()
    schedule = make_schedule(submissions, clock)
    await schedule.add("j", "a", "p", "0 * * * *")
    for count in (0, 1, 3):
        expected = [START + timedelta(hours=hour) for hour in range(1, count + 1)]
        assert list(await schedule.upcoming("j", count)) == expected
    assert list(await schedule.upcoming("j")) == [START + timedelta(hours=1)]
    await schedule.remove("j")
    await clock.advance(timedelta(hours=2))
    await schedule.tick()
    assert (submissions.calls, list(await schedule.jobs())) == (0, [])


async def test_a_schedule_without_an_app_submits_nothing() -> None:
    schedule = Schedule(tables=MemoryTables())
    await schedule.add("hourly", "a", "p", "0 * * * *")
    with pytest.raises(ScheduleError, match="give it to an App"):
        await schedule.run_now("hourly")


async def test_an_app_runs_what_is_due() -> None:
    clock = ManualClock(START)
    agent, schedule = Agent(name="a", model=ScriptedModel("done")), Schedule(clock=clock)
    async with App([agent], "memory:", worker=False, schedule=schedule) as app:
        due = await schedule.add("weird name/é", "a", "p", "*/5 * * * *")
        await clock.advance(timedelta(minutes=5))
        await schedule.tick()
        await app.recover()
        assert (await app.result(due.run_id(due.next_at))).output == "done"


async def test_jobs_that_a_clock_far_ahead_has_moved_away_are_pulled_back(caplog: pytest.LogCaptureFixture) -> None:
    clock, ahead, submissions = ManualClock(START), ManualClock(START + timedelta(days=365)), Submissions()
    tables = MemoryTables()
    await make_schedule(submissions, clock, tables).add("hourly", "a", "p", "0 * * * *")
    await make_schedule(submissions, ahead, tables).tick()
    schedule = make_schedule(submissions, clock, tables)
    assert list(await schedule.upcoming("hourly")) == [START + timedelta(days=365, hours=1)]
    await schedule.tick()
    assert list(await schedule.upcoming("hourly")) == [START + timedelta(hours=1)]
    assert "job hourly was due next at 2031-01-01 01:00:00+00:00, set by a clock that was ahead" in caplog.text
    for _ in range(2):
        await clock.advance(timedelta(hours=1))
        await schedule.tick()
    assert fires(submissions) == ["20300101T010000Z", "20300101T020000Z"]


async def test_a_clock_that_jumps_ahead_and_back_while_the_loop_runs_silences_no_job() -> None:
    class JumpingClock(ManualClock):
        offset = timedelta(0)

        def now(self) -> datetime:
            return super().now() + self.offset

    clock, submissions = JumpingClock(START), Submissions()
    schedule = make_schedule(submissions, clock)
    await schedule.add("hourly", "a", "p", "0 * * * *")
    await schedule.tick()
    clock.offset = timedelta(days=365)
    await schedule.tick()
    clock.offset = timedelta(0)
    await schedule.tick()
    assert list(await schedule.upcoming("hourly")) == [START + timedelta(hours=1)]


async def test_clocks_that_differ_by_less_than_a_minute_correct_no_fire(caplog: pytest.LogCaptureFixture) -> None:
    clock, ahead, submissions = ManualClock(START + timedelta(minutes=59, seconds=1)), ManualClock(), Submissions()
    tables = MemoryTables()
    await ahead.advance(timedelta(minutes=60))
    await make_schedule(submissions, ManualClock(START), tables).add("hourly", "a", "p", "0 * * * *")
    await make_schedule(submissions, ahead, tables).tick()
    schedule = make_schedule(submissions, clock, tables)
    await schedule.tick()
    assert list(await schedule.upcoming("hourly")) == [START + timedelta(hours=2)]
    assert caplog.text == ""


async def test_a_fire_that_is_submitted_while_the_app_closes_is_marked(tmp_path: Path) -> None:
    clock, submitting, proceed = ManualClock(START), asyncio.Event(), asyncio.Event()

    async def hold(method: str) -> None:
        if method == "create":
            submitting.set()
            await proceed.wait()

    tables = tables_from_url(f"sqlite:///{tmp_path / 'jobs.db'}")
    app = App(
        [Agent(name="a", model=ScriptedModel("done"))],
        ProbeStore(MemoryStore(), before=hold),
        schedule=Schedule(tables=tables, clock=clock),
    )
    async with app:
        await app.schedule.add("hourly", "a", "p", "0 * * * *")
        await clock.advance(timedelta(hours=1))
        while not submitting.is_set():  # its loop reads the file in a thread
            await clock.advance(timedelta(seconds=5))
        closing = asyncio.create_task(app.shutdown())
        for _ in range(20):
            await asyncio.sleep(0)
        proceed.set()
        await closing
    jobs = JobTable(tables_from_url(f"sqlite:///{tmp_path / 'jobs.db'}"))
    await jobs.open()
    assert (await jobs.get("hourly")).next_at > START + timedelta(hours=1)
    await jobs.close()


# -- the runner -----------------------------------------------------------------------------------------------------


class Host:
    """A host whose jobs are names. Those in `failing` raise; "due" makes the list of jobs raise."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.ran: list[str] = []
        self.marked: list[str] = []
        self.failing: set[str] = set()
        self.error: BaseException = RuntimeError("failed")

    async def due(self, now: datetime) -> list[str]:
        if "due" in self.failing:
            raise self.error
        return self.names

    async def run(self, name: str) -> None:
        if name in self.failing:
            raise self.error
        self.ran.append(name)

    async def mark(self, name: str, upcoming: datetime) -> None:
        self.marked.append(name)

    def next(self, name: str, after: datetime) -> datetime:
        if name == "unreadable":
            raise ValueError("no schedule")
        return after + timedelta(hours=1)

    def runner(self, clock: ManualClock | None = None) -> ScheduleRunner[str]:
        return ScheduleRunner(due=self.due, run=self.run, mark=self.mark, next=self.next, clock=clock or ManualClock())


async def test_a_schedule_that_cannot_be_computed_skips_its_job_and_runs_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host("unreadable", "good")
    done = await host.runner().tick()
    assert (done.skipped, done.ran) == (["unreadable"], ["good"])
    assert host.ran == host.marked == ["good"]
    assert "unreadable" in caplog.text


ERRORS = pytest.mark.parametrize("error", [RuntimeError("failed"), asyncio.CancelledError()], ids=repr)


@ERRORS
async def test_a_failing_job_is_not_marked(error: BaseException) -> None:
    host = Host("bad", "good")
    host.failing.add("bad")
    host.error = error
    done = await host.runner().tick()
    assert (done.failed, host.marked) == (["bad"], ["good"])


@ERRORS
async def test_a_failing_list_ends_the_pass_and_not_the_loop(error: BaseException) -> None:
    clock, host = ManualClock(), Host("good")
    host.failing.add("due")
    host.error = error
    loop = asyncio.create_task(host.runner(clock).loop(timedelta(seconds=5)))
    await clock.advance(timedelta(seconds=6))
    assert host.ran == []
    host.failing.clear()
    await clock.advance(timedelta(seconds=6))
    assert host.ran == ["good"]
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


@ERRORS
async def test_a_failing_job_ends_no_loop(error: BaseException) -> None:
    clock, host = ManualClock(), Host("bad", "good")
    host.failing.add("bad")
    host.error = error
    loop = asyncio.create_task(host.runner(clock).loop(timedelta(seconds=5)))
    await clock.advance(timedelta(seconds=6))
    assert host.ran == ["good", "good"]
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    assert loop.cancelled()


async def test_a_cancelled_pass_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    host = Host("hangs")

    async def run(name: str) -> None:
        await asyncio.Event().wait()

    runner = ScheduleRunner(due=host.due, run=run, mark=host.mark, next=host.next, clock=ManualClock())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(runner.tick(), 0.01)
    assert host.marked == []
    assert "failed" not in caplog.text


async def test_a_pass_that_is_cancelled_while_it_lists_its_jobs_is_cancelled() -> None:
    listing = asyncio.Event()

    async def due(now: datetime) -> list[str]:
        listing.set()
        await asyncio.Event().wait()
        return []

    async def nothing(*given: object) -> None: ...

    runner = ScheduleRunner(due=due, run=nothing, mark=nothing, next=lambda job, now: now)
    task = asyncio.create_task(runner.tick())
    await listing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_slow_job_does_not_delay_another() -> None:
    host, proceed = Host("slow", "quick"), asyncio.Event()

    async def run(name: str) -> None:
        if name == "slow":
            await proceed.wait()
        host.ran.append(name)
        proceed.set()

    runner = ScheduleRunner(due=host.due, run=run, mark=host.mark, next=host.next, clock=ManualClock())
    await runner.tick()
    assert host.ran == ["quick", "slow"]


async def test_in_a_loop_a_hanging_job_does_not_delay_another_and_ends_with_the_loop() -> None:
    clock, host, ended = ManualClock(), Host("slow", "stuck", "quick"), asyncio.Event()

    async def run(name: str) -> None:
        host.ran.append(name)
        if name == "stuck":
            await asyncio.Event().wait()
        if name == "slow":
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(10):
                    await asyncio.sleep(0)
                ended.set()

    runner = ScheduleRunner(due=host.due, run=run, mark=host.mark, next=host.next, clock=clock)
    loop = asyncio.create_task(runner.loop(timedelta(seconds=5)))
    await clock.advance(timedelta(seconds=11))
    assert sorted(host.ran) == ["quick", "quick", "quick", "slow", "stuck"]
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    assert ended.is_set()
    assert "slow" not in host.marked


async def test_in_a_loop_a_job_that_finishes_while_due_jobs_are_listed_is_not_run_again() -> None:
    clock, ran, proceed, marked = ManualClock(), list[str](), asyncio.Event(), asyncio.Event()

    async def due(now: datetime) -> list[str]:
        found = [] if marked.is_set() else ["job"]
        if ran:
            proceed.set()
            await marked.wait()
            for _ in range(5):  # let the job finish
                await asyncio.sleep(0)
        return found

    async def run(name: str) -> None:
        ran.append(name)
        await proceed.wait()

    async def mark(name: str, upcoming: datetime) -> None:
        marked.set()

    runner = ScheduleRunner(due=due, run=run, mark=mark, next=Host().next, clock=clock)
    loop = asyncio.create_task(runner.loop(timedelta(seconds=5)))
    await clock.advance(timedelta(seconds=21))
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    assert ran == ["job"]


@pytest.mark.parametrize("missing", ["due", "run", "mark", "next"])
def test_a_missing_function_is_refused(missing: str) -> None:
    host = Host()
    parts: dict[str, Any] = {"due": host.due, "run": host.run, "mark": host.mark, "next": host.next}
    del parts[missing]
    with pytest.raises(ScheduleError, match=missing):
        ScheduleRunner(**parts)


# -- cron -----------------------------------------------------------------------------------------------------------


def test_summer_time_neither_skips_nor_doubles_a_daily_fire() -> None:
    # In Lisbon clocks go from 01:00 to 02:00 on 31 March 2030, and from 02:00 to 01:00 on 27 October 2030.
    for day, around in ((datetime(2030, 3, 29, tzinfo=UTC), "spring"), (datetime(2030, 10, 25, tzinfo=UTC), "autumn")):
        fire, dates = day, []
        for _ in range(5):
            fire = cron_next("30 1 * * *", "Europe/Lisbon", fire)
            dates.append(fire.date())
        assert len(set(dates)) == 5, around
        assert (dates[-1] - dates[0]).days == 4, around


@pytest.mark.parametrize("cron", ["30 1 * * *", "0 1 * * *", "*/30 * * * *", "30 * * * *", "15 0-3 * * *"])
def test_the_next_fire_is_later_also_in_a_repeated_hour(cron: str) -> None:
    # In Lisbon the hour from 01:00 to 02:00 is there twice on 27 October 2030, from 00:00 and from 01:00 UTC.
    after, end = datetime(2030, 10, 26, 22, tzinfo=UTC), datetime(2030, 10, 27, 6, tzinfo=UTC)
    sequence = [cron_next(cron, "Europe/Lisbon", after)]
    while sequence[-1] < end:
        sequence.append(cron_next(cron, "Europe/Lisbon", sequence[-1]))
    while after < end:
        assert cron_next(cron, "Europe/Lisbon", after) == next(fire for fire in sequence if fire > after), after
        after += timedelta(minutes=5)


@pytest.mark.parametrize(
    ("cron", "timezone"),
    [
        ("every day", "UTC"),
        ("0 0 30 2 *", "UTC"),
        ("* * * * *", "Atlantis/Capital"),
        ("* * * * *", "America"),
        ("* * * * *", "x" * 300),
    ],
)
def test_an_invalid_cron_expression_or_time_zone_is_refused(cron: str, timezone: str) -> None:
    with pytest.raises(ScheduleError):
        cron_next(cron, timezone, START)


@pytest.mark.parametrize("timezone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_at_the_end_of_the_calendar_there_is_no_next_fire(timezone: str) -> None:
    last = datetime(9999, 12, 31, 23, 30, tzinfo=UTC)
    with pytest.raises(ScheduleError, match=r"'0 \* \* \* \*' has no fire after 9999-12-31 23:30:00"):
        cron_next("0 * * * *", timezone, last)


@pytest.mark.parametrize("argument", ["name", "agent", "prompt", "cron", "timezone", "caller_id", "missed"])
async def test_a_job_with_an_argument_of_a_wrong_type_is_refused_and_not_kept(argument: str) -> None:
    schedule = Schedule(tables=MemoryTables())
    arguments: dict[str, Any] = {"name": "j", "agent": "a", "prompt": "p", "cron": "0 * * * *", argument: None}
    with pytest.raises(DefinitionError, match=f"{argument} is None"):
        await schedule.add(**arguments)
    assert await schedule.jobs() == []


async def test_a_job_with_an_unknown_policy_for_missed_fires_is_refused() -> None:
    schedule, policy = Schedule(tables=MemoryTables()), cast("Missed", "skip")
    with pytest.raises(DefinitionError, match="missed is 'skip': give one of once, all, none"):
        await schedule.add("j", "a", "p", "0 * * * *", missed=policy)


def test_without_the_package_for_cron_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ScheduleError, match=r"pip install 'holdfast\[schedule\]'"):
        cron_next("* * * * *", "UTC", START)


def test_the_run_of_a_fire_has_at_most_60_characters_of_the_name() -> None:
    assert job("x" * 61).run_id(START).startswith("schedule:" + "x" * 60 + ":")
    assert job("x" * 61).run_id(START) != job("x" * 62).run_id(START)


def test_the_run_of_a_fire_has_the_same_id_in_every_release() -> None:
    made = job("the daily report").run_id(datetime(2030, 1, 1, 9, tzinfo=UTC))
    assert made == "schedule:the-daily-report:4eecaa1b:20300101T090000Z", "two releases would both start the run"
