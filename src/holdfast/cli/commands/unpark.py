"""holdfast unpark"""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from holdfast.checkpoint.errors import RecordDecodeError
from holdfast.cli.errors import CommandError
from holdfast.cli.loading import load_agents
from holdfast.cli.options import AppOption, JsonOption, RunArgument, StoreOption, parse_resolutions
from holdfast.cli.output import print_json
from holdfast.cli.stores import open_client
from holdfast.core.agent import AgentSource


def unpark(
    run: RunArgument,
    resolve: Annotated[
        list[str] | None,
        typer.Option(
            "--resolve",
            metavar="CALL=RESULT",
            help="The result of a call in doubt, as JSON or text. Repeatable. `show` lists the calls.",
        ),
    ] = None,
    app: AppOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Release a parked run.

    Workers and recovery can then resume it. For calls in doubt without a --resolve, the model gets the result that the
    outcome is unknown.
    """
    asyncio.run(_unpark(store, load_agents(app), run, parse_resolutions(resolve)))
    if as_json:
        print_json({"run_id": run, "status": "interrupted"})
    else:
        print(f"run {run} is interrupted: a worker or holdfast resume continues it")


async def _unpark(store_url: str, agents: Mapping[str, AgentSource], run_id: str, resolutions: dict[str, Any]) -> None:
    async with open_client(store_url, agents) as (client, _):
        try:
            await client.unpark(run_id, resolutions)
        except RecordDecodeError as exc:
            raise CommandError(f"{exc}. If its agent does not use the native loop, name it with --app") from exc
