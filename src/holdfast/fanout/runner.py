"""A store that several fan-outs of one process use is open until the last of them has ended.

Brings one cell of a fan-out after the other to its end.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from holdfast.app import App
from holdfast.checkpoint.codec import Checkpoint, read_checkpoint
from holdfast.checkpoint.errors import CheckpointError, RunNotFound
from holdfast.checkpoint.record import TERMINAL_STATUSES, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.errors import RunInterrupted, RunLost, RunParked, SaveFailed, Shutdown, format_error
from holdfast.core.execution.native import get_loop
from holdfast.fanout.cells import Cell
from holdfast.fanout.errors import WorkspaceChanged
from holdfast.fanout.progress import ProgressRecorder, to_milliseconds
from holdfast.fanout.saver import IncrementalSaver
from holdfast.fanout.snapshot import ModelResponse


@dataclass(slots=True)
class _StoreUse:
    users: int = 0
    is_open: bool = False
    #: Held while the store is opened or closed.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


#: Of the stores that are in use now, by the id of the object.
_STORE_USES: dict[int, _StoreUse] = {}


@asynccontextmanager
async def open_store(store: CheckpointStore) -> AsyncIterator[None]:
    """The store is open meanwhile. The first to come opens it, the last to leave closes it."""
    use = _STORE_USES.setdefault(id(store), _StoreUse())
    use.users += 1
    try:
        async with use.lock:
            if not use.is_open:
                await store.open()
                use.is_open = True
        yield
    finally:
        use.users -= 1
        try:
            async with use.lock:
                if use.is_open and not use.users:
                    use.is_open = False
                    await store.close()
        finally:
            if not use.users:
                _STORE_USES.pop(id(store), None)


log = logging.getLogger("holdfast.fanout")

#: The cell's run is not over when it stops with one of these.
_RESUMABLE_ERRORS = (RunInterrupted, RunParked, RunLost, CheckpointError)


class ConcurrencyLimits:
    """How many may run at once: in all, and of each provider."""

    def __init__(self, max_concurrency: int, max_per_provider: int | Mapping[str, int]) -> None:
        self.total = asyncio.Semaphore(max_concurrency)
        self._max_concurrency, self._max_per_provider = max_concurrency, max_per_provider
        self._providers: dict[str, asyncio.Semaphore] = {}

    def for_provider(self, provider: str) -> asyncio.Semaphore:
        given = self._max_per_provider
        limit = given if isinstance(given, int) else given.get(provider, self._max_concurrency)
        return self._providers.setdefault(provider, asyncio.Semaphore(limit))


class NonClosingStore:
    """A store that stays open when the App that was given it closes: the checkpoint of the whole may be in it, too."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def as_store(self) -> CheckpointStore:
        return cast(CheckpointStore, self)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class CellRunner:
    """Drives cells with an App."""

    def __init__(
        self,
        app: App,
        store: CheckpointStore,
        recorder: ProgressRecorder,
        saver: IncrementalSaver,
        *,
        retry_failed: bool,
    ) -> None:
        self._app, self._store, self._recorder, self._saver = app, store, recorder, saver
        self._retry_failed = retry_failed

    async def run(self, cell: Cell) -> None:
        """Bring the cell to its end, that into the checkpoint, and only then forget the cell's run."""
        run_id = cell.run_id(self._saver.fanout_id)
        try:
            error = await self._execute(cell, run_id)
            response = await self._load_response(cell, run_id, error)
        except _RESUMABLE_ERRORS as exc:
            await self._save_interrupted(cell, run_id, exc)
            return
        # A run that failed stays until every cell has ended: it can be gone on with.
        if await self._saver.mark_completed(response) and response.ok:
            try:
                await self._store.remove(run_id)
            except CheckpointError as exc:
                log.warning("run %s will be removed with the others: %s", run_id, exc)

    async def _execute(self, cell: Cell, run_id: str) -> Exception | None:
        """Drive the cell's run to its end; what it failed with, if it did."""
        try:
            labels = {"fanout": self._saver.fanout_id, "cell": cell.id}
            await self._app.submit(cell.agent.name, cell.prompt, run_id=run_id, labels=labels)
            status = (await self._store.get_record(run_id)).status
            if self._retry_failed and status in TERMINAL_STATUSES - {RunStatus.DONE}:
                await self._app.resume(run_id, on_cancel="interrupt")
            else:
                await self._app.run(cell.agent.name, cell.prompt, run_id=run_id, on_cancel="interrupt")
        except _RESUMABLE_ERRORS:
            raise
        except Exception as exc:  # the model's or a tool's own: this cell has failed, the others go on
            return exc
        return None

    async def _save_interrupted(self, cell: Cell, run_id: str, error: Exception) -> None:
        """The cell goes on when the fan-out is resumed."""
        record = self._recorder.get_recorder(run_id)
        known = next(snapshot for snapshot in self._saver.snapshots if snapshot.model_id == cell.id)
        partial = record.make_partial_response() if record is not None else known.to_partial()
        why = None if isinstance(error, Shutdown) else format_error(error)
        await self._saver.update(msgspec.structs.replace(partial, error=why))

    async def _load_response(self, cell: Cell, run_id: str, error: Exception | None) -> ModelResponse:
        """The response of a cell whose run is over, from what the store has of it."""
        try:
            stored = await self._store.load(run_id)
        except RunNotFound:
            if error is None:
                raise
            return ModelResponse(model_id=cell.id, error=format_error(error))
        if not stored.record.is_terminal:
            raise SaveFailed(f"the end of run {run_id} could not be stored")
        return self._build_response(cell, read_checkpoint(stored, get_loop(cell.agent).codec), error)

    def _build_response(self, cell: Cell, end: Checkpoint, error: Exception | None) -> ModelResponse:
        failed = end.outcome.error if end.outcome is not None else format_error(error) if error is not None else None
        record = self._recorder.get_recorder(end.meta.run_id)
        if record is None:
            # It had come to its end when an earlier process died.
            try:
                record = self._recorder.restore_recorder(cell, end.state)
            except WorkspaceChanged as exc:
                return ModelResponse(model_id=cell.id, error=failed or format_error(exc))
        partial = record.make_partial_response()
        used = end.outcome.usage if end.outcome is not None else end.state.usage
        return ModelResponse(
            model_id=cell.id,
            text=partial.text if failed is not None else _format_output(cell, end),
            latency_ms=to_milliseconds(end.state.elapsed),
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            reasoning_tokens=used.reasoning_tokens,
            cost_usd=used.cost_usd,
            proposed_writes=partial.proposed_writes,
            tool_calls=partial.tool_calls,
            error=failed,
        )


def _format_output(cell: Cell, end: Checkpoint) -> str:
    """What the run gave: text as it is, other output as JSON."""
    if end.outcome is None:
        return ""
    output = get_loop(cell.agent).load_output(end.outcome.output)
    return output if isinstance(output, str) else msgspec.json.encode(end.outcome.output).decode()
