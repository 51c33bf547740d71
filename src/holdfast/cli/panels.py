"""A live panel for each model of a comparison on a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from holdfast.cli import amounts
from holdfast.cli.errors import one_line
from holdfast.cli.output import Talk, one_of, printable
from holdfast.cli.progress import Watcher
from holdfast.run.errors import RunInterrupted, RunParked
from holdfast.run.info import RunInfo
from holdfast.run.ports import RunEvent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_LINE_LENGTH = 120
_PANEL_LINES = 4


@dataclass(slots=True)
class _Shown:
    """What a panel shows of one model."""

    doing: str = "waits"
    text: str = ""
    since: float = 0.0
    style: str = "dim"


class Panels(Watcher):
    """Shows every model of a comparison at once, on stderr."""

    def __init__(self, cells: Sequence[str]) -> None:
        self._paper = Talk()
        self._live: Live | None = None
        self._cells = {cell: _Shown() for cell in cells}

    def __enter__(self) -> Self:
        if self._paper.console is not None:
            from rich.live import Live

            self._live = Live(get_renderable=self._picture, console=self._paper.console, refresh_per_second=8)
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
        shown = self._cells.get(info.labels.get("cell", ""))
        if shown is None or info.parent_run_id is not None:
            return
        step = f"step {event.iteration}: "
        if event.kind == "text":
            shown.text += event.text
            return
        if event.kind == "step":
            self._now(info, shown, f"{step}asks the model", text="")
        elif event.kind == "reply":
            self._now(info, shown, f"{step}answered", text=event.text)
        elif event.kind == "tool_start":
            self._now(info, shown, f"{step}{event.name}")
        elif event.kind == "tool_end" and event.error:
            self._now(info, shown, f"{step}{event.name} failed")
        elif event.kind == "resumed" and event.iteration:
            self._now(info, shown, f"goes on after step {event.iteration}")

    async def output(self, info: RunInfo, output: Any) -> None:
        self._end(info, "done", "green", str(output))

    async def error(self, info: RunInfo, error: BaseException) -> None:
        left = isinstance(error, RunParked | RunInterrupted)
        self._end(info, "interrupted" if left else "failed", "yellow" if left else "red", one_line(error))

    def _now(self, info: RunInfo, shown: _Shown, doing: str, *, text: str | None = None) -> None:
        shown.doing, shown.since, shown.style = doing, time.monotonic(), "cyan"
        if text is not None:
            shown.text = text
        self._line(info, f"{doing}{f': {text}' if text else ''}")

    def _end(self, info: RunInfo, word: str, style: str, text: str) -> None:
        shown = self._cells.get(info.labels.get("cell", ""))
        if shown is not None and info.parent_run_id is None:
            shown.doing, shown.text, shown.style, shown.since = word, text, style, 0.0
            self._line(info, f"{word}: {text}")

    def _line(self, info: RunInfo, text: str) -> None:
        if self._live is None:
            self._paper.line(f"{info.labels['cell']} {one_of(text, _LINE_LENGTH)}")

    def _picture(self) -> "RenderableType":
        from rich.columns import Columns
        from rich.panel import Panel
        from rich.text import Text

        width = max(30, self._paper.width // min(3, max(1, len(self._cells))) - 1)
        panels = []
        for cell, shown in self._cells.items():
            lasts = amounts.duration(timedelta(seconds=time.monotonic() - shown.since)) if shown.since else ""
            # Of a text that is still coming, its end.
            room = (width - 4) * (_PANEL_LINES - 1)
            body = f"{shown.doing} {lasts}\n{' '.join(printable(shown.text).split())[-room:]}"
            panel = Panel(
                Text(body), title=Text(printable(cell)), border_style=shown.style, width=width,
                height=_PANEL_LINES + 2,
            )  # fmt: skip
            panels.append(panel)
        return Columns(panels)
