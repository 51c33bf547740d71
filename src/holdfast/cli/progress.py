"""Runs as they go on, told to whoever watches: a live display on a terminal, plain lines elsewhere, or JSON lines.

A live panel for each model of a comparison on a terminal, plain lines elsewhere.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.cli import formatting
from holdfast.cli.errors import format_error
from holdfast.cli.output import Stderr, ignore_broken_pipe, one_line, print_json_line, sanitize
from holdfast.core.errors import RunInterrupted, RunParked
from holdfast.core.info import RunInfo
from holdfast.core.ports import RunEvent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_TEXT_LENGTH = 120
#: More than so many calls at once would fill the terminal.
_MAX_ACTIVE_LINES = 12


class ProgressListener:
    """A delivery that shows nothing but what a command itself says. Leaves the terminal as it was at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """What is said after this is plain lines."""

    def print_status(self, text: str, style: str = "") -> None:
        """A line for the person in front of it."""
        Stderr().print_line(text, style)

    async def on_event(self, info: RunInfo, event: RunEvent) -> None: ...

    async def on_output(self, info: RunInfo, output: Any) -> None: ...

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...


class ProgressDisplay(ProgressListener):
    """Shows progress on stderr: what is under way stays at the bottom of a terminal, what has ended scrolls."""

    def __init__(self, *, many: bool = False) -> None:
        """Show one run, or `many` side by side, each line with its run's id then."""
        self._output = Stderr()
        self._many = many
        self._live: Live | None = None
        #: What is under way, by run and call: its name, and since when.
        self._active: dict[tuple[str, str], tuple[str, float]] = {}

    def __enter__(self) -> Self:
        if self._output.console is not None:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._render, console=self._output.console, refresh_per_second=10, transient=True
            )
            self._live.start()
        return self

    def stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def print_status(self, text: str, style: str = "") -> None:
        self._output.print_line(text, style)

    # -- the delivery -------------------------------------------------------------------------------------------

    async def on_event(self, info: RunInfo, event: RunEvent) -> None:
        took = self._track_active(info, event)
        told = _format_event(event, took, live=self._live is not None)
        if told is not None:
            self.print_status(self._prefix(info) + told[0], told[1])

    async def on_output(self, info: RunInfo, output: Any) -> None:
        self._remove_active(info)
        if self._many:
            self.print_status(f"{self._prefix(info)}done", "green")

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        self._remove_active(info)
        if self._many:
            left = isinstance(error, RunParked | RunInterrupted)
            self.print_status(f"{self._prefix(info)}{format_error(error)}", "yellow" if left else "red")

    def _prefix(self, info: RunInfo) -> str:
        if self._many:
            return f"{info.run_id} ({info.agent_name}) "
        return f"  {info.agent_name}: " if info.parent_run_id is not None else ""

    # -- what is under way --------------------------------------------------------------------------------------

    def _track_active(self, info: RunInfo, event: RunEvent) -> timedelta:
        """Keep the list of what is under way; how long that took which has ended now."""
        now = time.monotonic()
        asking = (info.run_id, "")
        if event.kind == "step":
            self._active[asking] = (f"step {event.step}: asking the model ", now)
        elif event.kind == "text":
            told, began = self._active.get(asking, ("", now))
            self._active[asking] = (told + event.text, began)
        elif event.kind == "tool_start":
            self._active[info.run_id, event.call_id] = (f"step {event.step}: {event.name}", now)
        ended = asking if event.kind == "reply" else (info.run_id, event.call_id)
        if event.kind in ("reply", "tool_end"):
            return timedelta(seconds=now - self._active.pop(ended, ("", now))[1])
        return timedelta(0)

    def _remove_active(self, info: RunInfo) -> None:
        for key in [key for key in self._active if key[0] == info.run_id]:
            del self._active[key]

    def _render(self) -> "RenderableType":
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.text import Text

        now = time.monotonic()
        room = self._output.width - 4
        lines = []
        for (run_id, _), (name, began) in list(self._active.items())[:_MAX_ACTIVE_LINES]:
            since = formatting.duration(timedelta(seconds=now - began)) + (f" {run_id}" if self._many else "")
            # Of a text that is still coming, its end.
            told = " ".join(sanitize(name).split())
            # As a text of its own: what a model says may look like rich's markup.
            lines.append(Spinner("dots", Text(f"{since} {told[-(room - len(since)) :]}")))
        return Group(*lines)


def _format_event(event: RunEvent, took: timedelta, *, live: bool) -> tuple[str, str] | None:
    """The line that tells of `event`, and its style; `None` if there is nothing to tell."""
    step = f"step {event.step}: "
    match event.kind:
        case "step":
            return None if live else (f"{step}asking the model", "")
        case "reply":
            text = one_line(event.text, _TEXT_LENGTH)
            return (f"{step}model answered in {formatting.duration(took)}" + (f": {text}" if text else ""), "dim")
        case "tool_start":
            return None if live else (f"{step}{event.name} started", "")
        case "tool_end" if event.error:
            return (f"{step}{event.name} failed after {formatting.duration(took)}", "red")
        case "tool_end":
            return (f"{step}{event.name} done in {formatting.duration(took)}", "green")
        case "phase":
            return (f"phase {event.name}", "bold")
        case "resumed":
            return (f"goes on after step {event.step}" if event.step else "begins", "cyan")
        case "steered":
            return (f"{step}steered: {one_line(event.text, _TEXT_LENGTH)}", "cyan")
    return None


