"""holdfast deny"""

import asyncio
from typing import Annotated

import typer

from holdfast.cli.options import ByOption, CallArgument, JsonOption, RunArgument, StoreOption
from holdfast.cli.output import print_json
from holdfast.cli.stores import open_mailer
from holdfast.core.waiting import Deny


def deny(
    run: RunArgument,
    call: CallArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason. The model reads it.")] = "",
    by: ByOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Deny a call: the tool is not called, and the model reads the reason."""
    asyncio.run(_deny(store, run, call, Deny(reason=reason), by))
    if as_json:
        print_json({"run_id": run, "call_id": call, "decision": "deny"})
    else:
        print(f"call {call} of run {run} is denied")


async def _deny(store_url: str, run_id: str, call_id: str, answer: Deny, by: str) -> None:
    async with open_mailer(store_url) as mailer:
        await mailer.answer(run_id, call_id, answer, by=by, via="cli")
