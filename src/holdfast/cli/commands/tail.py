"""holdfast tail"""

import asyncio
from collections import deque
from typing import Annotated

import typer

from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import RunStatus
from holdfast.cli.event_printer import EventPrinter
from holdfast.cli.options import JsonOption, RunArgument, StoreOption
from holdfast.cli.output import Output, print_diagnostic, print_json_line
from holdfast.cli.stores import open_store
from holdfast.core.events import Event, HistoryRewritten, ReaderTooSlow, StatusChanged
from holdfast.runtime.events.hub import EventHub


def tail(
    run: RunArgument,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="Start with the last N events; 0 for all.")
    ] = 20,
    after: Annotated[
        str, typer.Option("--after", metavar="CURSOR", help="Start after this cursor, which --json has shown.")
    ] = "",
    full: Annotated[bool, typer.Option("--full", help="Do not truncate long texts.")] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Follow a run until it is terminal, in whichever process it is executed.

    Crashes, resumes and compactions do not end it. Ctrl-C ends the command, not the run. --json prints each event as a
    line of JSON, the text of replies under way included.
    """
    try:
        asyncio.run(_follow(store, run, after or None, _TailPrinter(0 if after else lines, full=full, as_json=as_json)))
    except KeyboardInterrupt:
        print_diagnostic(f"stopped following; run {run} is not affected")


class _TailPrinter:
    """Prints the last durable events that there are, and then each event."""

    def __init__(self, lines: int, *, full: bool, as_json: bool) -> None:
        self._printer = None if as_json else EventPrinter(Output(), full=full)
        #: Events before the present is shown, of which only the last are printed.
        self._missed: deque[Event] | None = deque(maxlen=lines or None)

    def print(self, event: Event) -> None:
        if self._missed is not None and event.cursor is not None:
            self._missed.append(event)
            return
        missed, self._missed = self._missed or (), None
        for each in (*missed, event):
            self._print_now(each)

    def _print_now(self, event: Event) -> None:
        if isinstance(event, StatusChanged):
            print_diagnostic(_describe_status(event))
        elif isinstance(event, HistoryRewritten):
            print_diagnostic("the conversation was rewritten: only its new messages are shown")
        if self._printer is None:
            print_json_line(event)
        else:
            self._printer.print_event(event)


def _describe_status(event: StatusChanged) -> str:
    if event.status == RunStatus.REMOVED:
        return f"run {event.run_id} has finished and was removed"
    return f"run {event.run_id} is {event.status}" + (f": {event.reason}" if event.reason else "")


async def _follow(store_url: str, run_id: str, after: str | None, printer: _TailPrinter) -> None:
    async with open_store(store_url) as store:
        hub = EventHub(StoreCheckpoints(store))
        hub.open()
        try:
            while True:
                try:
                    async for event in hub.stream(run_id, after):
                        printer.print(event)
                    return
                except ReaderTooSlow as slow:
                    after = slow.cursor
        finally:
            await hub.close()
