"""DBOS: a step for each effect, `recv` for the approval, child workflows for the batch, on SQLite."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from bench.scorecard.ledger import BATCH, EFFECTS, Ledger
from bench.scorecard.programs.command import RUN_ID, Place, main, sleep_for_turn, wait_for_end
from dbos import DBOS, DBOSClient, SetWorkflowID

LEDGER = Ledger(Path(sys.argv[2]))


@DBOS.step()
async def take(effect: str) -> str:
    if effect in BATCH:
        await sleep_for_turn(effect)
    return LEDGER.perform(effect)


@DBOS.workflow()
async def fetch(effect: str) -> str:
    return await take(effect)


@DBOS.workflow()
async def order() -> str:
    for effect in EFFECTS[:5]:
        await take(effect)
    await DBOS.recv_async("approval", timeout_seconds=600)
    await take("pay")
    await take("model-3")
    handles = [await DBOS.start_workflow_async(fetch, effect) for effect in BATCH]
    for handle in handles:
        await handle.get_result()
    return await take(EFFECTS[-1])


def database_url(place: Place) -> str:
    return f"sqlite:///{place.folder / 'dbos.sqlite'}"


def launch(place: Place) -> None:
    config: Any = {"name": "scorecard", "system_database_url": database_url(place), "log_level": "ERROR"}
    DBOS(config=config)
    DBOS.launch()


async def submit(place: Place) -> str:
    launch(place)
    with SetWorkflowID(RUN_ID):
        handle = await DBOS.start_workflow_async(order)
    result = str(await handle.get_result())
    print(result, flush=True)
    os._exit(0)  # some of its threads outlive the event loop


async def work(place: Place) -> None:
    launch(place)
    await wait_for_end(place.ledger)
    os._exit(0)


async def approve(place: Place) -> None:
    while "model-1" not in place.ledger.read():
        await asyncio.sleep(0.05)
    client = DBOSClient(system_database_url=database_url(place))
    for _ in range(2):
        await client.send_async(RUN_ID, True, "approval")


if __name__ == "__main__":
    main(submit=submit, work=work, approve=approve)
