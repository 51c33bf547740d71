"""Executes the cells of a fan-out, within its concurrency limits."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.checkpoint.codec import DecodedRun, decode_run
from holdfast.checkpoint.errors import CheckpointError, RunNotFound
from holdfast.checkpoint.record import TERMINAL_STATUSES, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.core.errors import RunInterrupted, RunLost, RunParked, SaveFailed, Shutdown, format_error
from holdfast.core.execution.native_loop import get_loop
from holdfast.fanout.cells import Cell, FanoutSettings
from holdfast.fanout.errors import WorkspaceChanged
from holdfast.fanout.progress import ProgressRecorder, to_milliseconds
from holdfast.fanout.saver import IncrementalSaver
from holdfast.fanout.snapshot import ModelResponse

log = logging.getLogger("holdfast.fanout")

#: A cell's run that stops with one of these can be resumed.
_RESUMABLE_ERRORS = (RunInterrupted, RunParked, RunLost, CheckpointError)


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


class CellRunner:
    """Executes cells with an App and reports their responses to the saver."""

    def __init__(
        self,
        app: App,
        store: RunStore,
        recorder: ProgressRecorder,
        saver: IncrementalSaver,
        settings: FanoutSettings,
    ) -> None:
        self._app, self._store, self._recorder, self._saver = app, store, recorder, saver
        self._retry_failed = settings.retry_failed
        self._limits = ConcurrencyLimits(settings)

    async def run(self, cell: Cell) -> None:
        """Execute the cell as soon as the limits permit."""
        # The provider's slot first: a cell that waits for its provider must not hold one of the slots for all.
        async with self._limits.for_provider(cell.provider), self._limits.total:
            await self._run(cell)

    async def _run(self, cell: Cell) -> None:
        run_id = cell.run_id(self._saver.fanout_id)
        try:
            error = await self._execute(cell, run_id)
            response = await self._load_response(cell, run_id, error)
        except _RESUMABLE_ERRORS as exc:
            await self._save_interrupted(cell, run_id, exc)
            return
        # Remove the run only when the checkpoint has the response. A failed run stays: retry_failed may resume it.
        if await self._saver.mark_completed(response) and response.ok:
            try:
                await self._store.remove(run_id)
            except CheckpointError as exc:
                log.warning("run %s will be removed with the others: %s", run_id, exc)

    async def _execute(self, cell: Cell, run_id: str) -> Exception | None:
        """Execute the cell's run. Return the error it failed with."""
        try:
            labels = {"fanout": self._saver.fanout_id, "cell": cell.id}
            await self._app.submit(cell.agent.name, cell.prompt, run_id=run_id, labels=labels)
            status = (await self._store.get_record(run_id)).status
            if self._retry_failed and status in TERMINAL_STATUSES - {RunStatus.DONE}:
                await self._wait(run_id, self._app.resume(run_id))
            else:
                await self._wait(run_id, self._app.run(cell.agent.name, cell.prompt, run_id=run_id))
        except _RESUMABLE_ERRORS:
            raise
        except Exception as exc:  # the model's or a tool's own error: this cell has failed, the others continue
            return exc
        return None

    async def _wait(self, run_id: str, end: Awaitable[Any]) -> None:
        """Wait for the end of a run. The App would wait until an unavailable provider is back: a fan-out does not.

        Raises:
            ModelUnavailable: the run was interrupted because its provider is unavailable.
        """
        outage, task = self._recorder.watch_outage(run_id), asyncio.ensure_future(end)
        try:
            await asyncio.wait([task, outage], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise outage.result()
            task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _save_interrupted(self, cell: Cell, run_id: str, error: Exception) -> None:
        recorder = self._recorder.get_recorder(run_id)
        known = next(snapshot for snapshot in self._saver.snapshots if snapshot.model_id == cell.id)
        partial = recorder.make_partial_response() if recorder is not None else known.to_partial()
        reason = None if isinstance(error, Shutdown) else format_error(error)
        await self._saver.update(msgspec.structs.replace(partial, error=reason))

    async def _load_response(self, cell: Cell, run_id: str, error: Exception | None) -> ModelResponse:
        """Return the response of a cell whose run is terminal, as the store has it."""
        try:
            stored = await self._store.load(run_id)
        except RunNotFound:
            if error is None:
                raise
            return ModelResponse(model_id=cell.id, error=format_error(error))
        if not stored.record.is_terminal:
            raise SaveFailed(f"the outcome of run {run_id} could not be stored")
        return self._build_response(cell, decode_run(stored, get_loop(cell.agent).codec), error)

    def _build_response(self, cell: Cell, checkpoint: DecodedRun, error: Exception | None) -> ModelResponse:
        outcome = checkpoint.outcome
        failure = outcome.error if outcome is not None else format_error(error) if error is not None else None
        recorder = self._recorder.get_recorder(checkpoint.info.run_id)
        if recorder is None:
            # The run finished in an earlier process.
            try:
                recorder = self._recorder.restore_recorder(cell, checkpoint.state)
            except WorkspaceChanged as exc:
                return ModelResponse(model_id=cell.id, error=failure or format_error(exc))
        partial = recorder.make_partial_response()
        usage = outcome.usage if outcome is not None else checkpoint.state.usage
        return ModelResponse(
            model_id=cell.id,
            text=partial.text if failure is not None else _format_output(cell, checkpoint),
            latency_ms=to_milliseconds(checkpoint.state.elapsed),
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost_usd=usage.cost_usd,
            proposed_writes=partial.proposed_writes,
            tool_calls=partial.tool_calls,
            error=failure,
        )


def _format_output(cell: Cell, checkpoint: DecodedRun) -> str:
    """Return the run's output: text as it is, other values as JSON."""
    if checkpoint.outcome is None:
        return ""
    output = get_loop(cell.agent).load_output(checkpoint.outcome.output)
    return output if isinstance(output, str) else msgspec.json.encode(checkpoint.outcome.output).decode()
