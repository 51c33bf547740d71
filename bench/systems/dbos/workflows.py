"""Workflows: many short ones, and one that sleeps."""

from bench.systems.dbos.system import launched
from bench.systems.protocol import Job, Result, text
from bench.systems.workflow_load import SLEEP_SECONDS, SleepTimes, measure_workflows
from dbos import DBOS

times = SleepTimes()


@DBOS.step()
async def take(number: int, size: int) -> str:
    return text(number, size)


@DBOS.workflow()
async def flow(steps: int, size: int) -> int:
    for number in range(steps):
        await take(number, size)
    return steps


@DBOS.workflow()
async def sleeper(sleeps: int) -> None:
    for number in range(sleeps):
        times.reach(number)
        await DBOS.sleep_async(SLEEP_SECONDS)
    times.reach(sleeps)


async def many_workflows(job: Job) -> Result:
    async def execute(number: int) -> None:
        await flow(job["steps"], job["bytes"])

    with launched(job):
        return await measure_workflows(job, execute)


async def many_sleeps(job: Job) -> Result:
    with launched(job):
        await sleeper(job["sleeps"])
    return times.describe()
