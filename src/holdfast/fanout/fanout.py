"""Fanout: one prompt to many models at the same time, each as a durable run."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.checkpoint.store import RunStore
from holdfast.concurrency import shielded
from holdfast.config import CheckpointSettings, Retention, WorkerSettings
from holdfast.core.agents.tool import Tool
from holdfast.core.run.info import check_run_id, new_run_id
from holdfast.fanout.cells import Cell, CellSettings, FanoutSettings, ModelSpecs, Variant, build_cells, make_cell_run_id
from holdfast.fanout.checkpoint import FanoutCheckpoint
from holdfast.fanout.errors import FanoutError, FanoutMismatch
from holdfast.fanout.finished import keep_finished
from holdfast.fanout.overlay import Overlay, make_file_tools
from holdfast.fanout.progress import ProgressRecorder
from holdfast.fanout.runner import CellRunner
from holdfast.fanout.saver import IncrementalSaver
from holdfast.fanout.snapshot import ModelResponse, Snapshot
from holdfast.fanout.storage import CheckpointFile, CheckpointLocation, CheckpointRun
from holdfast.fanout.workspace import Workspace
from holdfast.stores.from_url import store_from_url
from holdfast.stores.shared import SharedStore

#: A model's run stays in the store until the checkpoint has its response, even if the resume comes years later.
_TEN_YEARS = timedelta(days=3650)
_RUN_RETENTION = Retention(done=_TEN_YEARS, failed=_TEN_YEARS, cancelled=_TEN_YEARS)


class Fanout:
    """One prompt to N models, or to N models times M variants, at the same time.

    Each cell (a model, or a model with a variant) is a durable run, and the fan-out has one checkpoint. `run` resumes
    an interrupted fan-out: it does not ask models again that have answered, and resumes the others mid-loop.
    """

    def __init__(
        self,
        prompt: str,
        models: ModelSpecs,
        *,
        variants: Sequence[Variant] = (),
        instructions: str = "",
        tools: Sequence[Tool | Callable[..., Any]] = (),
        workspace: Path | str | None = None,
        store: RunStore | str = "",
        checkpoint: Path | str | None = None,
        on_complete: Callable[[Sequence[ModelResponse]], None] | None = None,
        settings: FanoutSettings | None = None,
    ) -> None:
        """Define a fan-out; `run` starts it.

        Args:
            models: model callables, agents, or names such as `openai:gpt-5`, by id. Agents and names may be given
                as a sequence: their names are the ids.
            instructions: for models; an agent has its own.
            tools: for models; an agent has its own.
            workspace: a folder whose files the models may read and propose changes to.
            store: stores the runs of the models: a store, or the URL of one. `run` opens and closes it. Fan-outs that
                run at the same time share one through a `SharedStore`.
            checkpoint: the checkpoint file of the fan-out. Without it the checkpoint is in the store.
            on_complete: called with the responses when every model has finished, before the checkpoint is removed.

        Raises:
            DefinitionError: something is not a model, or two have the same id.
            PathRefused: the workspace does not exist.
            InvalidRunId: `fanout_id` is not a valid prefix of run ids.
        """
        self._settings = settings or FanoutSettings()
        self._prompt, self._on_complete = prompt, on_complete
        self._workspace = Workspace(workspace) if workspace is not None else None
        #: By run id.
        self._overlays: dict[str, Overlay] = {}
        file_tools = make_file_tools(self._overlays) if self._workspace is not None else ()
        cell_settings = CellSettings(
            instructions=instructions, tools=tuple(tools), bounds=self._settings.bounds, file_tools=file_tools
        )
        self._cells = build_cells(models, variants, prompt, cell_settings)
        given = store_from_url(store or None) if isinstance(store, str) else store
        self._store = given if isinstance(given, SharedStore) else SharedStore(given)
        # Absolute: a tool may change the working directory.
        self._checkpoint_path = Path(checkpoint).absolute() if checkpoint is not None else None
        if fanout_id := self._settings.fanout_id:
            for cell in self._cells:
                check_run_id(cell.run_id(fanout_id))
        #: Once `run` has returned and every model has finished: the run of the store that keeps the responses.
        #: `load_finished` reads them.
        self.finished_id: str | None = None
        #: The open App.
        self._app: App | None = None
        self._stopped = False

    @property
    def adapter_ids(self) -> tuple[str, ...]:
        """The ids of the cells, in their order."""
        return tuple(cell.id for cell in self._cells)

    def run_sync(self, *, resume: bool = True) -> list[ModelResponse]:
        """`run` for code without an event loop."""
        return asyncio.run(self.run(resume=resume))

    async def run(self, *, resume: bool = True) -> list[ModelResponse]:
        """Ask every model, and return the responses in the order of the models.

        A model that fails has an error in its response; the others continue. If the fan-out is stopped, the responses
        of unfinished models are marked as interrupted and the checkpoint stays. It also stays if this call is
        cancelled or the event loop ends.

        Args:
            resume: resume an interrupted fan-out; if False, discard it and start over.

        Raises:
            CorruptCheckpoint: the checkpoint cannot be read.
            FanoutMismatch: the checkpoint belongs to another prompt or to other models.
            FanoutBusy: another process executes this fan-out.
            StoreError: the store failed.
        """
        self._stopped, self.finished_id = False, None
        await self._store.open()
        try:
            location = self._make_location()
            try:
                checkpoint = await location.open()
                if checkpoint is not None and not resume:
                    await _discard(checkpoint, location, self._store)
                    checkpoint = None
                return await self._run(location, checkpoint)
            finally:
                await location.close()
        finally:
            await self._store.close()

    async def stop(self, timeout: timedelta | None = None) -> None:
        """Stop after the current steps. `run` then returns."""
        self._stopped = True
        if self._app is not None:
            await self._app.shutdown(timeout)

    # -- the checkpoint -----------------------------------------------------------------------------------------

    def _make_location(self) -> CheckpointLocation:
        if self._checkpoint_path is not None:
            return CheckpointFile(self._checkpoint_path)
        return CheckpointRun(self._store, self._stable_id())

    def _stable_id(self) -> str:
        if self._settings.fanout_id:
            return self._settings.fanout_id
        digest = hashlib.sha256(msgspec.json.encode([self._prompt, self.adapter_ids])).hexdigest()
        return f"fanout-{digest[:16]}"

    def _new_id(self) -> str:
        if self._checkpoint_path is None or self._settings.fanout_id:
            return self._stable_id()
        return f"fanout-{new_run_id()}"

    def _check_match(self, checkpoint: FanoutCheckpoint) -> None:
        if (checkpoint.prompt, checkpoint.adapter_ids) != (self._prompt, self.adapter_ids):
            raise FanoutMismatch(
                f"the checkpoint belongs to another fan-out, of {', '.join(checkpoint.adapter_ids)} and the prompt "
                f"{checkpoint.prompt[:60]!r}: resume that one, or discard it with resume=False"
            )

    def _make_saver(self, location: CheckpointLocation, checkpoint: FanoutCheckpoint | None) -> IncrementalSaver:
        snapshots = checkpoint.snapshots if checkpoint is not None else ()
        verbose = self._settings.verbose or (checkpoint is not None and checkpoint.verbose)
        return IncrementalSaver(
            location,
            self._prompt,
            self.adapter_ids,
            verbose,
            snapshots=[self._reopen_if_failed(snapshot) for snapshot in snapshots],
            fanout_id=checkpoint.fanout_id if checkpoint is not None else self._new_id(),
            timestamp=checkpoint.timestamp if checkpoint is not None else None,
            keep_finished=True,
        )

    def _reopen_if_failed(self, snapshot: Snapshot) -> Snapshot:
        if self._settings.retry_failed and snapshot.status == "failed":
            return msgspec.structs.replace(snapshot, interrupted=True, error=None)
        return snapshot

    # -- the cells ----------------------------------------------------------------------------------------------

    async def _run(self, location: CheckpointLocation, checkpoint: FanoutCheckpoint | None) -> list[ModelResponse]:
        if checkpoint is not None:
            self._check_match(checkpoint)
        saver = self._make_saver(location, checkpoint)
        try:
            await self._run_cells(saver)
            responses = [snapshot.to_response() for snapshot in saver.snapshots]
            if not any(response.interrupted for response in responses):
                await self._complete(responses, saver)
            return responses
        finally:
            await shielded(saver.aclose())

    async def _complete(self, responses: Sequence[ModelResponse], saver: IncrementalSaver) -> None:
        """Report and keep the responses, then remove the runs and the checkpoint."""
        if self._on_complete is not None:
            await asyncio.to_thread(self._on_complete, responses)
        if self._settings.retention:
            checkpoint = FanoutCheckpoint(
                fanout_id=saver.fanout_id,
                prompt=self._prompt,
                timestamp=saver.timestamp,
                adapter_ids=self.adapter_ids,
                snapshots=saver.snapshots,
            )
            self.finished_id = await keep_finished(self._store, checkpoint, self._settings.retention)
        for cell in self._cells:
            await self._store.remove(cell.run_id(saver.fanout_id))
        await saver.clear()

    async def _run_cells(self, saver: IncrementalSaver) -> None:
        interrupted = {snapshot.model_id: snapshot for snapshot in saver.snapshots if snapshot.interrupted}
        cells = [cell for cell in self._cells if cell.id in interrupted]
        if not cells:
            return
        # The checkpoint is written before the first request, so everything that follows can be resumed.
        flushes = [saver.update(snapshot.to_partial()) for snapshot in interrupted.values()]
        if not await flushes[-1]:
            raise FanoutError("the checkpoint could not be written, so no model was asked: see the log")
        self._overlays.clear()
        recorder = ProgressRecorder(self._cells, saver, self._workspace, self._overlays, self._settings.listener)
        app = self._make_app(cells, recorder)
        runner = CellRunner(app, self._store, recorder, saver, self._settings)
        async with app:
            self._app = app
            if not self._stopped:
                await _run_all(runner, cells, app)

    def _make_app(self, cells: Sequence[Cell], recorder: ProgressRecorder) -> App:
        worker = WorkerSettings(
            take_runs=False,
            shutdown_timeout=self._settings.shutdown_timeout,
            handle_signals=self._settings.handle_signals,
        )
        return App(
            [cell.agent for cell in cells],
            self._store,
            checkpoint=CheckpointSettings(retention=_RUN_RETENTION),
            worker=worker,
            audit=recorder,
            budget=self._settings.budget,
            listener=recorder,
        )


async def discard(path: Path | str, store: RunStore) -> None:
    """Remove the checkpoint in this file and the runs of its models, which are in the open `store`.

    Raises:
        CorruptCheckpoint: the checkpoint cannot be read.
        FanoutBusy: a process executes the fan-out.
        StoreError: the store failed.
    """
    location = CheckpointFile(Path(path))
    try:
        checkpoint = await location.open()
        if checkpoint is not None:
            await _discard(checkpoint, location, store)
    finally:
        await location.close()


async def _discard(checkpoint: FanoutCheckpoint, location: CheckpointLocation, store: RunStore) -> None:
    # The checkpoint last: it has the ids of the runs.
    for cell_id in checkpoint.adapter_ids:
        await store.remove(make_cell_run_id(cell_id, checkpoint.fanout_id))
    await asyncio.to_thread(location.write, None)


async def _run_all(runner: CellRunner, cells: Sequence[Cell], app: App) -> None:
    tasks = [asyncio.create_task(runner.run(cell)) for cell in cells]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        if not all(task.done() for task in tasks):
            # Interrupts the models' runs. A timeout of zero does not wait for a store that does not answer.
            await shielded(app.shutdown(timedelta(0)), suppress_cancel=True)
            await shielded(asyncio.wait(tasks), suppress_cancel=True)
    for task in tasks:
        task.result()
