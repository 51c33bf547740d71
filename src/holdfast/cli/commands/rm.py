"""holdfast rm"""

import asyncio
from typing import Annotated

import typer

from holdfast.checkpoint.errors import RunDamaged
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.errors import CommandError
from holdfast.cli.options import JsonOption, StoreOption, complete_run
from holdfast.cli.output import print_json
from holdfast.cli.stores import get_record, open_store
from holdfast.runtime.reading import present_status


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Run ids.", autocompletion=complete_run, show_default=False),
    ],
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Also remove damaged runs and runs that are not terminal.")
    ] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove runs and their child runs from the store.

    A run that a live worker executes is never removed: cancel it first.
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
        raise CommandError(f"{exc}. Remove it with --force") from exc
    if not record.is_terminal and not force:
        raise CommandError(f"run {run_id} is {present_status(record)} and could be resumed: remove it with --force")
