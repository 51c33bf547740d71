"""Brings one cell of a fan-out after the other to its end."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast.app import App
from holdfast.checkpoint.codec import Checkpoint, read_checkpoint
from holdfast.checkpoint.errors import CheckpointError, RunNotFound
from holdfast.checkpoint.lifecycle import OVER, Status
from holdfast.checkpoint.store import CheckpointStore
from holdfast.fanout.cells import Cell
from holdfast.fanout.errors import FolderChanged
from holdfast.fanout.saver import IncrementalSaver
from holdfast.fanout.snapshot import ModelResponse
from holdfast.fanout.watching import Observer, milliseconds
from holdfast.run.errors import NotSaved, RunInterrupted, RunLost, RunParked, Shutdown, described
from holdfast.run.native import loop_of

log = logging.getLogger("holdfast.fanout")

#: Past every entry: loads the record alone.
_RECORD_ONLY = 2**62

#: The cell's run is not over when it stops with one of these.
_LEFT = (RunInterrupted, RunParked, RunLost, CheckpointError)


class Slots:
    """How many may run at once: in all, and of each provider."""

    def __init__(self, limit: int, per_provider: int | Mapping[str, int]) -> None:
        self.overall = asyncio.Semaphore(limit)
        self._limit, self._per_provider = limit, per_provider
        self._providers: dict[str, asyncio.Semaphore] = {}

    def of(self, provider: str) -> asyncio.Semaphore:
        given = self._per_provider
        limit = given if isinstance(given, int) else given.get(provider, self._limit)
        return self._providers.setdefault(provider, asyncio.Semaphore(limit))


class LeftOpen:
    """A store that stays open when the App that was given it closes: the checkpoint of the whole may be in it, too."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def as_store(self) -> CheckpointStore:
        return cast(CheckpointStore, self)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Driver:
    """Drives cells with an App."""

    def __init__(
        self, app: App, store: CheckpointStore, observer: Observer, saver: IncrementalSaver, *, retry_failed: bool
    ) -> None:
        self._app, self._store, self._observer, self._saver = app, store, observer, saver
        self._retry_failed = retry_failed

    async def drive(self, cell: Cell) -> None:
        """Bring the cell to its end, that into the checkpoint, and only then forget the cell's run."""
        run_id = cell.run_id(self._saver.fanout_id)
        try:
            error = await self._go_on(cell, run_id)
            response = await self._ended(cell, run_id, error)
        except _LEFT as exc:
            await self._leave(cell, run_id, exc)
            return
        # A run that failed stays until every cell has ended: it can be gone on with.
        if await self._saver.mark_completed(response) and response.ok:
            try:
                await self._store.remove(run_id)
            except CheckpointError as exc:
                log.warning("run %s will be removed with the others: %s", run_id, exc)

    async def _go_on(self, cell: Cell, run_id: str) -> Exception | None:
        """Drive the cell's run to its end; what it failed with, if it did."""
        try:
            labels = {"fanout": self._saver.fanout_id, "cell": cell.id}
            await self._app.submit(cell.agent.name, cell.prompt, run_id=run_id, labels=labels)
            status = (await self._store.load(run_id, after=_RECORD_ONLY)).record.status
            if self._retry_failed and status in OVER - {Status.DONE}:
                await self._app.resume(run_id, left_with_caller=True)
            else:
                await self._app.run(cell.agent.name, cell.prompt, run_id=run_id, left_with_caller=True)
        except _LEFT:
            raise
        except Exception as exc:  # the model's or a tool's own: this cell has failed, the others go on
            return exc
        return None

    async def _leave(self, cell: Cell, run_id: str, error: Exception) -> None:
        """The cell goes on when the fan-out is resumed."""
        record = self._observer.record(run_id)
        known = next(snapshot for snapshot in self._saver.snapshots if snapshot.model_id == cell.id)
        partial = record.partial() if record is not None else known.partial()
        why = None if isinstance(error, Shutdown) else described(error)
        await self._saver.update(msgspec.structs.replace(partial, error=why))

    async def _ended(self, cell: Cell, run_id: str, error: Exception | None) -> ModelResponse:
        """The response of a cell whose run is over, from what the store has of it."""
        try:
            stored = await self._store.load(run_id)
        except RunNotFound:
            if error is None:
                raise
            return ModelResponse(model_id=cell.id, error=described(error))
        if not stored.record.over:
            raise NotSaved(f"the end of run {run_id} could not be stored")
        return self._response(cell, read_checkpoint(stored, loop_of(cell.agent).codec), error)

    def _response(self, cell: Cell, end: Checkpoint, error: Exception | None) -> ModelResponse:
        failed = end.outcome.error if end.outcome is not None else described(error) if error is not None else None
        record = self._observer.record(end.meta.run_id)
        if record is None:
            # It had come to its end when an earlier process died.
            try:
                record = self._observer.look_at(cell, end.state)
            except FolderChanged as exc:
                return ModelResponse(model_id=cell.id, error=failed or described(exc))
        partial = record.partial()
        used = end.outcome.usage if end.outcome is not None else end.state.usage
        return ModelResponse(
            model_id=cell.id,
            text=partial.text if failed is not None else _text(cell, end),
            latency_ms=milliseconds(end.state.elapsed),
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            reasoning_tokens=used.reasoning_tokens,
            cost_usd=used.cost_usd,
            proposed_writes=partial.proposed_writes,
            tool_calls=partial.tool_calls,
            error=failed,
        )


def _text(cell: Cell, end: Checkpoint) -> str:
    """What the run gave: text as it is, other output as JSON."""
    if end.outcome is None:
        return ""
    output = loop_of(cell.agent).load_output(end.outcome.output)
    return output if isinstance(output, str) else msgspec.json.encode(end.outcome.output).decode()
