"""The command top: what a fleet does now, redrawn."""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.cli.opening import open_store
from holdfast.cli.options import StoreOption
from holdfast.cli.output import STYLES, Output, one_line, print_json, sanitize
from holdfast.runtime.reading import formatting
from holdfast.runtime.reading.activity import Activity, Rates, WorkerActivity, compare_activity, read_activity
from holdfast.runtime.reading.formatting import utc_now

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


_STATUSES = [status for status in RunStatus if status is not RunStatus.REMOVED]

_DETAILS_LENGTH = 200


class FrameTable(NamedTuple):
    """A part of a frame."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str]


def make_summary(activity: Activity, rates: Rates | None) -> str:
    """Return the first line of a frame."""
    alive = [worker for worker in activity.workers if worker.alive]
    running = sum(each.count for each in activity.counts if each.status is RunStatus.RUNNING)
    parts = [
        f"{len(alive)} worker{'' if len(alive) == 1 else 's'}, {sum(worker.runs > 0 for worker in alive)} busy",
        f"{running} running",
        f"{sum(each.due for each in activity.counts)} due",
        f"{len(activity.stuck)} stuck",
    ]
    if rates is not None:
        parts.append(f"per minute: {rates.created:.0f} created, {rates.ended:.0f} ended, {rates.steps:.0f} steps")
    if activity.is_partial:
        parts.append("workers and stuck runs: only of the newest 1,000 runs of a status")
    return "holdfast top · " + " · ".join(parts)


def make_tables(activity: Activity) -> list[FrameTable]:
    """Return the tables of a frame."""
    return [_make_queues(activity), _make_workers(activity), _make_reasons(activity), _make_stuck(activity)]


def _make_queues(activity: Activity) -> FrameTable:
    counts = {(each.agent_name, each.status): each for each in activity.counts}
    statuses = [status for status in _STATUSES if any(each.status is status for each in activity.counts)]
    rows = []
    for agent in sorted({each.agent_name for each in activity.counts}):
        own = [counts.get((agent, status)) for status in statuses]
        oldest = min((each.oldest for each in own if each is not None and each.oldest is not None), default=None)
        age = "" if oldest is None else formatting.format_duration(activity.at - oldest)
        due = sum(each.due for each in own if each is not None)
        numbers = ["" if each is None else formatting.format_number(each.count) for each in own]
        rows.append([agent, formatting.format_number(due) if due else "", age, *numbers])
    right = ["DUE", "OLDEST", *(status.value.upper() for status in statuses)]
    return FrameTable("queues", ["AGENT", *right], rows, right)


def _make_workers(activity: Activity) -> FrameTable:
    rows = [
        [
            each.worker_id,
            _describe_state(each),
            formatting.format_number(each.runs),
            _format_age(activity.at, each.last_heartbeat),
            _format_age(activity.at, each.last_write),
            "" if each.pid is None else f"{each.host} · {each.pid}",
            ", ".join(each.agents),
        ]
        for each in activity.workers
    ]
    right = ["RUNS", "HEARTBEAT", "LAST WRITE"]
    return FrameTable("workers", ["WORKER", "STATE", *right, "PROCESS", "AGENTS"], rows, right)


def _describe_state(worker: WorkerActivity) -> str:
    if not worker.alive:
        return "dead"
    return "busy" if worker.runs else "idle"


def _format_age(now: datetime, then: datetime | None) -> str:
    """Return how long ago it was. The clock of the store may be ahead of the clock of this host."""
    return "" if then is None else formatting.format_duration(max(now - then, timedelta()))


def _make_reasons(activity: Activity) -> FrameTable:
    rows = [
        [
            one_line(each.reason, _DETAILS_LENGTH),
            each.status.value,
            each.agent,
            formatting.format_number(each.count),
            formatting.format_duration(max(activity.at - each.since, timedelta())),
        ]
        for each in activity.reasons
    ]
    return FrameTable("reasons", ["REASON", "STATUS", "AGENT", "RUNS", "OLDEST"], rows, ["RUNS", "OLDEST"])


def _make_stuck(activity: Activity) -> FrameTable:
    rows = [
        [
            each.run_id,
            each.status.value,
            each.agent,
            formatting.format_duration(activity.at - each.since),
            formatting.format_number(each.steps),
            formatting.format_number(each.strikes),
            one_line(each.description, _DETAILS_LENGTH),
        ]
        for each in activity.stuck
    ]
    columns = ["RUN", "STATUS", "AGENT", "FOR", "STEPS", "STRIKES", "DETAILS"]
    return FrameTable("stuck runs", columns, rows, ["FOR", "STEPS", "STRIKES"])


def print_frame(output: Output, activity: Activity) -> None:
    """Print a frame as lines."""
    output.print_line(make_summary(activity, None), "bold")
    for table in make_tables(activity):
        output.print_line()
        output.print_line(table.title if table.rows else f"no {table.title}", "bold")
        if table.rows:
            output.print_table(table.columns, table.rows, right=table.right)


def render_frame(activity: Activity, rates: Rates | None, height: int) -> "RenderableType":
    """Return a frame of at most `height` lines for a live display. Long tables are cut, each row is one line."""
    from rich.console import Group
    from rich.text import Text

    tables = make_tables(activity)
    parts: list[RenderableType] = [Text(make_summary(activity, rates), style="bold", no_wrap=True, overflow="ellipsis")]
    # Each table has an empty line, a title and a header; the last line of the frame is the help.
    room = _divide_room(height - 2 - 3 * len(tables), [len(table.rows) for table in tables])
    for table, count in zip(tables, room, strict=True):
        more = f" (the first {count} of {len(table.rows)})" if count < len(table.rows) else ""
        parts += [Text(), Text(f"{table.title}{more}" if table.rows else f"no {table.title}", style="bold cyan")]
        if table.rows:
            parts.append(_render_table(table, count))
    parts.append(Text("q leaves", style="dim"))
    return Group(*parts)


def _divide_room(lines: int, needs: Sequence[int]) -> list[int]:
    """Return the number of rows of each table: short tables are shown whole, the others share what is left."""
    room = dict.fromkeys(range(len(needs)), 0)
    for left, position in zip(range(len(needs), 0, -1), sorted(room, key=needs.__getitem__), strict=True):
        room[position] = min(needs[position], max(1, (lines - sum(room.values())) // left))
    return [room[position] for position in range(len(needs))]


def _render_table(table: FrameTable, count: int) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="dim")
    for column in table.columns:
        justify: Literal["left", "right"] = "right" if column in table.right else "left"
        # Names give way in a narrow terminal, numbers do not.
        width = len(column) if column in table.right else None
        grid.add_column(column, justify=justify, min_width=width, no_wrap=True, overflow="ellipsis")
    for row in table.rows[:count]:
        grid.add_row(*(Text(sanitize(cell), style=STYLES.get(cell, "")) for cell in row))
    return grid


def top(
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.2, help="How often the view is refreshed.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit. Without a terminal: always.")] = False,
    store: StoreOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one frame as JSON.")] = False,
) -> None:
    """Watch the workers, queues, rates and stuck runs of a store, live.

    Runs that wait or are stuck are counted by reason. q and Ctrl-C leave. It only reads the store.
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

    def __init__(self, store: RunStore, activity: Activity) -> None:
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
