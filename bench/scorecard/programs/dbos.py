"""DBOS: a step for each effect, `recv` for the approval, child workflows for the batch, on SQLite."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from bench.scorecard.ledger import BATCH, EFFECTS, Ledger
from bench.scorecard.programs.command import Place, main, sleep_for_turn, wait_for_end
from dbos import DBOS, DBOSClient, SetWorkflowID

FOLDER = Path(sys.argv[2])


@DBOS.step()
async def take(run_id: str, effect: str) -> str:
    if effect in BATCH:
        await sleep_for_turn(effect)
    return Ledger(FOLDER / run_id).perform(effect)


@DBOS.workflow()
async def fetch(run_id: str, effect: str) -> str:
    return await take(run_id, effect)


@DBOS.workflow()
async def order(run_id: str) -> str:
    for effect in EFFECTS[:5]:
        await take(run_id, effect)
    await DBOS.recv_async("approval", timeout_seconds=600)
    await take(run_id, "pay")
    await take(run_id, "model-3")
    handles = [await DBOS.start_workflow_async(fetch, run_id, effect) for effect in BATCH]
    for handle in handles:
        await handle.get_result()
    return await take(run_id, EFFECTS[-1])


def database_url(place: Place) -> str:
    return f"sqlite:///{place.store / 'dbos.sqlite'}"


def launch(place: Place) -> None:
    config: Any = {"name": "scorecard", "system_database_url": database_url(place), "log_level": "ERROR"}
    DBOS(config=config)
    DBOS.launch()


async def submit(place: Place) -> str:
    launch(place)
    with SetWorkflowID(place.run_id):
        handle = await DBOS.start_workflow_async(order, place.run_id)
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
        await client.send_async(place.run_id, True, "approval")


if __name__ == "__main__":
    main(submit=submit, work=work, approve=approve)
