"""holdfast signal"""

import asyncio
from typing import Annotated, Any

import typer

from holdfast.cli.options import JsonOption, MailIdOption, RunArgument, StoreOption, parse_value
from holdfast.cli.output import print_json
from holdfast.cli.stores import open_mailer
from holdfast.web.wire import MailReference


def signal(
    run: RunArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal's name.", show_default=False)],
    payload: Annotated[
        str, typer.Argument(metavar="JSON", help="The payload: JSON, else text. Default: null.", show_default=False)
    ] = "null",
    mail_id: MailIdOption = None,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Send a signal to a run, and print its id.

    A call of `wait_for` with this name returns the payload. The signal may come before the wait.
    """
    sent = asyncio.run(_signal(store, run, name, parse_value(payload), mail_id))
    if as_json:
        print_json(MailReference(run_id=run, id=sent))
    else:
        print(sent)


async def _signal(store_url: str, run_id: str, name: str, payload: Any, mail_id: str | None) -> str:
    async with open_mailer(store_url) as mailer:
        return await mailer.signal(run_id, name, payload, mail_id)
