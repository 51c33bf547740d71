"""holdfast approve"""

import asyncio
from typing import Annotated, Any

import typer

from holdfast.cli.errors import CommandError
from holdfast.cli.options import ByOption, CallArgument, JsonOption, RunArgument, StoreOption, parse_arguments
from holdfast.cli.output import print_json
from holdfast.cli.stores import open_mailer
from holdfast.core.waiting import Approve


def approve(
    run: RunArgument,
    call: CallArgument,
    edits: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="ARG=JSON", help="Another value of an argument: JSON, else text. Repeatable."),
    ] = None,
    comment: Annotated[str, typer.Option("--comment", metavar="TEXT", help="A comment for the record.")] = "",
    by: ByOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Approve a call: the tool is called with the arguments that the model gave, or with edited ones."""
    asyncio.run(_approve(store, run, call, parse_arguments(edits), comment, by))
    if as_json:
        print_json({"run_id": run, "call_id": call, "decision": "approve"})
    else:
        print(f"call {call} of run {run} is approved")


async def _approve(store_url: str, run_id: str, call_id: str, edits: dict[str, Any], comment: str, by: str) -> None:
    async with open_mailer(store_url) as mailer:
        call = await mailer.find_call(run_id, call_id)
        arguments = None
        if edits:
            if not isinstance(call.arguments, dict):
                raise CommandError(f"the arguments of call {call_id} are not a JSON object: --set cannot edit them")
            arguments = {**call.arguments, **edits}
        answer = Approve(arguments=arguments, comment=comment)
        await mailer.answer(run_id, call_id, answer, by=by, via="cli", digest=call.digest)
