"""holdfast fork"""

import asyncio
from collections.abc import Mapping
from typing import Annotated

import typer

from holdfast.checkpoint.errors import RecordDecodeError
from holdfast.cli.errors import CommandError
from holdfast.cli.loading import load_agents
from holdfast.cli.options import AppOption, JsonOption, RunArgument, StoreOption, parse_results
from holdfast.cli.output import print_json
from holdfast.cli.stores import open_client
from holdfast.core.agent import AgentSource
from holdfast.core.info import check_run_id
from holdfast.runtime.fork import Fork


def fork(
    run: RunArgument,
    at: Annotated[int, typer.Option("--at", metavar="STEP", min=1, help="The step after which the new run starts.")],
    edited: Annotated[
        str | None,
        typer.Option(
            "--edit",
            metavar="TEXT",
            help="Replaces the prompt, with --at 1, or the messages that RUN got before STEP, which is run again.",
        ),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option(
            "--result",
            metavar="CALL=RESULT",
            help="Replaces the result of a call of STEP, as JSON or text. Repeatable. `show` lists the calls.",
        ),
    ] = None,
    run_id: Annotated[str, typer.Option("--run-id", metavar="ID", help="The new run's id.")] = "",
    app: AppOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Queue a new run that continues RUN from a finished step.

    With --edit or --result it continues from another past. Prints the new run's id. RUN itself is not changed.
    """
    new_id = check_run_id(run_id) if run_id else None
    wanted = Fork(at_step=at, new_id=new_id, edited=edited, results=parse_results(results))
    new_id = asyncio.run(_fork(store, load_agents(app), run, wanted))
    if as_json:
        print_json({"run_id": new_id, "status": "queued", "forked_from": run, "at": at})
    else:
        print(new_id)


async def _fork(store_url: str, agents: Mapping[str, AgentSource], run_id: str, fork: Fork) -> str:
    async with open_client(store_url, agents) as (client, _):
        try:
            return await client.fork(run_id, fork)
        except RecordDecodeError as exc:
            raise CommandError(f"{exc}. If its agent does not use the native loop, name it with --app") from exc
