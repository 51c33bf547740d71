"""Runs as they go on, told to whoever watches: a live display on a terminal, plain lines elsewhere, or JSON lines."""

import sys
import time
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.cli import amounts
from holdfast.cli.errors import one_line
from holdfast.cli.output import Talk, heard_or_not, one_of, print_json_line, printable
from holdfast.run.errors import RunInterrupted, RunParked
from holdfast.run.info import RunInfo
from holdfast.run.ports import RunEvent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_TEXT_LENGTH = 120
#: More than so many calls at once would fill the terminal.
_SHOWN = 12


class Watcher:
    """A delivery that shows nothing but what a command itself says. Leaves the terminal as it was at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """What is said after this is plain lines."""

    def say(self, text: str, style: str = "") -> None:
        """A line for the person in front of it."""
        Talk().line(text, style)

    async def progress(self, info: RunInfo, event: RunEvent) -> None: ...

    async def output(self, info: RunInfo, output: Any) -> None: ...

    async def error(self, info: RunInfo, error: BaseException) -> None: ...


class Display(Watcher):
    """Shows progress on stderr: what is under way stays at the bottom of a terminal, what has ended scrolls."""

    def __init__(self, *, many: bool = False) -> None:
        """Show one run, or `many` side by side, each line with its run's id then."""
        self._paper = Talk()
        self._many = many
        self._live: Live | None = None
        #: What is under way, by run and call: its name, and since when.
        self._active: dict[tuple[str, str], tuple[str, float]] = {}

    def __enter__(self) -> Self:
        if self._paper.console is not None:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._picture, console=self._paper.console, refresh_per_second=10, transient=True
            )
            self._live.start()
        return self

    def stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def say(self, text: str, style: str = "") -> None:
        self._paper.line(text, style)

    # -- the delivery -------------------------------------------------------------------------------------------

    async def progress(self, info: RunInfo, event: RunEvent) -> None:
        took = self._follow(info, event)
        told = _told(event, took, live=self._live is not None)
        if told is not None:
            self.say(self._prefix(info) + told[0], told[1])

    async def output(self, info: RunInfo, output: Any) -> None:
        self._forget(info)
        if self._many:
            self.say(f"{self._prefix(info)}done", "green")

    async def error(self, info: RunInfo, error: BaseException) -> None:
        self._forget(info)
        if self._many:
            left = isinstance(error, RunParked | RunInterrupted)
            self.say(f"{self._prefix(info)}{one_line(error)}", "yellow" if left else "red")

    def _prefix(self, info: RunInfo) -> str:
        if self._many:
            return f"{info.run_id} ({info.agent_name}) "
        return f"  {info.agent_name}: " if info.parent_run_id is not None else ""

    # -- what is under way --------------------------------------------------------------------------------------

    def _follow(self, info: RunInfo, event: RunEvent) -> timedelta:
        """Keep the list of what is under way; how long that took which has ended now."""
        now = time.monotonic()
        asking = (info.run_id, "")
        if event.kind == "step":
            self._active[asking] = (f"step {event.iteration}: asking the model ", now)
        elif event.kind == "text":
            told, began = self._active.get(asking, ("", now))
            self._active[asking] = (told + event.text, began)
        elif event.kind == "tool_start":
            self._active[info.run_id, event.call_id] = (f"step {event.iteration}: {event.name}", now)
        ended = asking if event.kind == "reply" else (info.run_id, event.call_id)
        if event.kind in ("reply", "tool_end"):
            return timedelta(seconds=now - self._active.pop(ended, ("", now))[1])
        return timedelta(0)

    def _forget(self, info: RunInfo) -> None:
        for key in [key for key in self._active if key[0] == info.run_id]:
            del self._active[key]

    def _picture(self) -> "RenderableType":
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.text import Text

        now = time.monotonic()
        room = self._paper.width - 4
        lines = []
        for (run_id, _), (name, began) in list(self._active.items())[:_SHOWN]:
            since = amounts.duration(timedelta(seconds=now - began)) + (f" {run_id}" if self._many else "")
            # Of a text that is still coming, its end.
            told = " ".join(printable(name).split())
            # As a text of its own: what a model says may look like rich's markup.
            lines.append(Spinner("dots", Text(f"{since} {told[-(room - len(since)) :]}")))
        return Group(*lines)


def _told(event: RunEvent, took: timedelta, *, live: bool) -> tuple[str, str] | None:
    """The line that tells of `event`, and its style; `None` if there is nothing to tell."""
    step = f"step {event.iteration}: "
    match event.kind:
        case "step":
            return None if live else (f"{step}asking the model", "")
        case "reply":
            text = one_of(event.text, _TEXT_LENGTH)
            return (f"{step}model answered in {amounts.duration(took)}" + (f": {text}" if text else ""), "dim")
        case "tool_start":
            return None if live else (f"{step}{event.name} started", "")
        case "tool_end" if event.error:
            return (f"{step}{event.name} failed after {amounts.duration(took)}", "red")
        case "tool_end":
            return (f"{step}{event.name} done in {amounts.duration(took)}", "green")
        case "phase":
            return (f"phase {event.name}", "bold")
        case "resumed":
            return (f"goes on after step {event.iteration}" if event.iteration else "begins", "cyan")
        case "steered":
            return (f"{step}steered: {one_of(event.text, _TEXT_LENGTH)}", "cyan")
    return None


class EventLines(Watcher):
    """Prints each event as a line of JSON on stdout."""

    async def progress(self, info: RunInfo, event: RunEvent) -> None:
        self._print(
            info, event.kind, step=event.iteration, name=event.name, call_id=event.call_id, text=event.text,
            error=event.error,
        )  # fmt: skip

    async def output(self, info: RunInfo, output: Any) -> None:
        self._print(info, "done", output=output)

    async def error(self, info: RunInfo, error: BaseException) -> None:
        kind = "parked" if isinstance(error, RunParked) else "left" if isinstance(error, RunInterrupted) else "failed"
        self._print(info, kind, reason=one_line(error))

    def _print(self, info: RunInfo, event: str, **more: Any) -> None:
        with heard_or_not(sys.stdout):
            print_json_line({"event": event, "run_id": info.run_id, "agent": info.agent_name, **more})
