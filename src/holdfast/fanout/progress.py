"""Records the progress of each cell: text, tool calls and proposed writes, reported to the saver after every step."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.errors import ModelUnavailable
from holdfast.core.execution.native_loop import get_loop
from holdfast.core.loop import FinishedCall
from holdfast.core.ports import Recorder, RunListener
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Usage
from holdfast.core.run.run_events import Event, ReplyAdded, ToolCalled, ToolReturned
from holdfast.core.run.state import RunState
from holdfast.fanout.cells import Cell
from holdfast.fanout.overlay import Overlay
from holdfast.fanout.saver import IncrementalSaver
from holdfast.fanout.snapshot import PartialResponse, ProposedWrite, Snapshot
from holdfast.fanout.workspace import Workspace

log = logging.getLogger("holdfast.fanout")


class ProgressRecorder:
    """The audit and the listener of a fan-out's runs."""

    def __init__(
        self,
        cells: Iterable[Cell],
        saver: IncrementalSaver,
        workspace: Workspace | None,
        overlays: dict[str, Overlay],
        listener: RunListener | None,
    ) -> None:
        """Record the progress of `cells`.

        Args:
            overlays: receives the overlay of each run, by run id. The file tools read it.
            listener: receives every call that this listener gets.
        """
        self._saver, self._workspace, self._overlays, self._listener = saver, workspace, overlays, listener
        self._cells = {cell.run_id(saver.fanout_id): cell for cell in cells}
        self._previous_snapshots = {snapshot.model_id: snapshot for snapshot in saver.snapshots}
        self._recorders: dict[str, CellRecorder] = {}
        self._outages: dict[str, asyncio.Future[ModelUnavailable]] = {}

    def get_recorder(self, run_id: str) -> "CellRecorder | None":
        """Return the recorder of a run that was executed in this process."""
        return self._recorders.get(run_id)

    def watch_outage(self, run_id: str) -> "asyncio.Future[ModelUnavailable]":
        """Return a future that is resolved when the run is interrupted because its provider is unavailable."""
        outage = self._outages[run_id] = asyncio.get_running_loop().create_future()
        return outage

    # -- audit --------------------------------------------------------------------------------------------------

    def begin(self, info: RunInfo, state: RunState) -> Recorder:
        """Start the recorder of one run.

        Raises:
            WorkspaceChanged: the run's proposed writes cannot be restored.
        """
        cell = self._cells.get(info.run_id)
        if cell is None:
            return NullRecorder()  # a child run
        recorder = self._recorders[info.run_id] = self.restore_recorder(cell, state)
        if recorder.overlay is not None:
            self._overlays[info.run_id] = recorder.overlay
        return recorder

    def restore_recorder(self, cell: Cell, state: RunState) -> "CellRecorder":
        """Return a recorder with the tool calls and proposed writes of `state`.

        Raises:
            WorkspaceChanged: as for `begin`.
        """
        calls = get_loop(cell.agent).finished_calls(state.history, state.results)
        overlay = Overlay(self._workspace) if self._workspace is not None else None
        if overlay is not None:
            overlay.replay(calls)
        return CellRecorder(cell, state, self._saver, self._previous_snapshots[cell.id], calls, overlay)

    # -- listener -----------------------------------------------------------------------------------------------

    async def on_event(self, info: RunInfo, event: Event) -> None:
        recorder = self._recorders.get(info.run_id)
        if recorder is not None and isinstance(event, ReplyAdded) and event.text:
            recorder.text = event.text
        if recorder is not None and self._saver.verbose and (line := _format_event(event)):
            log.info("%s: step %d: %s", self._cells[info.run_id].id, event.step, line)
        if self._listener is not None:
            await self._listener.on_event(info, event)

    async def on_output(self, info: RunInfo, output: Any) -> None:
        if self._listener is not None:
            await self._listener.on_output(info, output)

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        outage = self._outages.get(info.run_id)
        if isinstance(error, ModelUnavailable) and outage is not None and not outage.done():
            outage.set_result(error)
        if self._listener is not None:
            await self._listener.on_error(info, error)


class NullRecorder:
    """Records nothing."""

    def start(self, *, resumed: bool) -> None: ...

    def step(self, step: int, usage: Usage) -> None: ...

    def tool(self, call: ToolContext, *, effect: str, error: bool, took: timedelta) -> None: ...

    def event(self, name: str, detail: str) -> None: ...

    def close(self, status: str, usage: Usage, error: BaseException | None) -> None: ...


class CellRecorder(NullRecorder):
    """The progress of one cell. Reports each finished step to the saver."""

    def __init__(
        self,
        cell: Cell,
        state: RunState,
        saver: IncrementalSaver,
        previous: Snapshot,
        calls: Sequence[FinishedCall],
        overlay: Overlay | None,
    ) -> None:
        self._cell, self._state, self._saver = cell, state, saver
        self.text = previous.text
        self.overlay = overlay
        #: The history lacks the calls of finished phases and of compacted messages; the checkpoint has counted them.
        self.tool_calls = Counter(previous.tool_calls) | Counter(call.tool for call in calls)

    @property
    def proposed_writes(self) -> tuple[ProposedWrite, ...]:
        return self.overlay.writes if self.overlay is not None else ()

    def tool(self, call: ToolContext, *, effect: str, error: bool, took: timedelta) -> None:
        self.tool_calls[call.tool] += 1

    def step(self, step: int, usage: Usage) -> None:
        self._saver.update(self.make_partial_response())

    def make_partial_response(self, error: str | None = None) -> PartialResponse:
        """Return the response so far."""
        usage = self._state.usage
        return PartialResponse(
            model_id=self._cell.id,
            text=self.text,
            latency_ms=to_milliseconds(self._state.elapsed),
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost_usd=usage.cost_usd,
            proposed_writes=self.proposed_writes,
            tool_calls=dict(self.tool_calls),
            error=error,
        )


def _format_event(event: Event) -> str:
    """Return the event as a line for the log, or an empty string."""
    match event:
        case ReplyAdded():
            return f"model answered: {event.text}" if event.text else "model answered"
        case ToolCalled():
            return f"{event.tool} started"
        case ToolReturned():
            return f"{event.tool} failed" if event.error else f"{event.tool} done"
    return ""


def to_milliseconds(duration: timedelta) -> float:
    return duration / timedelta(milliseconds=1)
