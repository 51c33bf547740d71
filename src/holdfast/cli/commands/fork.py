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
    at: Annotated[int, typer.Option("--at", metavar="STEP", min=1, help="The step after which the new run begins.")],
    run_id: Annotated[str, typer.Option("--run-id", metavar="ID", help="The new run's id.")] = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Queue a new run that begins where RUN was after a step.

    Prints the new run's id. RUN itself is not touched.
    """
    new = asyncio.run(_fork(store, run, at, check_run_id(run_id) if run_id else None))
    if as_json:
        print_json({"run_id": new, "status": "queued", "forked_from": run, "at": at})
    else:
        print(new)


async def _fork(store_url: str, run_id: str, at: int, new_id: str | None) -> str:
    async with open_client(store_url) as (operations, _):
        return await operations.fork(run_id, at, new_id=new_id)
