"""holdfast top"""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.formatting import utc_now
from holdfast.cli.options import StoreOption
from holdfast.cli.output import Output, print_json
from holdfast.cli.stores import open_store
from holdfast.cli.top_view import print_frame, render_frame
from holdfast.runtime.activity import Activity, compare_activity, read_activity

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def top(
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.2, help="How often the view is refreshed.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit. Without a terminal: always.")] = False,
    store: StoreOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one frame as JSON.")] = False,
) -> None:
    """Watch the workers, queues, rates and stuck runs of a store, live.

    q and Ctrl-C leave. It only reads the store.
    """
    output = Output()
    if once or as_json or output.console is None or not sys.stdin.isatty():
        activity = asyncio.run(_read_once(store))
        if as_json:
            print_json(activity)
        else:
            print_frame(output, activity)
        return
    asyncio.run(_watch(store, interval, output.console))


async def _read_once(store_url: str) -> Activity:
    async with open_store(store_url) as store:
        return await read_activity(store, utc_now())


async def _watch(store_url: str, interval: float, console: "Console") -> None:
    from rich.live import Live

    stop, redraw = asyncio.Event(), asyncio.Event()
    async with open_store(store_url) as store:
        # The first frame is read before the screen changes: an error leaves the terminal as it was.
        view = _View(store, await read_activity(store, utc_now()))
        with _read_keys(stop.set, redraw.set), Live(console=console, screen=True, auto_refresh=False) as live:
            while not stop.is_set():
                redraw.clear()
                live.update(view.render(console.size.height), refresh=True)
                await _wait_for_any(stop, redraw, timeout=interval)
                if not stop.is_set():
                    await view.update()


class _View:
    """The frame that is shown, and the one before it."""

    def __init__(self, store: CheckpointStore, activity: Activity) -> None:
        self._store, self._activity = store, activity
        self._before: Activity | None = None

    async def update(self) -> None:
        self._before, self._activity = self._activity, await read_activity(self._store, utc_now())

    def render(self, height: int) -> "RenderableType":
        rates = None if self._before is None else compare_activity(self._before, self._activity)
        return render_frame(self._activity, rates, height)


async def _wait_for_any(*events: asyncio.Event, timeout: float) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


@contextlib.contextmanager
def _read_keys(stop: Callable[[], None], redraw: Callable[[], None]) -> Iterator[None]:
    """Read single keys, without echo, and handle signals. The terminal is restored at the end."""
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def on_key() -> None:
        key = os.read(stdin, 1)
        if key in (b"q", b"Q", b""):
            stop()

    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGWINCH: redraw}
    tty.setcbreak(stdin)
    loop.add_reader(stdin, on_key)
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        loop.remove_reader(stdin)
        for number in handlers:
            loop.remove_signal_handler(number)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
