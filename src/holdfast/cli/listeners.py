"""Listeners that show the progress of runs: a live display on a terminal, plain lines elsewhere, or JSON lines."""

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.cli.output import Stderr, format_error, ignore_broken_pipe, one_line, print_json_line, sanitize
from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.errors import ModelUnavailable, RunInterrupted, RunParked
from holdfast.core.json_value import lower_durations
from holdfast.core.log import RETRY_LOG
from holdfast.core.run.info import RunInfo
from holdfast.core.run.run_events import (
    Event,
    MessageAdded,
    PhaseStarted,
    ReplyAdded,
    RetryScheduled,
    StatusChanged,
    StepStarted,
    TextDelta,
    ToolCalled,
    ToolReturned,
)
from holdfast.core.run.waiting import RunWaiting
from holdfast.runtime.reading import formatting

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_TEXT_LENGTH = 120
_REFRESH_PER_SECOND = 10
#: More active calls than this would fill the terminal.
_MAX_ACTIVE_LINES = 12
_PANEL_LINES = 4


class ProgressListener:
    """A run listener that shows nothing but the command's own status lines."""

    #: The signal that stops the command.
    stop_signal: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Restore the terminal. Later output is plain lines."""

    def print_status(self, text: str, style: str = "") -> None:
        """Print a line to stderr."""
        Stderr().print_line(text, style)

    async def on_event(self, info: RunInfo, event: Event) -> None: ...

    async def on_output(self, info: RunInfo, output: Any) -> None: ...

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...


class LiveListener(ProgressListener):
    """A listener with a display on stderr that is refreshed in place, if stderr is a terminal."""

    #: Whether the display is erased at the end.
    transient = False

    def __init__(self) -> None:
        self._output = Stderr()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._output.console is not None:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._render,
                console=self._output.console,
                refresh_per_second=_REFRESH_PER_SECOND,
                transient=self.transient,
            )
            self._live.start()
        return self

    def stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def print_status(self, text: str, style: str = "") -> None:
        self._output.print_line(text, style)

    def _render(self) -> "RenderableType":
        """Return the content of the display."""
        return ""


class ProgressDisplay(LiveListener):
    """Shows the active calls at the bottom of a terminal; finished calls scroll."""

    transient = True

    def __init__(self, *, many: bool = False) -> None:
        """Show one run, or `many`: then each line has its run's id."""
        super().__init__()
        self._many = many
        RETRY_LOG.setLevel(logging.ERROR)  # this display shows each retry
        #: Name and start time of each active call, by run id and call id. The call id of a model request is empty.
        self._active: dict[tuple[str, str], tuple[str, float]] = {}

    async def on_event(self, info: RunInfo, event: Event) -> None:
        took = self._track_active(info, event)
        line = _format_event(event, took, live=self._live is not None)
        if line is not None:
            text, style = line
            self.print_status(self._prefix(info) + text, style)

    async def on_output(self, info: RunInfo, output: Any) -> None:
        self._remove_active(info)
        if self._many:
            self.print_status(f"{self._prefix(info)}done", "green")

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        self._remove_active(info)
        if self._many:
            self.print_status(f"{self._prefix(info)}{format_error(error)}", "yellow" if _is_resumable(error) else "red")
        elif isinstance(error, ModelUnavailable):  # the command waits on
            self.print_status(f"{self._prefix(info)}{error}", "yellow")

    def _prefix(self, info: RunInfo) -> str:
        if self._many:
            return f"{info.run_id} ({info.agent_name}) "
        return f"  {info.agent_name}: " if info.parent_run_id is not None else ""

    def _track_active(self, info: RunInfo, event: Event) -> timedelta:
        """Update the active calls. Return the duration of a call that has finished."""
        now = SYSTEM_CLOCK.monotonic()
        request = (info.run_id, "")
        match event:
            case StepStarted():
                self._active[request] = (f"step {event.step}: asking the model ", now)
            case TextDelta():
                text, started = self._active.get(request, ("", now))
                self._active[request] = (text + event.text, started)
            case ToolCalled():
                self._active[info.run_id, event.call_id] = (f"step {event.step}: {event.tool}", now)
            case ReplyAdded() | ToolReturned():
                key = request if isinstance(event, ReplyAdded) else (info.run_id, event.call_id)
                _, started = self._active.pop(key, ("", now))
                return timedelta(seconds=now - started)
        return timedelta(0)

    def _remove_active(self, info: RunInfo) -> None:
        for key in [key for key in self._active if key[0] == info.run_id]:
            del self._active[key]

    def _render(self) -> "RenderableType":
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.text import Text

        now = SYSTEM_CLOCK.monotonic()
        width = self._output.width - 4
        lines = []
        for (run_id, _), (name, started) in list(self._active.items())[:_MAX_ACTIVE_LINES]:
            since = formatting.format_duration(timedelta(seconds=now - started)) + (f" {run_id}" if self._many else "")
            text = " ".join(sanitize(name).split())
            # The end of a streamed text. A Text object, because a model's text may look like rich's markup.
            lines.append(Spinner("dots", Text(f"{since} {text[-(width - len(since)) :]}")))
        return Group(*lines)


