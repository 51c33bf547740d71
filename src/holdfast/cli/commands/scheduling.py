"""The command schedule: cron jobs that submit runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.opening import open_client
from holdfast.cli.options import JsonOption, StoreOption
from holdfast.cli.output import CommandError, Output, UsageError, print_diagnostic, print_json
from holdfast.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from holdfast.batteries.schedule import Schedule

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The job's name.", show_default=False)]

_MISSED_POLICIES = ("once", "all", "none")


def add(
    name: NameArgument,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.", show_default=False)],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt of each run.", show_default=False)],
    cron: Annotated[
        str, typer.Option("--cron", metavar="EXPRESSION", help="A cron expression, such as '0 7 * * 1-5'.")
    ],
    timezone: Annotated[
        str, typer.Option("--timezone", metavar="NAME", help="A time zone, such as Europe/Lisbon.")
    ] = "UTC",
    missed: Annotated[
        str, typer.Option("--missed", metavar="POLICY", help="Missed fires to submit later: once, all or none.")
    ] = "once",
    caller: Annotated[str, typer.Option("--caller", metavar="ID", help="The caller's id.")] = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Add a job that submits a run at every fire."""
    if missed not in _MISSED_POLICIES:
        raise UsageError(f"--missed is {missed!r}: use one of {', '.join(_MISSED_POLICIES)}")
    from holdfast.batteries.schedule import cron_next

    cron_next(cron, timezone, SYSTEM_CLOCK.now())  # reject an invalid expression before the store is created

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
    """Remove a job. Its runs are not affected."""

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
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", help="Number of fires.", min=1)] = 5,
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
    """Submit a run of a job now, in addition to its fires, and print its id."""

    async def work() -> str:
        async with _open_schedule(store) as schedule:
            return await schedule.run_now(name)

    run_id = asyncio.run(work())
    if as_json:
        print_json({"run_id": run_id})
    else:
        print(run_id)


def loop(
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", help="Poll interval.", min=0.05)] = 5.0,
    store: StoreOption = "",
) -> None:
    """Submit due runs until stopped.

    Any number of processes may do this: each fire submits one run. Workers with the agents execute the runs.
    """

    async def work() -> None:
        async with _open_schedule(store, create=True) as schedule:
            print_diagnostic("firing jobs; Ctrl-C stops")
            await schedule.loop(timedelta(seconds=every))

    asyncio.run(work())


#: By name, in the order of the help.
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
    """Open the schedule in the store."""
    from holdfast.batteries.schedule import Schedule

    async with open_client(store_url, create=create) as client:
        if not client.open_store.durable:
            raise CommandError("jobs in a store in memory end with this command: name a sqlite: or postgresql: store")
        schedule = Schedule()
        schedule.bind(client.submit)
        await schedule.open(client.open_store.tables())
        try:
            yield schedule
        finally:
            await schedule.close()


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
