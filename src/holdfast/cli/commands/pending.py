"""holdfast pending"""

import asyncio
from typing import Annotated

import typer

from holdfast.cli import formatting
from holdfast.cli.formatting import utc_now
from holdfast.cli.options import JsonOption, StoreOption
from holdfast.cli.output import Output, format_value, one_line, print_json
from holdfast.cli.stores import open_mailer
from holdfast.cli.waiting import PrintedCall
from holdfast.core.waiting import WaitingCall

_MAX_ARGUMENTS_LENGTH = 1000


def pending(
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Only calls of this agent's runs.")] = "",
    caller: Annotated[str, typer.Option("--caller", metavar="ID", help="Only calls of this caller's runs.")] = "",
    tool: Annotated[str, typer.Option("--tool", metavar="NAME", help="Only calls of this tool.")] = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the calls that wait for a person: approvals and questions.

    No agent's code is needed. `approve`, `deny` and `answer` end the waits.
    """
    calls = asyncio.run(_list(store, agent, caller, tool))
    if as_json:
        print_json([PrintedCall.make(call, store) for call in calls])
    else:
        _print_calls(Output(), calls)


async def _list(store_url: str, agent: str, caller: str, tool: str) -> list[WaitingCall]:
    async with open_mailer(store_url) as mailer:
        return await mailer.list_pending(agent=agent or None, caller=caller or None, tool=tool or None)


def _print_calls(output: Output, calls: list[WaitingCall]) -> None:
    if not calls:
        output.print_line("no calls wait for a person")
        return
    now = utc_now()
    rows = [
        [
            call.run_id,
            call.call_id,
            call.tool,
            one_line(format_value(call.arguments), _MAX_ARGUMENTS_LENGTH),
            one_line(call.reason, 200),
            f"{formatting.duration(now - call.asked_at)} ago",
            f"in {formatting.duration(call.expires_at - now)}" if call.expires_at else "never",
        ]
        for call in calls
    ]
    output.print_table(["RUN", "CALL", "TOOL", "ARGUMENTS", "REASON", "ASKED", "EXPIRES"], rows)
