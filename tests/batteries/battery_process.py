"""Processes to be killed while a battery works: `python -m tests.batteries.battery_process PART URL ...`.

They print one line per step, and hang at the given one.
"""

import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from tests.core.null_listener import NullListener

from holdfast import Agent, App, Reply, ToolCall, Usage, tool
from holdfast.batteries.audit import Audit
from holdfast.batteries.budget import Budget, Limit
from holdfast.batteries.schedule import Schedule
from holdfast.core import Message, ToolSchema
from holdfast.core.run.info import RunInfo
from holdfast.core.run.run_events import Event, StepStarted
from holdfast.db.urls import tables_from_url
from holdfast.testing import ManualClock

#: Tokens per step, and steps per run.
TOKENS, STEPS = 10, 15

#: When the job is added, and a time at which it is due.
ADDED, DUE = datetime(2030, 1, 1, 11, 30, tzinfo=UTC), datetime(2030, 1, 1, 12, 0, 5, tzinfo=UTC)


@tool(effect="pure")
async def work(number: int) -> str:
    """Do one piece of work."""
    return f"worked {number}"


class PrintingListener(NullListener):
    """Prints each step as it starts, when the previous one is saved and booked. Hangs in step `hang_in`."""

    def __init__(self, hang_in: int) -> None:
        self._hang_in = hang_in

    async def on_event(self, info: RunInfo, event: Event) -> None:
        if isinstance(event, StepStarted):
            print(event.step, flush=True)
            if event.step == self._hang_in:
                await asyncio.Event().wait()


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    step = 1 + sum(isinstance(message, Reply) for message in messages)
    usage = Usage(input_tokens=TOKENS)
    if step == STEPS:
        return Reply(text="done", usage=usage)
    return Reply(tool_calls=[ToolCall(id=f"c{step}", name="work", arguments={"number": step})], usage=usage)


async def run_agent(url: str, hang_in: str) -> None:
    """Execute run `r` with a budget and an audit in the database of the checkpoints."""
    budget = Budget(Limit(tokens=10**6, per="all"))
    audit = Audit()
    agent = Agent(name="a", model=model, tools=[work])
    options = {"budget": budget, "audit": audit, "listener": PrintingListener(int(hang_in))}
    async with App([agent], url, worker=False, **options) as app:  # type: ignore[arg-type]
        print((await app.run("a", "go", run_id="r")).output, flush=True)


async def fire_schedule(url: str, hang: str) -> None:
    """Run one pass of the schedule. With "hang", hang after the submit and before the job is marked."""
    async with App([Agent(name="a", model=model, tools=[work])], url, worker=False) as app:

        async def submit(agent: str, prompt: str, *, run_id: str, caller_id: str) -> str:
            await app.submit(agent, prompt, run_id=run_id, caller_id=caller_id)
            print("submitted", run_id, flush=True)
            if hang == "hang":
                await asyncio.Event().wait()
            return run_id

        schedule = Schedule(tables=tables_from_url(url), clock=ManualClock(DUE))
        schedule.bind(submit)
        print("ran", len((await schedule.tick()).ran), flush=True)
        await schedule.close()


PARTS = {"run": run_agent, "fire": fire_schedule}

if __name__ == "__main__":
    asyncio.run(PARTS[sys.argv[1]](*sys.argv[2:]))
