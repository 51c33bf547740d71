"""Looks on while the cells of a fan-out run: reports each finished turn, and keeps each cell's proposed writes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from holdfast.fanout.cells import Cell
from holdfast.fanout.errors import FanoutError
from holdfast.fanout.folder import WorkFolder
from holdfast.fanout.overlay import Overlay
from holdfast.fanout.saver import IncrementalSaver
from holdfast.fanout.snapshot import PartialResponse, ProposedWrite, Snapshot
from holdfast.run.call import CallContext
from holdfast.run.info import RunInfo
from holdfast.run.loop import FinishedCall
from holdfast.run.native import loop_of
from holdfast.run.ports import Delivery, Recorder, RunEvent
from holdfast.run.state import RunState
from holdfast.run.usage import Usage


class Observer:
    """The audit and the delivery of a fan-out's runs."""

    def __init__(self, cells: Mapping[str, Cell], folder: WorkFolder | None, delivery: Delivery | None) -> None:
        """Look on.

        Args:
            cells: by run id.
        """
        self._cells, self._folder, self._delivery = cells, folder, delivery
        self._records: dict[str, CellRecord] = {}
        self._saver: IncrementalSaver | None = None
        self._earlier: dict[str, Snapshot] = {}

    def report_to(self, saver: IncrementalSaver) -> None:
        self._saver = saver
        self._earlier = {snapshot.model_id: snapshot for snapshot in saver.snapshots}

    def overlay(self, run_id: str) -> Overlay:
        """The proposed writes of a run."""
        record = self._records.get(run_id)
        if record is None or record.overlay is None:
            raise FanoutError(f"run {run_id} is none of a fan-out with a folder")
        return record.overlay

    def record(self, run_id: str) -> "CellRecord | None":
        """What was seen of a run that was driven here."""
        return self._records.get(run_id)

    # -- the audit ----------------------------------------------------------------------------------------------

    def begin(self, info: RunInfo, state: RunState) -> Recorder:
        """Look on at one run. What it had proposed is read from its saved history.

        Raises:
            FolderChanged: that cannot be known any more.
        """
        cell = self._cells.get(info.run_id)
        if cell is None:
            return _Blind()  # a run that a cell has started
        record = self._records[info.run_id] = self.look_at(cell, state)
        return record

    def look_at(self, cell: Cell, state: RunState) -> "CellRecord":
        """What a run in this state has done so far. Raises as `begin` does."""
        assert self._saver is not None, "nothing runs before it can be reported"
        calls = loop_of(cell.agent).finished_calls(state.history, state.results)
        record = CellRecord(cell, state, self._saver, self._earlier[cell.id], calls)
        if self._folder is not None:
            record.overlay = Overlay(self._folder)
            record.overlay.replay(calls)
        return record

    # -- the delivery -------------------------------------------------------------------------------------------

    async def progress(self, info: RunInfo, event: RunEvent) -> None:
        record = self._records.get(info.run_id)
        if record is not None and event.kind == "reply" and event.text:
            record.text = event.text
        if self._delivery is not None:
            await self._delivery.progress(info, event)

    async def output(self, info: RunInfo, output: Any) -> None:
        if self._delivery is not None:
            await self._delivery.output(info, output)

    async def error(self, info: RunInfo, error: BaseException) -> None:
        if self._delivery is not None:
            await self._delivery.error(info, error)


class _Blind:
    """Records nothing."""

    def start(self, *, resumed: bool) -> None: ...

    def step(self, iteration: int, usage: Usage) -> None: ...

    def tool(self, call: CallContext, *, effect: str, error: bool, took: timedelta) -> None: ...

    def event(self, name: str, detail: str) -> None: ...

    def close(self, status: str, usage: Usage, error: BaseException | None) -> None: ...


class CellRecord(_Blind):
    """What is known of one cell while it runs. Each finished turn is reported to the saver."""

    def __init__(
        self, cell: Cell, state: RunState, saver: IncrementalSaver, earlier: Snapshot, calls: Sequence[FinishedCall]
    ) -> None:
        self._cell, self._state, self._saver = cell, state, saver
        self.text = earlier.text
        self.overlay: Overlay | None = None
        #: Of phases that are over, and of what was compacted, the checkpoint knows more than the conversation does.
        self.tool_calls = Counter(earlier.tool_calls) | Counter(call.tool for call in calls)

    @property
    def proposed_writes(self) -> tuple[ProposedWrite, ...]:
        return self.overlay.writes if self.overlay is not None else ()

    def tool(self, call: CallContext, *, effect: str, error: bool, took: timedelta) -> None:
        self.tool_calls[call.tool] += 1

    def step(self, iteration: int, usage: Usage) -> None:
        self._saver.update(self.partial())

    def partial(self, error: str | None = None) -> PartialResponse:
        """The response so far."""
        used = self._state.usage
        return PartialResponse(
            model_id=self._cell.id,
            text=self.text,
            latency_ms=milliseconds(self._state.elapsed),
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            reasoning_tokens=used.reasoning_tokens,
            cost_usd=used.cost_usd,
            proposed_writes=self.proposed_writes,
            tool_calls=dict(self.tool_calls),
            error=error,
        )


def milliseconds(duration: timedelta) -> float:
    return duration / timedelta(milliseconds=1)
