"""Fanout: one prompt to many models, as a durable run with one child run for each model."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.app import App
from holdfast.checkpoint.errors import RunBusy, RunNotFound
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore, get_record, iter_runs
from holdfast.concurrency import shielded
from holdfast.config import WorkerSettings
from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.tool import Tool
from holdfast.core.errors import DefinitionError, RunInterrupted, RunLost, RunParked
from holdfast.core.run.waiting import RunWaiting
from holdfast.fanout import checkpoint_file
from holdfast.fanout.cell_runner import CellRunner, FanoutAgent
from holdfast.fanout.cells import AGENT_PREFIX, Cell, CellSettings, FanoutSettings, ModelSpecs, Variant, build_cells
from holdfast.fanout.checkpoint_file import Checkpoint, IncrementalSaver
from holdfast.fanout.errors import FanoutError
from holdfast.fanout.overlay import Overlay, make_file_tools
from holdfast.fanout.responses import ModelResponse, list_unfinished, read_responses
from holdfast.fanout.workspace import Workspace
from holdfast.runtime.operations.verdicts import remove_verdicts
from holdfast.stores.from_url import store_from_url

log = logging.getLogger("holdfast.fanout")


class Fanout:
    """One prompt to N models, or to N models times M variants, at the same time.

    A fan-out is a run, and each cell (a model, or a model with a variant) is a child run of it. The run id is an
    identity: `run` again resumes an interrupted fan-out, and returns the recorded responses of a finished one. Models
    that have answered are not called again; the others resume mid-loop.
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
        settings: FanoutSettings | None = None,
    ) -> None:
        """Define a fan-out; `run` starts it.

        Args:
            models: model callables, agents, or names such as `openai:gpt-5`, by id. Agents and names may be given
                as a sequence: their names are the ids.
            instructions: for models; an agent has its own.
            tools: for models; an agent has its own.
            workspace: a folder whose files the models may read and propose changes to.
            store: stores the runs: a store, or the URL of one. `run` opens and closes it, unless it is given an App.
            checkpoint: a file that also has the latest snapshot of each model while the fan-out is not finished. The
                completed responses in it are taken over, if the store does not have them.

        Raises:
            DefinitionError: something is not a model, or two have the same id.
            PathRefused: the workspace does not exist.
            InvalidRunId: `fanout_id` is not a valid run id.
        """
        self._settings = settings or FanoutSettings()
        self._prompt, self._store = prompt, store
        self._workspace = Workspace(workspace) if workspace is not None else None
        #: By run id.
        self._overlays: dict[str, Overlay] = {}
        file_tools = make_file_tools(self._overlays) if self._workspace is not None else ()
        cell_settings = CellSettings(
            instructions=instructions, tools=tuple(tools), bounds=self._settings.bounds, file_tools=file_tools
        )
        self.run_id, self._cells = build_cells(models, variants, prompt, cell_settings, self._settings.fanout_id)
        self._agent = FanoutAgent(f"{AGENT_PREFIX}{self.run_id}", self._cells)
        # Absolute: a tool may change the working directory.
        self._checkpoint_path = Path(checkpoint).absolute() if checkpoint is not None else None
        #: The App that `run` has opened.
        self._app: App | None = None
        self._stopped = asyncio.Event()
        self._verbose = self._settings.verbose

    @property
    def adapter_ids(self) -> tuple[str, ...]:
        """The ids of the cells, in their order."""
        return tuple(cell.id for cell in self._cells)

    @property
    def agents(self) -> tuple[AgentSource, ...]:
        """The agents of the fan-out and of its cells, in their order: for an App of your own."""
        return (self._agent, *(cell.agent for cell in self._cells))

    def run_sync(self, *, resume: bool = True) -> list[ModelResponse]:
        """`run` for code without an event loop."""
        return asyncio.run(self.run(resume=resume))

    async def run(self, app: App | None = None, *, resume: bool = True) -> list[ModelResponse]:
        """Ask every model, and return the responses in the order of the models.

        A model that fails has an error in its response; the others continue. A model that has not finished is marked
        as interrupted: the fan-out was stopped, or its provider is unavailable. `run` again resumes it.

        Args:
            app: an open App with `agents` among its agents. Fan-outs that run at the same time share one. Without
                it, `run` opens an App, and closes it at the end.
            resume: resume an interrupted fan-out; if False, remove it and start over.

        Raises:
            RunConflict: a run with this id has another prompt or other models.
            RunCancelled: the fan-out was cancelled.
            FanoutError: the checkpoint file belongs to another fan-out, or cannot be read.
            StoreError: the store failed.
        """
        self._stopped.clear()
        checkpoint = await asyncio.to_thread(self._load_checkpoint, resume=resume)
        self._verbose = self._settings.verbose or (checkpoint is not None and checkpoint.verbose)
        if app is not None:
            store = _get_store(app)
            await self._execute(app, self._make_runner(store, checkpoint), resume=resume)
            return await self._finish(store)
        store = store_from_url(self._store or None) if isinstance(self._store, str) else self._store
        await self._execute_alone(store, self._make_runner(store, checkpoint), resume=resume)
        await store.open()  # the App has closed it
        try:
            return await self._finish(store)
        finally:
            await store.close()

    async def stop(self, timeout: timedelta | None = None) -> None:
        """Stop after the current steps. `run` then returns. In an App of your own, the run continues there."""
        self._stopped.set()
        if self._app is not None:
            await self._app.shutdown(timeout)

    # -- the run ------------------------------------------------------------------------------------------------

    def _make_runner(self, store: RunStore, checkpoint: Checkpoint | None) -> CellRunner:
        saver = None
        if self._checkpoint_path is not None:
            saver = IncrementalSaver(self._checkpoint_path, self._prompt, self.adapter_ids, self._verbose)
        return CellRunner(
            self._cells,
            store,
            self._settings,
            workspace=self._workspace,
            overlays=self._overlays,
            saver=saver,
            given=checkpoint.responses if checkpoint is not None else (),
            verbose=self._verbose,
        )

    async def _execute_alone(self, store: RunStore, runner: CellRunner, *, resume: bool) -> None:
        """Execute the fan-out in an App of its own."""
        settings = self._settings
        worker = WorkerSettings(
            take_runs=False, shutdown_timeout=settings.shutdown_timeout, handle_signals=settings.handle_signals
        )
        app = App(self.agents, store, worker=worker, budget=settings.budget, listener=runner)
        async with app:
            self._app = app
            try:
                await self._execute(app, runner, resume=resume)
            except BaseException:
                # Interrupts the models' runs. A timeout of zero does not wait for a store that does not answer.
                await shielded(app.shutdown(timedelta(0)), suppress_cancel=True)
                raise
            finally:
                self._app = None

    async def _execute(self, app: App, runner: CellRunner, *, resume: bool) -> None:
        store = _get_store(app)
        if not resume:
            await store.remove(self.run_id)
            await remove_verdicts(store, self.run_id)
        self._agent.runner = runner
        if self._stopped.is_set():
            return
        unfinished = await list_unfinished(store, self.run_id, failed=self._settings.retry_failed)
        if await self._wait(app, self.run_id, self._run(app)) and unfinished:
            await self._retry(app, runner, unfinished)

    async def _run(self, app: App) -> None:
        """Run the fan-out to its end. If it waits for a provider, try that one again now."""
        run_id, inputs = self.run_id, {"cells": list(self.adapter_ids)}
        with suppress(RunNotFound, RunBusy):  # it begins now, or another process has just resumed it
            if (await get_record(_get_store(app), run_id)).status is RunStatus.WAITING:
                await app.resume(run_id)
        await app.run(self._agent, self._prompt, inputs=inputs, run_id=run_id)

    async def _wait(self, app: App, run_id: str, run: Coroutine[Any, Any, Any]) -> bool:
        """Wait until a run ends, or can only be resumed later. Return whether the App still works.

        The App would wait until an unavailable provider is back: a fan-out does not.
        """
        tasks = [
            asyncio.ensure_future(run),
            asyncio.ensure_future(_wait_for_outage(app, run_id)),
            asyncio.ensure_future(self._stopped.wait()),
        ]
        ended = tasks[0]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.is_set() and self._app is not None:
                await asyncio.wait([ended])  # `stop` shuts the App down
            if ended.done():
                with suppress(RunParked, RunLost, RunWaiting):
                    ended.result()
            return not self._stopped.is_set()
        except RunInterrupted:  # the App shuts down
            return False
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _retry(self, app: App, runner: CellRunner, cells: Collection[str]) -> None:
        """Resume the runs of models that have failed, or whose retry was interrupted."""

        async def retry(cell: Cell) -> None:
            try:
                await runner.open_cell(cell)
                if not await self._wait(app, cell.run_id, app.resume(cell.run_id)):
                    return
            except Exception as exc:  # the model's or a tool's own error: its response has it
                log.debug("%s has failed again: %s", cell.id, exc)
            if (response := await runner.read_response(cell)) is not None and not response.interrupted:
                await runner.mark_completed(response)

        await asyncio.gather(*(runner.run_within_limits(cell, retry) for cell in self._cells if cell.id in cells))

    # -- responses and the checkpoint file ----------------------------------------------------------------------

    def _load_checkpoint(self, *, resume: bool) -> Checkpoint | None:
        if self._checkpoint_path is None:
            return None
        if not resume:
            checkpoint_file.clear(self._checkpoint_path)
        checkpoint = checkpoint_file.load(self._checkpoint_path)
        if checkpoint is not None and (checkpoint.prompt, checkpoint.adapter_ids) != (self._prompt, self.adapter_ids):
            raise FanoutError(
                f"{self._checkpoint_path} belongs to another fan-out, of {', '.join(checkpoint.adapter_ids)} and the "
                f"prompt {checkpoint.prompt[:60]!r}: use another file, or discard it with resume=False"
            )
        return checkpoint

    async def _finish(self, store: RunStore) -> list[ModelResponse]:
        """Return the responses. The checkpoint file stays as long as one of them is interrupted."""
        known: dict[str, ModelResponse] = {}
        reason = ""
        with suppress(RunNotFound):  # stopped before it began
            record = await get_record(store, self.run_id)
            reason = record.reason if record.status is RunStatus.PARKED else ""
            known = {each.model_id: each for each in await read_responses(store, self.run_id, self._workspace)}
        responses = [
            known.get(each) or ModelResponse(model_id=each, error=reason, interrupted=True) for each in self.adapter_ids
        ]
        if self._checkpoint_path is not None:
            await asyncio.to_thread(self._write_checkpoint, self._checkpoint_path, responses)
        return responses

    def _write_checkpoint(self, path: Path, responses: Sequence[ModelResponse]) -> None:
        checkpoint = checkpoint_file.build(self._prompt, self.adapter_ids, responses, self._verbose)
        if checkpoint is None:
            checkpoint_file.clear(path)
        else:
            checkpoint_file.save(path, checkpoint)


def _get_store(app: App) -> RunStore:
    if app.store is None:
        raise DefinitionError("this App has no store: a fan-out needs one")
    return app.store


async def _wait_for_outage(app: App, run_id: str) -> None:
    """Return when the run, or every child that it waits for, is interrupted because its provider is unavailable.

    The outage that an earlier process has left does not count.
    """
    store, earlier = app.open_store, None
    with suppress(RunNotFound):
        earlier = (await get_record(store, run_id)).updated_at
    with app.changes.listen() as changed:
        while True:
            with suppress(RunNotFound):  # it is being created
                record = await get_record(store, run_id)
                if record.updated_at != earlier and await _has_outage(store, record):
                    return
            await changed.wait()


async def _has_outage(store: RunStore, record: RunRecord) -> bool:
    if record.parent_run_id is not None:
        return record.status is RunStatus.INTERRUPTED
    if record.status is not RunStatus.WAITING:
        return False
    children = [child async for child in iter_runs(store, RunFilter(parent_run_id=record.run_id))]
    return not any(child.status is RunStatus.WAITING for child in children)
