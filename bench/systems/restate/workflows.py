"""Workflows: many short handlers, and one that sleeps."""

from datetime import timedelta

import restate
from bench.systems.protocol import Job, Result, processor_seconds, text
from bench.systems.restate.server import serving
from bench.systems.workflow_load import SLEEP_SECONDS, SleepTimes, measure_workflows

times = SleepTimes()
service = restate.Service("flow")
A_TEXT = restate.RunOptions(type_hint=str)


async def take(number: int, size: int) -> str:
    return text(number, size)


@service.handler()
async def run(ctx: restate.Context, sizes: dict[str, int]) -> int:
    for number in range(sizes["steps"]):
        await ctx.run_typed("take", take, A_TEXT, number, sizes["bytes"])
    return sizes["steps"]


@service.handler()
async def doze(ctx: restate.Context, sizes: dict[str, int]) -> None:
    for number in range(sizes["sleeps"]):
        times.reach(number)
        await ctx.sleep(timedelta(seconds=SLEEP_SECONDS))
    times.reach(sizes["sleeps"])


async def many_workflows(job: Job) -> Result:
    async with serving(job, service) as server:

        async def execute(number: int) -> None:
            await server.call("flow/run", {"steps": job["steps"], "bytes": job["bytes"]})

        return await measure_workflows(job, execute, lambda: processor_seconds() + processor_seconds(server.pid))


async def many_sleeps(job: Job) -> Result:
    async with serving(job, service) as server:
        await server.call("flow/doze", {"sleeps": job["sleeps"]})
    return times.describe()
