"""holdfast fork"""

import asyncio
from typing import Annotated

import typer

from holdfast.cli.options import JsonOption, RunArgument, StoreOption
from holdfast.cli.output import print_json
from holdfast.cli.stores import open_client
from holdfast.core.info import check_run_id


def fork(
    run: RunArgument,
    at: Annotated[int, typer.Option("--at", metavar="STEP", min=1, help="The step after which the new run starts.")],
    run_id: Annotated[str, typer.Option("--run-id", metavar="ID", help="The new run's id.")] = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Queue a new run that continues RUN from a finished step.

    Prints the new run's id. RUN itself is not changed.
    """
    new_id = asyncio.run(_fork(store, run, at, check_run_id(run_id) if run_id else None))
    if as_json:
        print_json({"run_id": new_id, "status": "queued", "forked_from": run, "at": at})
    else:
        print(new_id)


async def _fork(store_url: str, run_id: str, at: int, new_id: str | None) -> str:
    async with open_client(store_url) as (client, _):
        return await client.fork(run_id, at, new_id=new_id)
