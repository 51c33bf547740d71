"""holdfast chat"""

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated

import typer

from holdfast.cli.chat import ChatDisplay, ChatSession, LeaveChat, LineReader
from holdfast.cli.errors import CommandError
from holdfast.cli.loading import build_app, load_object, select_agent_name
from holdfast.cli.options import AgentOption, CodeStoreOption
from holdfast.cli.output import print_diagnostic
from holdfast.cli.runner import SignalHandler
from holdfast.cli.stores import report_slow_open
from holdfast.cli.waiting import format_command
from holdfast.core.errors import RunInterrupted


def chat(
    code: Annotated[str, typer.Argument(metavar="MODULE:AGENT", help="An agent or an App.", show_default=False)],
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Tells conversations apart.")] = "chat",
    agent: AgentOption = "",
    store: CodeStoreOption = "",
) -> None:
    """Chat with an agent. The conversation stays in the store.

    Ctrl-C leaves, and the same command returns to the same place. Calls that need an approval are asked for inline:
    yes, no, or edit the arguments.
    """
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")  # it would come between the lines of the chat
    display = ChatDisplay()
    app = build_app(load_object(code), code, store=store, create=True, listener=display)
    if app.store is None:
        raise CommandError("this App has no store: a conversation needs one")
    name = select_agent_name(app, agent)
    display.name = name
    options = (*(("--key", key) if key != "chat" else ()), *(("--agent", agent) if agent else ()))
    back = format_command("chat", store, code, options=options)
    display.print_status(f"{name}, conversation {key}. Ctrl-C leaves; the same command returns.", "dim")

    async def run() -> None:
        handler = SignalHandler(app.shutdown, display, partial(print_diagnostic, f"return with: {back}"))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(handler.close)
            with report_slow_open():
                await stack.enter_async_context(app)
            handler.install()
            session = ChatSession(app, app.conversation(name, key), display, LineReader(handler), store)
            await session.run()

    try:
        asyncio.run(run())
    except (LeaveChat, RunInterrupted):
        display.print_status(f"return with: {back}", "dim")
        sys.exit(0)
