"""Workflows: many short ones, and one that sleeps.

Variants: a step is `idempotent`, as the steps of the peers are; with `-once` it has the default effect, so its start is
durable too. With `-left` each sleep ends the attempt, as one of more than 5 seconds does, so the function is called
again after it; with `-restart` it returns `Restart` instead of looping.
"""

from datetime import timedelta

from bench.systems.holdfast.agent import store_url
from bench.systems.protocol import Job, Result, text
from bench.systems.workflow_load import SLEEP_SECONDS, SleepTimes, measure_workflows

from holdfast import App, Bounds, RunWaiting, tool
from holdfast.core.workflow import workflow_run
from holdfast.workflows import Restart, sleep, workflow


async def many_workflows(job: Job) -> Result:
    size = job["bytes"]

    @tool(effect="once" if job["variant"].endswith("-once") else "idempotent")
    async def take(number: int) -> str:
        return text(number, size)

    @workflow(bounds=Bounds(max_steps=100_000))
    async def flow(steps: int) -> int:
        for number in range(steps):
            await take(number)
        return steps

    async with App([flow], store_url(job)) as app:

        async def execute(number: int) -> None:
            await app.run(flow, inputs={"steps": job["steps"]}, run_id=f"run-{number}")

        return await measure_workflows(job, execute)


async def many_sleeps(job: Job) -> Result:
    times, count = SleepTimes(), job["sleeps"]
    store, *how = job["variant"].split("-")
    if "left" in how:
        workflow_run.MAX_IN_PROCESS_WAIT = timedelta(0)

    @workflow(bounds=Bounds(max_steps=100_000))
    async def loop() -> str:
        for number in range(count):
            times.reach(number)
            await sleep.keyed(str(number))(timedelta(seconds=SLEEP_SECONDS))
        times.reach(count)
        return "done"

    @workflow(bounds=Bounds(max_steps=100_000))
    async def restart(number: int) -> str | Restart:
        times.reach(number)
        if number == count:
            return "done"
        await sleep(timedelta(seconds=SLEEP_SECONDS))
        return Restart(number + 1)

    chosen, inputs = (restart, {"number": 0}) if "restart" in how else (loop, {})
    async with App([chosen], store_url({**job, "variant": store})) as app:
        try:
            await app.run(chosen, inputs=inputs, run_id="sleeper")
        except RunWaiting:
            await app.result("sleeper")
    return times.describe()
