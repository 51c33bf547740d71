"""One prompt to many models at once, each of them a run that survives."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.checkpoint.opening import store_from_url
from holdfast.checkpoint.store import CheckpointStore
from holdfast.fanout.cells import Cell, Setting, Subjects, Variant, cells_of, run_id_of
from holdfast.fanout.checkpoint import FanoutCheckpoint
from holdfast.fanout.driving import Driver, LeftOpen, Slots
from holdfast.fanout.errors import AnotherFanout, FanoutError
from holdfast.fanout.folder import WorkFolder
from holdfast.fanout.opening import opened
from holdfast.fanout.places import FilePlace, Place, StorePlace
from holdfast.fanout.saver import IncrementalSaver
from holdfast.fanout.snapshot import ModelResponse, Snapshot
from holdfast.fanout.tools import file_tools
from holdfast.fanout.watching import Observer
from holdfast.run.agent import Bounds
from holdfast.run.errors import DefinitionError
from holdfast.run.info import check_run_id, new_run_id
from holdfast.run.ports import Budget, Delivery
from holdfast.run.tool import Tool
from holdfast.run.uninterrupted import uninterrupted

#: The end of a model's run stays in the store until the checkpoint has it, however long nobody resumes the fan-out.
_RETENTION = timedelta(days=3650)


class Fanout:
    """One prompt, N models or N models times M variants, all at once, and nothing done twice.

    Every cell is a durable run of its own, and the whole has one checkpoint. `run` goes on with what an earlier process
    left: models that have answered are not asked again, the others go on mid-loop.
    """

    def __init__(
        self,
        prompt: str,
        models: Subjects,
        *,
        variants: Sequence[Variant] = (),
        instructions: str = "",
        tools: Sequence[Tool | Callable[..., Any]] = (),
        folder: Path | str | None = None,
        limit: int = 16,
        per_provider: int | Mapping[str, int] = 4,
        bounds: Bounds | None = None,
        store: CheckpointStore | str = "",
        checkpoint: Path | str | None = None,
        fanout_id: str = "",
        retry_failed: bool = False,
        verbose: bool = False,
        finish: Callable[[Sequence[ModelResponse]], None] | None = None,
        grace: timedelta = timedelta(seconds=30),
        signals: bool = True,
        delivery: Delivery | None = None,
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
        self._prompt, self._verbose, self._retry_failed, self._finish = prompt, verbose, retry_failed, finish
        self._folder = WorkFolder(folder) if folder is not None else None
        given = file_tools(lambda run_id: self._observer.overlay(run_id)) if self._folder is not None else ()
        setting = Setting(instructions=instructions, tools=tuple(tools), bounds=bounds, file_tools=given)
        self._cells = cells_of(models, variants, prompt, setting)
        bounds_of_all = [limit, *([per_provider] if isinstance(per_provider, int) else per_provider.values())]
        if min(bounds_of_all) < 1:
            raise DefinitionError("limit and per_provider have to be at least 1")
        self._limit, self._per_provider = limit, per_provider
        self._store: CheckpointStore = store_from_url(store or None) if isinstance(store, str) else store
        # Whatever a tool makes the working directory meanwhile.
        self._checkpoint = Path(checkpoint).absolute() if checkpoint is not None else None
        self._given_id = fanout_id
        for cell in self._cells if fanout_id else ():
            check_run_id(cell.run_id(fanout_id))
        self._options: dict[str, Any] = {"grace": grace, "signals": signals, "budget": budget}
        self._delivery = delivery
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
            CorruptCheckpoint: what was left cannot be read. AnotherFanout: it is of another prompt or other models.
            FanoutBusy: another process goes on with it. StoreError: the store does not work.
        """
        self._stopped = False
        async with opened(self._store):
            place = await self._place()
            try:
                kept = await place.open()
                if kept is not None and not resume:
                    await self._discard(kept, place)
                    kept = None
                return await self._run(place, kept)
            finally:
                await place.close()

    async def stop(self, grace: timedelta | None = None) -> None:
        """Stop after the turns under way. `run` returns then."""
        self._stopped = True
        if self._app is not None:
            await self._app.shutdown(grace)

    # -- the whole ----------------------------------------------------------------------------------------------

    async def _place(self) -> Place:
        if self._checkpoint is not None:
            return FilePlace(self._checkpoint)
        return StorePlace(self._store, self._stable_id())

    def _stable_id(self) -> str:
        if self._given_id:
            return self._given_id
        digest = hashlib.sha256(msgspec.json.encode([self._prompt, self.adapter_ids])).hexdigest()
        return f"fanout-{digest[:16]}"

    async def _discard(self, kept: FanoutCheckpoint, place: Place) -> None:
        for cell_id in kept.adapter_ids:
            await self._store.remove(run_id_of(cell_id, kept.fanout_id))
        await asyncio.to_thread(place.write, None)

    async def _run(self, place: Place, kept: FanoutCheckpoint | None) -> list[ModelResponse]:
        if kept is not None and (kept.prompt, kept.adapter_ids) != (self._prompt, self.adapter_ids):
            raise AnotherFanout(
                f"the checkpoint is of another fan-out, of {', '.join(kept.adapter_ids)} and the prompt "
                f"{kept.prompt[:60]!r}: resume that one, or throw it away with resume=False"
            )
        known = {snapshot.model_id: self._reopened(snapshot) for snapshot in kept.snapshots} if kept else {}
        fanout_id = kept.fanout_id if kept else self._new_id()
        saver = IncrementalSaver(
            place, self._prompt, self.adapter_ids, self._verbose, snapshots=known.values(), fanout_id=fanout_id,
            timestamp=kept.timestamp if kept else None, keep_ended=True,
        )  # fmt: skip
        self._observer = Observer({cell.run_id(fanout_id): cell for cell in self._cells}, self._folder, self._delivery)
        self._observer.report_to(saver)
        open_cells = [each for each in self._cells if each.id not in known or known[each.id].interrupted]
        try:
            await self._ask(open_cells, saver)
            responses = [snapshot.response() for snapshot in saver.snapshots]
            if not any(response.interrupted for response in responses):
                await self._end(responses, saver)
            return responses
        finally:
            await uninterrupted(saver.aclose())

    def _new_id(self) -> str:
        return self._given_id or (f"fanout-{new_run_id()}" if self._checkpoint is not None else self._stable_id())

    def _reopened(self, snapshot: Snapshot) -> Snapshot:
        if self._retry_failed and snapshot.standing == "failed":
            return msgspec.structs.replace(snapshot, interrupted=True, error=None)
        return snapshot

    async def _end(self, responses: Sequence[ModelResponse], saver: IncrementalSaver) -> None:
        """Every model has ended: leave nothing behind but what `finish` keeps."""
        if self._finish is not None:
            await asyncio.to_thread(self._finish, responses)
        for cell in self._cells:
            await self._store.remove(cell.run_id(saver.fanout_id))
        await saver.clear()

    async def _ask(self, cells: Sequence[Cell], saver: IncrementalSaver) -> None:
        if not cells:
            return
        # Recorded first: whatever happens from here on can be resumed.
        waiting = [saver.update(each.partial()) for each in saver.snapshots if each.interrupted]
        if not await waiting[-1]:
            raise FanoutError("the checkpoint could not be written, so no model was asked: see the log")
        app = App(
            [cell.agent for cell in cells], LeftOpen(self._store).as_store(), recover=False, retention=_RETENTION,
            audit=self._observer, delivery=self._observer, **self._options,
        )  # fmt: skip
        slots = Slots(self._limit, self._per_provider)
        driver = Driver(app, self._store, self._observer, saver, retry_failed=self._retry_failed)

        async def drive(cell: Cell) -> None:
            # First the provider's slot: who waits for that does not keep others from running.
            async with slots.of(cell.provider), slots.overall:
                await driver.drive(cell)

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
                    await uninterrupted(app.shutdown(timedelta(0)), swallow=True)
                    await uninterrupted(asyncio.wait(tasks), swallow=True)
            for task in tasks:
                task.result()