class JsonEventPrinter(ProgressListener):
    """Prints each event as a line of JSON on stdout."""

    async def on_event(self, info: RunInfo, event: RunEvent) -> None:
        self._print(
            info,
            event.kind,
            step=event.step,
            name=event.name,
            call_id=event.call_id,
            text=event.text,
            error=event.error,
        )

    async def on_output(self, info: RunInfo, output: Any) -> None:
        self._print(info, "done", output=output)

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        kind = "parked" if isinstance(error, RunParked) else "left" if isinstance(error, RunInterrupted) else "failed"
        self._print(info, kind, reason=format_error(error))

    def _print(self, info: RunInfo, event: str, **more: Any) -> None:
        with ignore_broken_pipe(sys.stdout):
            print_json_line({"event": event, "run_id": info.run_id, "agent": info.agent_name, **more})


if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_LINE_LENGTH = 120
_PANEL_LINES = 4


@dataclass(slots=True)
class _PanelState:
    """What a panel shows of one model."""

    activity: str = "waits"
    text: str = ""
    since: float = 0.0
    style: str = "dim"


class LivePanels(ProgressListener):
    """Shows every model of a comparison at once, on stderr."""

    def __init__(self, cells: Sequence[str]) -> None:
        self._output = Stderr()
        self._live: Live | None = None
        self._panels = {cell: _PanelState() for cell in cells}

    def __enter__(self) -> Self:
        if self._output.console is not None:
            from rich.live import Live

            self._live = Live(get_renderable=self._render, console=self._output.console, refresh_per_second=8)
            self._live.start()
        return self

    def stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def print_status(self, text: str, style: str = "") -> None:
        self._output.print_line(text, style)

    # -- the delivery -------------------------------------------------------------------------------------------

    async def on_event(self, info: RunInfo, event: RunEvent) -> None:
        shown = self._panels.get(info.labels.get("cell", ""))
        if shown is None or info.parent_run_id is not None:
            return
        step = f"step {event.step}: "
        if event.kind == "text":
            shown.text += event.text
            return
        if event.kind == "step":
            self._set_activity(info, shown, f"{step}asks the model", text="")
        elif event.kind == "reply":
            self._set_activity(info, shown, f"{step}answered", text=event.text)
        elif event.kind == "tool_start":
            self._set_activity(info, shown, f"{step}{event.name}")
        elif event.kind == "tool_end" and event.error:
            self._set_activity(info, shown, f"{step}{event.name} failed")
        elif event.kind == "resumed" and event.step:
            self._set_activity(info, shown, f"goes on after step {event.step}")

    async def on_output(self, info: RunInfo, output: Any) -> None:
        self._set_finished(info, "done", "green", str(output))

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        left = isinstance(error, RunParked | RunInterrupted)
        self._set_finished(info, "interrupted" if left else "failed", "yellow" if left else "red", format_error(error))

    def _set_activity(self, info: RunInfo, shown: _PanelState, doing: str, *, text: str | None = None) -> None:
        shown.activity, shown.since, shown.style = doing, time.monotonic(), "cyan"
        if text is not None:
            shown.text = text
        self._print_plain(info, f"{doing}{f': {text}' if text else ''}")

    def _set_finished(self, info: RunInfo, word: str, style: str, text: str) -> None:
        shown = self._panels.get(info.labels.get("cell", ""))
        if shown is not None and info.parent_run_id is None:
            shown.activity, shown.text, shown.style, shown.since = word, text, style, 0.0
            self._print_plain(info, f"{word}: {text}")

    def _print_plain(self, info: RunInfo, text: str) -> None:
        if self._live is None:
            self._output.print_line(f"{info.labels['cell']} {one_line(text, _LINE_LENGTH)}")

    def _render(self) -> "RenderableType":
        from rich.columns import Columns
        from rich.panel import Panel
        from rich.text import Text

        width = max(30, self._output.width // min(3, max(1, len(self._panels))) - 1)
        panels = []
        for cell, shown in self._panels.items():
            lasts = formatting.duration(timedelta(seconds=time.monotonic() - shown.since)) if shown.since else ""
            # Of a text that is still coming, its end.
            room = (width - 4) * (_PANEL_LINES - 1)
            body = f"{shown.activity} {lasts}\n{' '.join(sanitize(shown.text).split())[-room:]}"
            panel = Panel(
                Text(body),
                title=Text(sanitize(cell)),
                border_style=shown.style,
                width=width,
                height=_PANEL_LINES + 2,
            )
            panels.append(panel)
        return Columns(panels)
