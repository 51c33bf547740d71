"""Commands that send mail: answer, approve, deny, send, signal; and pending, which lists what waits."""

import asyncio
from typing import Annotated, Any

import typer

from holdfast.cli.opening import open_client
from holdfast.cli.options import (
    ByOption,
    CallArgument,
    DigestOption,
    JsonOption,
    MailIdOption,
    RunArgument,
    StoreOption,
    parse_arguments,
    parse_value,
)
from holdfast.cli.output import CommandError, Output, format_value, one_line, print_json
from holdfast.cli.printing import PrintedCall
from holdfast.core.run.waiting import Approve, Deny, Value, WaitingCall
from holdfast.runtime.reading import formatting
from holdfast.runtime.reading.formatting import utc_now
from holdfast.web.wire import MailReference


def answer(
    run: RunArgument,
    call: CallArgument,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="The result of the call, as JSON or text.", show_default=False)
    ],
    by: ByOption = "",
    digest: DigestOption = None,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Answer a question, or give the result of a call that waits for one from outside."""
    asyncio.run(_answer(store, run, call, Value(parse_value(value)), by, digest))
    if as_json:
        print_json({"run_id": run, "call_id": call, "decision": "value"})
    else:
        print(f"call {call} of run {run} is answered")


async def _answer(store_url: str, run_id: str, call_id: str, value: Value, by: str, digest: str | None) -> None:
    async with open_client(store_url) as client:
        await client.answer(run_id, call_id, value, by=by, via="cli", digest=digest)


def approve(
    run: RunArgument,
    call: CallArgument,
    edits: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="ARG=JSON", help="Another value of an argument, as JSON or text. Repeatable."),
    ] = None,
    comment: Annotated[str, typer.Option("--comment", metavar="TEXT", help="A comment for the record.")] = "",
    by: ByOption = "",
    digest: DigestOption = None,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Approve a call: the tool is called with the arguments that the model gave, or with edited ones."""
    asyncio.run(_approve(store, run, call, parse_arguments(edits), comment, by, digest))
    if as_json:
        print_json({"run_id": run, "call_id": call, "decision": "approve"})
    else:
        print(f"call {call} of run {run} is approved")


async def _approve(
    store_url: str, run_id: str, call_id: str, edits: dict[str, Any], comment: str, by: str, digest: str | None
) -> None:
    async with open_client(store_url) as client:
        call = await client.find_call(run_id, call_id)
        arguments = None
        if edits:
            if not isinstance(call.arguments, dict):
                raise CommandError(f"the arguments of call {call_id} are not a JSON object: --set cannot edit them")
            arguments = {**call.arguments, **edits}
        answer = Approve(arguments=arguments, comment=comment)
        await client.answer(run_id, call_id, answer, by=by, via="cli", digest=digest or call.digest)


def deny(
    run: RunArgument,
    call: CallArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason. The model reads it.")] = "",
    by: ByOption = "",
    digest: DigestOption = None,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Deny a call: the tool is not called, and the model reads the reason."""
    asyncio.run(_deny(store, run, call, Deny(reason=reason), by, digest))
    if as_json:
        print_json({"run_id": run, "call_id": call, "decision": "deny"})
    else:
        print(f"call {call} of run {run} is denied")


async def _deny(store_url: str, run_id: str, call_id: str, answer: Deny, by: str, digest: str | None) -> None:
    async with open_client(store_url) as client:
        await client.answer(run_id, call_id, answer, by=by, via="cli", digest=digest)


_MAX_ARGUMENTS_LENGTH = 1000


def pending(
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Only calls of this agent's runs.")] = "",
    caller: Annotated[str, typer.Option("--caller", metavar="ID", help="Only calls of this caller's runs.")] = "",
    tool: Annotated[str, typer.Option("--tool", metavar="NAME", help="Only calls of this tool.")] = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the calls that wait for a person: approvals and questions.

    Needs no code of agents. `approve`, `deny` and `answer` end the waits.
    """
    calls = asyncio.run(_list(store, agent, caller, tool))
    if as_json:
        print_json([PrintedCall.make(call, store) for call in calls])
    else:
        _print_calls(Output(), calls)


async def _list(store_url: str, agent: str, caller: str, tool: str) -> list[WaitingCall]:
    async with open_client(store_url) as client:
        return await client.pending(agent=agent or None, caller=caller or None, tool=tool or None)


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
            f"{formatting.format_duration(now - call.asked_at)} ago",
            f"in {formatting.format_duration(call.expires_at - now)}" if call.expires_at else "never",
        ]
        for call in calls
    ]
    output.print_table(["RUN", "CALL", "TOOL", "ARGUMENTS", "REASON", "ASKED", "EXPIRES"], rows)


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
    async with open_client(store_url) as client:
        return await client.send(run_id, text, id=mail_id)


def signal(
    run: RunArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal's name.", show_default=False)],
    payload: Annotated[
        str, typer.Argument(metavar="JSON", help="The payload, as JSON or text. Default: null.", show_default=False)
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
    async with open_client(store_url) as client:
        return await client.signal(run_id, name, payload, id=mail_id)
