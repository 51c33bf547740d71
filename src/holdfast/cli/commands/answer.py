"""holdfast answer"""

import asyncio
from typing import Annotated

import typer

from holdfast.cli.options import ByOption, CallArgument, JsonOption, RunArgument, StoreOption, parse_value
from holdfast.cli.output import print_json
from holdfast.cli.stores import open_mailer
from holdfast.core.waiting import Value


def answer(
    run: RunArgument,
    call: CallArgument,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="The result of the call: JSON, else text.", show_default=False)
    ],
    by: ByOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Answer a question, or give the result of a call that waits for one from outside."""
    asyncio.run(_answer(store, run, call, Value(parse_value(value)), by))
    if as_json:
        print_json({"run_id": run, "call_id": call, "decision": "value"})
    else:
        print(f"call {call} of run {run} is answered")


async def _answer(store_url: str, run_id: str, call_id: str, value: Value, by: str) -> None:
    async with open_mailer(store_url) as mailer:
        await mailer.answer(run_id, call_id, value, by=by, via="cli")
