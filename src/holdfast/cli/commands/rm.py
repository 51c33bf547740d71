"""holdfast rm"""

import asyncio
from typing import Annotated

import typer

from holdfast.checkpoint.errors import RunDamaged
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.errors import CommandError
from holdfast.cli.listing import display_status
from holdfast.cli.options import JsonOption, StoreOption, complete_run
from holdfast.cli.output import print_json
from holdfast.cli.stores import get_record, open_store


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Ids of runs.", autocompletion=complete_run, show_default=False),
    ],
    force: Annotated[bool, typer.Option("--force", "-f", help="Also runs that could still go on.")] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove runs with all that is stored of them.

    The runs they started go with them. A run that a live worker drives is never removed: cancel it first.
    """
    asyncio.run(_remove(store, runs, force=force))
    if as_json:
        print_json({"removed": runs})
    else:
        for run in runs:
            print(f"run {run} is removed")


async def _remove(store_url: str, runs: list[str], *, force: bool) -> None:
    async with open_store(store_url) as store:
        for run_id in runs:
            await _check_removable(store, run_id, force=force)
        for run_id in runs:
            await store.remove(run_id)


async def _check_removable(store: CheckpointStore, run_id: str, *, force: bool) -> None:
    try:
        record = await get_record(store, run_id)
    except RunDamaged as exc:
        if force:
            return
        raise CommandError(f"{exc}. Remove it all the same with --force") from exc
    if not record.is_terminal and not force:
        raise CommandError(
            f"run {run_id} is {display_status(record)} and could still go on: remove it all the same with --force"
        )
