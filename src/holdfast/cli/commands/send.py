"""holdfast send"""

import asyncio
from typing import Annotated

import typer

from holdfast.cli.options import JsonOption, MailIdOption, RunArgument, StoreOption
from holdfast.cli.output import print_json
from holdfast.cli.stores import open_mailer
from holdfast.web.wire import MailReference


def send(
    run: RunArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.", show_default=False)],
    mail_id: MailIdOption = None,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Send a message to a run, and print the id of the message.

    The run reads it before its next step, in whichever process it is executed. Once the id is printed, the message is
    durable.
    """
    sent = asyncio.run(_send(store, run, text, mail_id))
    if as_json:
        print_json(MailReference(run_id=run, id=sent))
    else:
        print(sent)


async def _send(store_url: str, run_id: str, text: str, mail_id: str | None) -> str:
    async with open_mailer(store_url) as mailer:
        return await mailer.send(run_id, text, mail_id)
