"""The clock of a context, which a simulator sets for each simulated process."""

import asyncio
import contextvars
from datetime import UTC, datetime

from tests.scripted_model import ScriptedModel

from holdfast import Agent, App
from holdfast.batteries.audit import Audit
from holdfast.clock import CLOCK, SYSTEM_CLOCK
from holdfast.stores import MemoryStore
from holdfast.testing import ManualClock

START = datetime(2031, 5, 1, tzinfo=UTC)


async def test_an_app_its_store_and_its_batteries_use_the_clock_of_their_context() -> None:
    async def run() -> tuple[datetime, set[datetime]]:
        CLOCK.set(ManualClock(START))
        audit = Audit()
        async with App([Agent(name="a", model=ScriptedModel("bye"))], MemoryStore(), worker=False, audit=audit) as app:
            await app.run("a", "go", run_id="r")
            await audit.flush()
            return (await app.get("r")).created_at, {row.at for row in await audit.query()}

    created_at, audited_at = await asyncio.create_task(run(), context=contextvars.copy_context())
    assert (created_at, audited_at) == (START, {START})
    assert CLOCK.get() is SYSTEM_CLOCK
