"""One prompt to many models at once, each of them a run that survives."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.checkpoint.store import CheckpointStore
from holdfast.concurrency import shielded
from holdfast.config import CheckpointSettings, WorkerSettings
from holdfast.core.agent import Bounds
from holdfast.core.errors import DefinitionError
from holdfast.core.info import check_run_id, new_run_id
from holdfast.core.ports import Budget, RunListener
from holdfast.core.tool import Tool
from holdfast.fanout.cells import Cell, CellSettings, ModelSpecs, Variant, build_cells, make_cell_run_id
from holdfast.fanout.checkpoint import FanoutCheckpoint
from holdfast.fanout.errors import FanoutError, FanoutMismatch
from holdfast.fanout.progress import ProgressRecorder
from holdfast.fanout.runner import CellRunner, ConcurrencyLimits, NonClosingStore, open_store
from holdfast.fanout.saver import IncrementalSaver
from holdfast.fanout.snapshot import ModelResponse, Snapshot
from holdfast.fanout.storage import CheckpointFile, CheckpointLocation, CheckpointRun
from holdfast.fanout.tools import make_file_tools
from holdfast.fanout.workspace import Workspace
from holdfast.stores.url import store_from_url

#: The end of a model's run stays in the store until the checkpoint has it, however long nobody resumes the fan-out.
_RUN_RETENTION = timedelta(days=3650)


class Fanout:
    """One prompt, N models or N models times M variants, all at once, and nothing done twice.

    Every cell is a durable run of its own, and the whole has one checkpoint. `run` goes on with what an earlier process
    left: models that have answered are not asked again, the others go on mid-loop.
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
        max_concurrency: int = 16,
        max_per_provider: int | Mapping[str, int] = 4,
        bounds: Bounds | None = None,
        store: CheckpointStore | str = "",
        checkpoint: Path | str | None = None,
        fanout_id: str = "",
        retry_failed: bool = False,
        verbose: bool = False,
        on_complete: Callable[[Sequence[ModelResponse]], None] | None = None,
        shutdown_timeout: timedelta = timedelta(seconds=30),
        handle_signals: bool = True,
        listener: RunListener | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Say who is asked what.

        Args:
            models: model callables, agents, or names such as `openai:gpt-5`, by id. Agents and names have ids already.
            instructions: for models; agents have their own.
            tools: the same.
            folder: models may read the files in it, and propose changes to them.
            limit: how many run at once in all.
            per_provider: and of each provider, which is the part of a model's id before the colon. With a mapping,
                a provider that is not in it is bounded by `limit` alone.
            store: keeps the runs of the models: a store, or the URL of one. It is opened and closed here; several
                fan-outs may share one object, which the last of them closes. An open App needs another one.
            checkpoint: the file that keeps the checkpoint of the whole. Without it the store does, under `fanout_id`,
                or under an id that is made of the prompt and the models.
            retry_failed: on a resume, go on with models that have failed, too.
            finish: given the responses when every model has ended, before the checkpoint goes: what it keeps is safe.
            grace: how long models may take to finish their turn when the fan-out is stopped.
            signals: on SIGINT and SIGTERM stop after the turns under way, unless somebody else handles them.

        Raises:
            DefinitionError: something is no model, or two have the same id. PathRefused: the folder is not there.
            InvalidRunId: no ids of runs can begin with `fanout_id`.
        """
        self._prompt, self._verbose, self._retry_failed, self._on_complete = prompt, verbose, retry_failed, on_complete
        self._workspace = Workspace(workspace) if workspace is not None else None
        given = make_file_tools(lambda run_id: self._recorder.overlay(run_id)) if self._workspace is not None else ()
        setting = CellSettings(instructions=instructions, tools=tuple(tools), bounds=bounds, file_tools=given)
        self._cells = build_cells(models, variants, prompt, setting)
        bounds_of_all = [
            max_concurrency,
            *([max_per_provider] if isinstance(max_per_provider, int) else max_per_provider.values()),
        ]
        if min(bounds_of_all) < 1:
            raise DefinitionError("limit and per_provider have to be at least 1")
        self._max_concurrency, self._max_per_provider = max_concurrency, max_per_provider
        self._store: CheckpointStore = store_from_url(store or None) if isinstance(store, str) else store
        # Whatever a tool makes the working directory meanwhile.
        self._checkpoint_path = Path(checkpoint).absolute() if checkpoint is not None else None
        self._requested_id = fanout_id
        for cell in self._cells if fanout_id else ():
            check_run_id(cell.run_id(fanout_id))
        self._worker_settings = WorkerSettings(
            recover_on_start=False, shutdown_timeout=shutdown_timeout, handle_signals=handle_signals
        )
        self._budget = budget
        self._listener = listener
        #: While it is open.
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

        A model that fails has an error in its response and holds nobody up. If the fan-out is stopped, the responses
        of the models that have not ended say that they are interrupted, and the checkpoint stays. So it does if this
        is cancelled, or the event loop ends.

        Args:
            resume: go on with what was left; without it, that is thrown away.

        Raises:
            CorruptCheckpoint: what was left cannot be read. FanoutMismatch: it is of another prompt or other models.
            FanoutBusy: another process goes on with it. StoreError: the store does not work.
        """
        self._stopped = False
        async with open_store(self._store):
            place = await self._make_location()
            try:
                kept = await place.open()
                if kept is not None and not resume:
                    await self._discard(kept, place)
                    kept = None
                return await self._run(place, kept)
            finally:
                await place.close()

    async def stop(self, timeout: timedelta | None = None) -> None:
        """Stop after the turns under way. `run` returns then."""
        self._stopped = True
        if self._app is not None:
            await self._app.shutdown(timeout)

    # -- the whole ----------------------------------------------------------------------------------------------

    async def _make_location(self) -> CheckpointLocation:
        if self._checkpoint_path is not None:
            return CheckpointFile(self._checkpoint_path)
        return CheckpointRun(self._store, self._stable_id())

    def _stable_id(self) -> str:
        if self._requested_id:
            return self._requested_id
        digest = hashlib.sha256(msgspec.json.encode([self._prompt, self.adapter_ids])).hexdigest()
        return f"fanout-{digest[:16]}"

    async def _discard(self, checkpoint: FanoutCheckpoint, location: CheckpointLocation) -> None:
        for cell_id in checkpoint.adapter_ids:
            await self._store.remove(make_cell_run_id(cell_id, checkpoint.fanout_id))
        await asyncio.to_thread(location.write, None)

    async def _run(self, location: CheckpointLocation, checkpoint: FanoutCheckpoint | None) -> list[ModelResponse]:
        if checkpoint is not None and (checkpoint.prompt, checkpoint.adapter_ids) != (self._prompt, self.adapter_ids):
            raise FanoutMismatch(
                f"the checkpoint is of another fan-out, of {', '.join(checkpoint.adapter_ids)} and the prompt "
                f"{checkpoint.prompt[:60]!r}: resume that one, or throw it away with resume=False"
            )
        known = (
            {snapshot.model_id: self._reopen_if_failed(snapshot) for snapshot in checkpoint.snapshots}
            if checkpoint
            else {}
        )
        fanout_id = checkpoint.fanout_id if checkpoint else self._new_id()
        saver = IncrementalSaver(
            location,
            self._prompt,
            self.adapter_ids,
            self._verbose,
            snapshots=known.values(),
            fanout_id=fanout_id,
            timestamp=checkpoint.timestamp if checkpoint else None,
            keep_finished=True,
        )
        self._recorder = ProgressRecorder(
            {cell.run_id(fanout_id): cell for cell in self._cells}, self._workspace, self._listener
        )
        self._recorder.attach_saver(saver)
        open_cells = [each for each in self._cells if each.id not in known or known[each.id].interrupted]
        try:
            await self._run_cells(open_cells, saver)
            responses = [snapshot.to_response() for snapshot in saver.snapshots]
            if not any(response.interrupted for response in responses):
                await self._complete(responses, saver)
            return responses
        finally:
            await shielded(saver.aclose())

    def _new_id(self) -> str:
        return self._requested_id or (
            f"fanout-{new_run_id()}" if self._checkpoint_path is not None else self._stable_id()
        )

    def _reopen_if_failed(self, snapshot: Snapshot) -> Snapshot:
        if self._retry_failed and snapshot.status == "failed":
            return msgspec.structs.replace(snapshot, interrupted=True, error=None)
        return snapshot

    async def _complete(self, responses: Sequence[ModelResponse], saver: IncrementalSaver) -> None:
        """Every model has ended: leave nothing behind but what `finish` keeps."""
        if self._on_complete is not None:
            await asyncio.to_thread(self._on_complete, responses)
        for cell in self._cells:
            await self._store.remove(cell.run_id(saver.fanout_id))
        await saver.clear()

    async def _run_cells(self, cells: Sequence[Cell], saver: IncrementalSaver) -> None:
        if not cells:
            return
        # Recorded first: whatever happens from here on can be resumed.
        waiting = [saver.update(each.to_partial()) for each in saver.snapshots if each.interrupted]
        if not await waiting[-1]:
            raise FanoutError("the checkpoint could not be written, so no model was asked: see the log")
        app = App(
            [cell.agent for cell in cells],
            NonClosingStore(self._store).as_store(),
            checkpoint=CheckpointSettings(result_retention=_RUN_RETENTION),
            worker=self._worker_settings,
            audit=self._recorder,
            budget=self._budget,
            listener=self._recorder,
        )
        slots = ConcurrencyLimits(self._max_concurrency, self._max_per_provider)
        driver = CellRunner(app, self._store, self._recorder, saver, retry_failed=self._retry_failed)

        async def drive(cell: Cell) -> None:
            # First the provider's slot: who waits for that does not keep others from running.
            async with slots.for_provider(cell.provider), slots.total:
                await driver.run(cell)

        async with app:
            self._app = app
            if self._stopped:
                return
            tasks = [asyncio.create_task(drive(cell)) for cell in cells]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                if not all(task.done() for task in tasks):
                    # The models' runs are left, and a store that does not answer is not waited for.
                    await shielded(app.shutdown(timedelta(0)), suppress_cancel=True)
                    await shielded(asyncio.wait(tasks), suppress_cancel=True)
            for task in tasks:
                task.result()
