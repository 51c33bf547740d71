"""Kills a parent and the runs that it starts at every write: `python -m tests.core.workflow.kill_started_runs ...`.

The arguments and the trials are those of `kill_trials`. One process executes parent and children, so a kill meets both.
"""

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.core.workflow import kill_trials
from tests.core.workflow.kill_trials import KillingStore, charge

from holdfast import App
from holdfast.checkpoint.record import NewRun
from holdfast.checkpoint.workers import Claim
from holdfast.errors import RunCancelled
from holdfast.stores.from_url import store_from_url
from holdfast.workflows import first, start, wait_for, workflow


class CreatingStore(KillingStore):
    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        kill_trials.POINTS.reach()
        claim = await super().create(run, worker_id=worker_id, connection=connection)
        kill_trials.POINTS.reach()
        return claim


@workflow
async def pay(number: int) -> int:
    return int((await charge(f"order {number}", number)).euro)


@workflow
async def linger(name: str) -> str:
    return str(await wait_for(name))


@workflow
async def shop(numbers: list[int]) -> dict[str, Any]:
    started = [await start(pay, inputs={"number": number}) for number in numbers]
    lingering = await start(linger, "never")
    paid = await asyncio.gather(*(each.result() for each in started))
    winner, _ = await first(paid=started[0].result(), late=lingering.result())
    return {"paid": paid, "winner": winner, "left": lingering.run_id}


async def run(url: str, report: Path, run_id: str) -> None:
    async with App([shop, pay, linger], CreatingStore(store_from_url(url))) as app:
        result = await app.run(shop, inputs={"numbers": [1, 2]}, run_id=run_id)
        children = (await app.list(parent=run_id)).runs
        with suppress(RunCancelled):
            await app.result(result.output["left"], through_waits=True)
            raise AssertionError("a child has outlived its parent")
        output = {**result.output, "left": "cancelled", "children": len(children)}
        report.write_text(json.dumps(output))


if __name__ == "__main__":
    kill_trials.run = run
    kill_trials.main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