def _format_event(event: Event, took: timedelta, *, live: bool) -> tuple[str, str] | None:
    """Return the line for `event` and its style, or `None` if the event is not shown."""
    step = f"step {event.step}: "
    match event:
        case StepStarted():
            return None if live else (f"{step}asking the model", "")
        case ReplyAdded():
            text = one_line(event.text, _TEXT_LENGTH)
            return (
                f"{step}model answered in {formatting.format_duration(took)}" + (f": {text}" if text else ""),
                "dim",
            )
        case ToolCalled():
            return None if live else (f"{step}{event.tool} started", "")
        case ToolReturned() if event.error:
            return (f"{step}{event.tool} failed after {formatting.format_duration(took)}", "red")
        case ToolReturned():
            return (f"{step}{event.tool} done in {formatting.format_duration(took)}", "green")
        case PhaseStarted():
            return (f"phase {event.name}", "bold")
        case StatusChanged() if event.resumed:
            return (f"resumed after step {event.step}" if event.step else "started", "cyan")
        case MessageAdded():
            return (f"{step}message: {one_line(event.content, _TEXT_LENGTH)}", "cyan")
        case RetryScheduled():
            return (f"{step}{_describe_retry(event)}: {one_line(event.error, _TEXT_LENGTH)}", "yellow")
    return None


def _describe_retry(event: RetryScheduled) -> str:
    pause = formatting.format_duration(event.delay)
    return f"try {event.attempt} of {event.tool or 'the model'} failed, next in {pause}"


def _is_resumable(error: BaseException) -> bool:
    return isinstance(error, RunParked | RunInterrupted | RunWaiting)


def _get_status(error: BaseException) -> str:
    """Return the status of a run that ended with this error."""
    match error:
        case RunWaiting():
            return "waiting"
        case RunParked():
            return "parked"
        case RunInterrupted():
            return "interrupted"
    return "failed"


class JsonEventPrinter(ProgressListener):
    """Prints each event as a line of JSON to stdout."""

    async def on_event(self, info: RunInfo, event: Event) -> None:
        fields = lower_durations(event)
        del fields["type"], fields["run_id"]
        self._print(info, event.type, **fields)

    async def on_output(self, info: RunInfo, output: Any) -> None:
        self._print(info, "done", output=output)

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        self._print(info, _get_status(error), reason=format_error(error))

    def _print(self, info: RunInfo, event: str, **more: Any) -> None:
        with ignore_broken_pipe(sys.stdout):
            print_json_line({"event": event, "run_id": info.run_id, "agent": info.agent_name, **more})


@dataclass(slots=True)
class _Panel:
    """The content of one model's panel."""

    activity: str = "waiting"
    text: str = ""
    since: float = 0.0
    style: str = "dim"


class LivePanels(LiveListener):
    """Shows a panel for each model of a comparison."""

    def __init__(self, cells: Mapping[str, str]) -> None:
        """Make the panels. `cells` are the ids of the models, by the names of their agents."""
        super().__init__()
        self._cells = cells
        self._panels = {cell: _Panel() for cell in cells.values()}

    async def on_event(self, info: RunInfo, event: Event) -> None:
        panel = self._find_panel(info)
        if panel is None:
            return
        step = f"step {event.step}: "
        match event:
            case TextDelta():
                panel.text += event.text
            case StepStarted():
                self._set_activity(info, panel, f"{step}asking the model", text="")
            case ReplyAdded():
                self._set_activity(info, panel, f"{step}answered", text=event.text)
            case ToolCalled():
                self._set_activity(info, panel, f"{step}{event.tool}")
            case ToolReturned() if event.error:
                self._set_activity(info, panel, f"{step}{event.tool} failed")
            case RetryScheduled():
                self._set_activity(info, panel, f"{step}{_describe_retry(event)}")
            case StatusChanged() if event.resumed and event.step:
                self._set_activity(info, panel, f"resumed after step {event.step}")

    async def on_output(self, info: RunInfo, output: Any) -> None:
        self._set_finished(info, "done", "green", str(output))

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        style = "yellow" if _is_resumable(error) else "red"
        self._set_finished(info, _get_status(error), style, format_error(error))

    def _find_panel(self, info: RunInfo) -> _Panel | None:
        """Return the panel of a cell's run; `None` for the fan-out, and for a child run of a cell."""
        return self._panels.get(self._cells.get(info.agent_name, ""))

    def _set_activity(self, info: RunInfo, panel: _Panel, activity: str, *, text: str | None = None) -> None:
        panel.activity, panel.since, panel.style = activity, SYSTEM_CLOCK.monotonic(), "cyan"
        if text is not None:
            panel.text = text
        self._print_plain(info, f"{activity}{f': {text}' if text else ''}")

    def _set_finished(self, info: RunInfo, status: str, style: str, text: str) -> None:
        panel = self._find_panel(info)
        if panel is not None:
            panel.activity, panel.text, panel.style, panel.since = status, text, style, 0.0
            self._print_plain(info, f"{status}: {text}")

    def _print_plain(self, info: RunInfo, text: str) -> None:
        if self._live is None:
            self._output.print_line(f"{self._cells[info.agent_name]} {one_line(text, _TEXT_LENGTH)}")

    def _render(self) -> "RenderableType":
        from rich.columns import Columns
        from rich.panel import Panel
        from rich.text import Text

        now = SYSTEM_CLOCK.monotonic()
        width = max(30, self._output.width // min(3, max(1, len(self._panels))) - 1)
        text_length = (width - 4) * (_PANEL_LINES - 1)
        panels = []
        for cell, panel in self._panels.items():
            since = formatting.format_duration(timedelta(seconds=now - panel.since)) if panel.since else ""
            # The end of a streamed text.
            body = Text(f"{panel.activity} {since}\n{' '.join(sanitize(panel.text).split())[-text_length:]}")
            title = Text(sanitize(cell))
            panels.append(Panel(body, title=title, border_style=panel.style, width=width, height=_PANEL_LINES + 2))
        return Columns(panels)
