"""Looks on while the cells of a fan-out run: reports each finished turn, and keeps each cell's proposed writes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from holdfast.core.execution.loop import FinishedCall
from holdfast.core.execution.native import get_loop
from holdfast.core.info import RunInfo
from holdfast.core.message import Usage
from holdfast.core.ports import Recorder, RunEvent, RunListener
from holdfast.core.state import RunState
from holdfast.core.tool_context import ToolContext
from holdfast.fanout.cells import Cell
from holdfast.fanout.errors import FanoutError
from holdfast.fanout.overlay import Overlay
from holdfast.fanout.saver import IncrementalSaver
from holdfast.fanout.snapshot import PartialResponse, ProposedWrite, Snapshot
from holdfast.fanout.workspace import Workspace


class ProgressRecorder:
    """The audit and the delivery of a fan-out's runs."""

    def __init__(self, cells: Mapping[str, Cell], workspace: Workspace | None, listener: RunListener | None) -> None:
        """Look on.

        Args:
            cells: by run id.
        """
        self._cells, self._workspace, self._listener = cells, workspace, listener
        self._recorders: dict[str, CellRecorder] = {}
        self._saver: IncrementalSaver | None = None
        self._previous_snapshots: dict[str, Snapshot] = {}

    def attach_saver(self, saver: IncrementalSaver) -> None:
        self._saver = saver
        self._previous_snapshots = {snapshot.model_id: snapshot for snapshot in saver.snapshots}

    def overlay(self, run_id: str) -> Overlay:
        """The proposed writes of a run."""
        record = self._recorders.get(run_id)
        if record is None or record.overlay is None:
            raise FanoutError(f"run {run_id} is none of a fan-out with a folder")
        return record.overlay

    def get_recorder(self, run_id: str) -> "CellRecorder | None":
        """What was seen of a run that was driven here."""
        return self._recorders.get(run_id)

    # -- the audit ----------------------------------------------------------------------------------------------

    def begin(self, info: RunInfo, state: RunState) -> Recorder:
        """Look on at one run. What it had proposed is read from its saved history.

        Raises:
            WorkspaceChanged: that cannot be known any more.
        """
        cell = self._cells.get(info.run_id)
        if cell is None:
            return NullRecorder()  # a run that a cell has started
        record = self._recorders[info.run_id] = self.restore_recorder(cell, state)
        return record

    def restore_recorder(self, cell: Cell, state: RunState) -> "CellRecorder":
        """What a run in this state has done so far. Raises as `begin` does."""
        assert self._saver is not None, "nothing runs before it can be reported"
        calls = get_loop(cell.agent).finished_calls(state.history, state.results)
        record = CellRecorder(cell, state, self._saver, self._previous_snapshots[cell.id], calls)
        if self._workspace is not None:
            record.overlay = Overlay(self._workspace)
            record.overlay.replay(calls)
        return record

    # -- the delivery -------------------------------------------------------------------------------------------

    async def on_event(self, info: RunInfo, event: RunEvent) -> None:
        record = self._recorders.get(info.run_id)
        if record is not None and event.kind == "reply" and event.text:
            record.text = event.text
        if self._listener is not None:
            await self._listener.on_event(info, event)

    async def on_output(self, info: RunInfo, output: Any) -> None:
        if self._listener is not None:
            await self._listener.on_output(info, output)

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
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
    """What is known of one cell while it runs. Each finished turn is reported to the saver."""

    def __init__(
        self, cell: Cell, state: RunState, saver: IncrementalSaver, previous: Snapshot, calls: Sequence[FinishedCall]
    ) -> None:
        self._cell, self._state, self._saver = cell, state, saver
        self.text = previous.text
        self.overlay: Overlay | None = None
        #: Of phases that are over, and of what was compacted, the checkpoint knows more than the conversation does.
        self.tool_calls = Counter(previous.tool_calls) | Counter(call.tool for call in calls)

    @property
    def proposed_writes(self) -> tuple[ProposedWrite, ...]:
        return self.overlay.writes if self.overlay is not None else ()

    def tool(self, call: ToolContext, *, effect: str, error: bool, took: timedelta) -> None:
        self.tool_calls[call.tool] += 1

    def step(self, step: int, usage: Usage) -> None:
        self._saver.update(self.make_partial_response())

    def make_partial_response(self, error: str | None = None) -> PartialResponse:
        """The response so far."""
        used = self._state.usage
        return PartialResponse(
            model_id=self._cell.id,
            text=self.text,
            latency_ms=to_milliseconds(self._state.elapsed),
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            reasoning_tokens=used.reasoning_tokens,
            cost_usd=used.cost_usd,
            proposed_writes=self.proposed_writes,
            tool_calls=dict(self.tool_calls),
            error=error,
        )


def to_milliseconds(duration: timedelta) -> float:
    return duration / timedelta(milliseconds=1)
