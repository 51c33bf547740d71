"""holdfast schedule: jobs that submit runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.errors import UsageError
from holdfast.cli.options import JsonOption, StoreOption
from holdfast.cli.output import Output, print_diagnostic, print_json
from holdfast.cli.stores import make_store, open_client, resolve_store_url
from holdfast.core.info import RunInfo

if TYPE_CHECKING:
    from holdfast.batteries.schedule import Schedule

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The job's name.", show_default=False)]

_MISSED_POLICIES = ("once", "all", "none")


def add(
    name: NameArgument,
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="The agent's name, as the workers know it.", show_default=False)
    ],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What is asked at each fire.", show_default=False)],
    cron: Annotated[str, typer.Option("--cron", metavar="EXPRESSION", help="When, such as '0 7 * * 1-5'.")],
    timezone: Annotated[str, typer.Option("--timezone", metavar="NAME", help="Such as Europe/Lisbon.")] = "UTC",
    missed: Annotated[
        str, typer.Option("--missed", metavar="POLICY", help="Fires missed while nothing ran: once, all or none.")
    ] = "once",
    caller: Annotated[str, typer.Option("--caller", metavar="ID", help="Whose runs they are.")] = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Keep a job that submits a run at every fire."""
    if missed not in _MISSED_POLICIES:
        raise UsageError(f"--missed is {missed!r}: use one of {', '.join(_MISSED_POLICIES)}")
    from holdfast.batteries.schedule import cron_next

    cron_next(cron, timezone, datetime.now(UTC))  # what it cannot read is refused before a store is made

    async def work() -> datetime:
        async with _open_schedule(store, create=True) as schedule:
            job = await schedule.add(
                name,
                agent,
                prompt,
                cron,
                timezone=timezone,
                missed=missed,  # type: ignore[arg-type]
                caller_id=caller,
            )
            return job.next_at

    first = asyncio.run(work())
    if as_json:
        print_json({"name": name, "next_at": first})
    else:
        print(f"job {name} fires first at {_format_time(first)}")


def ls(store: StoreOption = "", as_json: JsonOption = False) -> None:
    """List the jobs, and when each fires next."""

    async def work() -> None:
        async with _open_schedule(store) as schedule:
            jobs = await schedule.jobs()
        if as_json:
            print_json(jobs)
            return
        rows = [[job.name, job.agent, job.cron, job.timezone, job.missed, _format_time(job.next_at)] for job in jobs]
        Output().print_table(["JOB", "AGENT", "CRON", "TIMEZONE", "MISSED", "NEXT"], rows)

    asyncio.run(work())


def rm(name: NameArgument, store: StoreOption = "", as_json: JsonOption = False) -> None:
    """Forget a job. Runs that it started go on."""

    async def work() -> None:
        async with _open_schedule(store) as schedule:
            await schedule.remove(name)

    asyncio.run(work())
    if as_json:
        print_json({"removed": name})
    else:
        print(f"job {name} is removed")


def next_(
    name: NameArgument,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", help="How many fires.", min=1)] = 5,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the next fires of a job."""

    async def work() -> None:
        async with _open_schedule(store) as schedule:
            fires = await schedule.upcoming(name, count)
        if as_json:
            print_json(fires)
            return
        for fire in fires:
            print(_format_time(fire))

    asyncio.run(work())


def run_now(name: NameArgument, store: StoreOption = "", as_json: JsonOption = False) -> None:
    """Submit a run of a job now, beside its fires, and print its id."""

    async def work() -> str:
        async with _open_schedule(store) as schedule:
            return await schedule.run_now(name)

    run_id = asyncio.run(work())
    if as_json:
        print_json({"run_id": run_id})
    else:
        print(run_id)


def loop(
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", help="How often to look.", min=0.05)] = 5.0,
    store: StoreOption = "",
) -> None:
    """Submit what is due until stopped. Any number of processes may: each fire submits one run.

    Workers that know the agents take the runs.
    """

    async def work() -> None:
        async with _open_schedule(store, create=True) as schedule:
            print_diagnostic("firing jobs; Ctrl-C stops")
            await schedule.loop(timedelta(seconds=every))

    asyncio.run(work())


#: By the name under which each is called, in the order of the help.
SCHEDULE_COMMANDS: dict[str, Callable[..., None]] = {
    "add": add,
    "ls": ls,
    "rm": rm,
    "next": next_,
    "run-now": run_now,
    "loop": loop,
}


@asynccontextmanager
async def _open_schedule(store_url: str, *, create: bool = False) -> AsyncIterator["Schedule"]:
    """The schedule beside the runs of a store, which is made if it may be and can keep jobs."""
    from holdfast.batteries.schedule import Schedule, TablesJobs
    from holdfast.db.url import tables_from_url

    make_store(store_url, create=True)
    jobs = TablesJobs(tables_from_url(resolve_store_url(store_url)))
    async with open_client(store_url, create=create) as (operations, _):

        async def submit(agent: str, prompt: str, *, run_id: str, caller_id: str) -> str:
            return await operations.submit(
                RunInfo(run_id=run_id, agent_name=agent, caller_id=caller_id, inputs={"prompt": prompt})
            )

        schedule = Schedule(submit, jobs=jobs)
        try:
            yield schedule
        finally:
            await schedule.close()


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
