"""holdfast cancel"""

import asyncio

from holdfast.checkpoint.errors import RunNotFound
from holdfast.cli.options import JsonOption, RunArgument, StoreOption
from holdfast.cli.output import print_json
from holdfast.cli.stores import get_record, open_client


def cancel(run: RunArgument, store: StoreOption = "", as_json: JsonOption = False) -> None:
    """Cancel a run and its child runs, or ask the worker that executes it to."""
    owner = asyncio.run(_cancel(store, run))
    if as_json:
        print_json({"run_id": run, "status": "cancelling" if owner else "cancelled", "owner": owner})
    elif owner:
        print(f"{owner} was asked to cancel run {run}")
    else:
        print(f"run {run} is cancelled")


async def _cancel(store_url: str, run_id: str) -> str | None:
    """Return the live worker that has to cancel the run; `None` if the run is cancelled."""
    async with open_client(store_url) as (client, store):
        await client.cancel(run_id)
        try:
            record = await get_record(store, run_id)
        except RunNotFound:
            return None
        return None if record.is_terminal else record.owner
