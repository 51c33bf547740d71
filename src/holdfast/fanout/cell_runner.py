"""The agent of a fan-out, and what asks its cells: bounded, each as a child run, with its progress recorded."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.checkpoint.store import RunStore, get_record
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import Tool, ToolSchema
from holdfast.core.agents.tool_context import current_call
from holdfast.core.errors import DefinitionError, ProcessExit
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Message, Reply, ToolCall
from holdfast.core.run.run_events import Event, ReplyAdded, StepStarted, ToolCalled, ToolReturned
from holdfast.core.run.waiting import RunWaiting
from holdfast.fanout.cells import Cell, FanoutSettings
from holdfast.fanout.checkpoint_file import IncrementalSaver
from holdfast.fanout.errors import FanoutError
from holdfast.fanout.overlay import Overlay
from holdfast.fanout.responses import (
    ASK_TOOL,
    CellRecord,
    ModelResponse,
    PartialResponse,
    ResponseSnapshot,
    read_cell,
    to_milliseconds,
)
from holdfast.fanout.workspace import Workspace, WriteSnapshot
from holdfast.runtime.reading.run_summary import summarize_run

log = logging.getLogger("holdfast.fanout")


class FanoutAgent:
    """The agent of a fan-out's run. Its "model" is the plan: one call for each cell, then the end."""

    def __init__(self, name: str, cells: Sequence[Cell]) -> None:
        self.name = name
        self._cells = cells
        #: Asks the cells. Set by `Fanout.run`.
        self.runner: CellRunner | None = None

    async def build(self, info: RunInfo) -> Agent:
        if self.runner is None:
            raise DefinitionError(f"fan-out {info.run_id} is not open here: call `Fanout.run` with this App")
        ask = Tool(self.runner.ask, name=ASK_TOOL, effect=Effect.IDEMPOTENT)
        return Agent(name=self.name, model=self._plan, tools=[ask])

    async def _plan(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if not any(isinstance(message, Reply) for message in messages):
            calls = [ToolCall(id=cell.id, name=ASK_TOOL, arguments={"cell": cell.id}) for cell in self._cells]
            return Reply(tool_calls=tuple(calls))
        return Reply(text=f"{len(self._cells)} models were asked")


class ConcurrencyLimits:
    """Semaphores for all cells and for the cells of each provider."""

    def __init__(self, settings: FanoutSettings) -> None:
        self.total = asyncio.Semaphore(settings.max_concurrency)
        self._settings = settings
        self._providers: dict[str, asyncio.Semaphore] = {}

    def for_provider(self, provider: str) -> asyncio.Semaphore:
        given = self._settings.max_per_provider
        limit = given if isinstance(given, int) else given.get(provider, self._settings.max_concurrency)
        return self._providers.setdefault(provider, asyncio.Semaphore(limit))


@dataclass(slots=True)
class _Progress:
    """A cell that is being asked."""

    cell: Cell
    text: str
    tool_calls: Counter[str]


class CellRunner:
    """Asks the cells of one fan-out within its limits. As the listener of their runs, records their progress."""

    def __init__(
        self,
        cells: Sequence[Cell],
        store: RunStore,
        settings: FanoutSettings,
        *,
        workspace: Workspace | None,
        overlays: dict[str, Overlay],
        saver: IncrementalSaver | None,
        given: Sequence[ResponseSnapshot],
        verbose: bool,
    ) -> None:
        """Make the runner of one call of `Fanout.run`.

        Args:
            overlays: receives the overlay of each run, by run id. The file tools read it.
            saver: writes the checkpoint file.
            given: the responses in the checkpoint file. Those that are completed are taken over.
            verbose: log each step.
        """
        self._cells = {cell.id: cell for cell in cells}
        self._store, self._workspace, self._overlays, self._saver = store, workspace, overlays, saver
        self._listener = settings.listener
        self._verbose = verbose
        self._given = {each.model_id: each for each in given if each.completed}
        self._limits = ConcurrencyLimits(settings)
        #: By run id.
        self._progress: dict[str, _Progress] = {}
        #: Cells that are being asked, or wait for their turn.
        self._pending: set[str] = set()
        self._settled = asyncio.Condition()

    # -- the tool of the fan-out's run --------------------------------------------------------------------------

    async def ask(self, cell: str) -> dict[str, Any]:
        """Ask one model."""
        found = self._cells[cell]
        self._pending.add(cell)
        try:
            record = await self.run_within_limits(found, self._ask)
        except (RunWaiting, ProcessExit):
            raise  # the call waits, and the others continue; or all runs of the process stop
        except Exception:
            # The error of an interrupted cell stops its siblings: they reach the end, or their next step, first.
            await self._settle(cell)
            async with self._settled:
                while self._pending:
                    await self._settled.wait()
            raise
        finally:
            await self._settle(cell)
        fields: dict[str, Any] = msgspec.to_builtins(record)
        return fields

    async def _settle(self, cell: str) -> None:
        async with self._settled:
            self._pending.discard(cell)
            self._settled.notify_all()

    async def run_within_limits(self, cell: Cell, work: Callable[[Cell], Any]) -> Any:
        # The provider's slot first: a cell that waits for its provider must not hold one of the slots for all.
        async with self._limits.for_provider(cell.provider), self._limits.total:
            return await work(cell)

    async def _ask(self, cell: Cell) -> CellRecord:
        is_new = await self.open_cell(cell)
        if is_new and cell.id in self._given:
            return CellRecord(given=self._given[cell.id])
        try:
            await current_call().run(cell.agent, cell.prompt, key=cell.id)
        except Exception:  # a model may raise anything: the stored run says whether it has failed
            response = await self.read_response(cell)
            if response is None or response.interrupted:
                raise
        else:
            response = await self.read_response(cell)
        if response is None:
            return CellRecord()
        await self.mark_completed(response)
        return CellRecord(proposed_writes=response.proposed_writes, failed=not response.ok)

    # -- cells --------------------------------------------------------------------------------------------------

    async def open_cell(self, cell: Cell) -> bool:
        """Restore the progress and the proposed writes of a cell before its run continues. Return whether it is new.

        Raises:
            WorkspaceChanged: the proposed writes cannot be restored.
        """
        stored = await read_cell(self._store, cell.run_id, cell.id)
        if self._workspace is not None:
            overlay = self._overlays[cell.run_id] = Overlay(self._workspace)
            overlay.replay(stored.calls if stored is not None else ())
        text, counts = (stored.response.text, stored.response.tool_calls) if stored is not None else ("", {})
        self._progress[cell.run_id] = _Progress(cell, text, Counter(counts))
        return stored is None

    async def read_response(self, cell: Cell) -> ModelResponse | None:
        """Return the response of an open cell; `None` if it is not in the store."""
        stored = await read_cell(self._store, cell.run_id, cell.id)
        return None if stored is None else msgspec.structs.replace(stored.response, proposed_writes=self._writes(cell))

    def _writes(self, cell: Cell) -> tuple[WriteSnapshot, ...]:
        overlay = self._overlays.get(cell.run_id)
        return overlay.writes if overlay is not None else ()

    async def mark_completed(self, response: ModelResponse) -> None:
        """Write the final response of a cell to the checkpoint file."""
        if self._saver is not None:
            await self._save(self._saver.mark_completed, ResponseSnapshot.from_response(response))

    async def _save(self, write: Callable[[str, ResponseSnapshot], None], snapshot: ResponseSnapshot) -> None:
        try:
            await asyncio.to_thread(write, snapshot.model_id, snapshot)
        except (OSError, FanoutError) as exc:  # the store has the response: the file must not fail the model's run
            log.warning("the checkpoint file was not written: %s", exc)

    # -- listener -----------------------------------------------------------------------------------------------

    async def on_event(self, info: RunInfo, event: Event) -> None:
        if (progress := self._progress.get(info.run_id)) is not None:
            await self._record(progress, event)
        if self._listener is not None:
            await self._listener.on_event(info, event)

    async def on_output(self, info: RunInfo, output: Any) -> None:
        if self._listener is not None:
            await self._listener.on_output(info, output)

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        if self._listener is not None:
            await self._listener.on_error(info, error)

    async def _record(self, progress: _Progress, event: Event) -> None:
        if self._verbose and (line := _format_event(event)):
            log.info("%s: step %d: %s", progress.cell.id, event.step, line)
        match event:
            case ReplyAdded() if event.text:
                progress.text = event.text
            case ToolReturned():
                progress.tool_calls[event.tool] += 1
            case StepStarted() if event.step > 1 and self._saver is not None:
                snapshot = ResponseSnapshot.from_partial(progress.cell.id, await self._make_partial(progress))
                await self._save(self._saver.update, snapshot)

    async def _make_partial(self, progress: _Progress) -> PartialResponse:
        """Return the response as of the last finished step."""
        run = summarize_run(await get_record(self._store, progress.cell.run_id))
        return PartialResponse(
            text=progress.text,
            latency_ms=to_milliseconds(run.elapsed),
            input_tokens=run.usage.input_tokens,
            output_tokens=run.usage.output_tokens,
            reasoning_tokens=run.usage.reasoning_tokens,
            cost_usd=run.usage.cost_usd,
            proposed_writes=self._writes(progress.cell),
            tool_calls=dict(progress.tool_calls),
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
