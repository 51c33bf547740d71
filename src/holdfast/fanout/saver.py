"""IncrementalSaver: writes a fan-out's checkpoint after every update, from any number of tasks and threads."""

import asyncio
import logging
import threading
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, overload

import msgspec

from holdfast.checkpoint.store import RunStore
from holdfast.core.run.info import new_run_id
from holdfast.fanout.checkpoint import VERSION, load
from holdfast.fanout.errors import FanoutError
from holdfast.fanout.snapshot import ModelResponse, PartialResponse, Snapshot
from holdfast.fanout.storage import CheckpointFile, CheckpointLocation, CheckpointRun

log = logging.getLogger("holdfast.fanout")


class PendingFlush:
    """The flush that includes an update: `await` it in a task, or call `wait()` in a thread.

    Both return True if the update was written, False if the flush failed. The next flush then includes the update.
    """

    __slots__ = ("_future",)

    def __init__(self, future: "Future[bool]") -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, bool]:
        return asyncio.wrap_future(self._future).__await__()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the flush. Return whether the update was written.

        Raises:
            TimeoutError: the flush is still pending.
        """
        return self._future.result(None if timeout is None else timeout.total_seconds())


class IncrementalSaver:
    """Writes the newest snapshot of every model, in the order of the adapter ids, after every update.

    `update` and `mark_completed` are thread-safe and return immediately. One thread writes; updates that arrive
    during a write share the next one. A failed write is logged and never fails a run. When every model has finished,
    the checkpoint is removed, unless `keep_finished`.
    """

    def __init__(
        self,
        location: Path | str | RunStore | CheckpointLocation,
        prompt: str,
        adapter_ids: Sequence[str],
        verbose: bool = False,
        *,
        snapshots: Iterable[Snapshot] = (),
        fanout_id: str = "",
        timestamp: datetime | None = None,
        keep_finished: bool = False,
    ) -> None:
        """Create a saver. Its writer thread starts with the first update.

        Args:
            location: a path; or an open store of the running event loop, in which the checkpoint is one small run.
                The caller ensures that this saver is its only writer.
            snapshots: of a fan-out that is resumed.
            keep_finished: keep the checkpoint when every model has finished, until `clear`.

        Raises:
            CorruptCheckpoint: the file exists and is not a checkpoint. It was not changed.
        """
        self._adapter_ids = tuple(adapter_ids)
        self.fanout_id: str = fanout_id or new_run_id()
        self._location, self._owns_location = _resolve_location(location, self.fanout_id)
        self.verbose = verbose
        self._prompt = prompt
        #: When the fan-out started.
        self.timestamp: datetime = timestamp or datetime.now(UTC)
        self._keep_finished = keep_finished
        self._newest: dict[str, Snapshot] = {}
        self._changed: set[str] = set()
        #: Used by the writer thread alone.
        self._encoded: dict[str, msgspec.Raw] = {}
        self._condition = threading.Condition()
        self._next_flush = _new_future()
        self._flush_requested = False
        self._closing = False
        self._writer: threading.Thread | None = None
        for snapshot in snapshots:
            self._merge_snapshot(snapshot)

    # -- from any task or thread --------------------------------------------------------------------------------

    @overload
    def update(self, partial: PartialResponse, /) -> PendingFlush: ...

    @overload
    def update(self, model_id: str, snapshot: Snapshot | ModelResponse | PartialResponse, /) -> PendingFlush: ...

    def update(
        self, given: PartialResponse | str, snapshot: Snapshot | ModelResponse | PartialResponse | None = None, /
    ) -> PendingFlush:
        """Record a finished step of a model: its response so far, or its id and a snapshot.

        An interrupted snapshot is ignored if the model has finished.

        Raises:
            FanoutError: the snapshot is missing or of another model, or the saver is closed.
        """
        if isinstance(given, PartialResponse):
            return self._enqueue(Snapshot.from_partial(given))
        if snapshot is None:
            raise FanoutError(f"nothing to record for {given!r}: give a snapshot, or a PartialResponse alone")
        if snapshot.model_id != given:
            raise FanoutError(f"the snapshot is of {snapshot.model_id!r}, not of {given!r}: give the id of its model")
        return self._enqueue(Snapshot.create(snapshot))

    def mark_completed(self, response: ModelResponse) -> PendingFlush:
        """Record the final response of a model: its answer or its error."""
        return self._enqueue(Snapshot.from_response(response))

    def _enqueue(self, snapshot: Snapshot) -> PendingFlush:
        with self._condition:
            if self._closing:
                raise FanoutError("this saver is closed")
            self._merge_snapshot(snapshot)
            self._flush_requested = True
            if self._writer is None:
                self._writer = threading.Thread(target=self._run_writer, name="holdfast fan-out saver", daemon=True)
                self._writer.start()
            self._condition.notify()
            return PendingFlush(self._next_flush)

    def _merge_snapshot(self, snapshot: Snapshot) -> None:
        model = snapshot.model_id
        if model not in self._adapter_ids:
            raise FanoutError(f"{model!r} is not a model of this fan-out: it has {', '.join(self._adapter_ids)}")
        known = self._newest.get(model)
        if known is not None and not known.interrupted and snapshot.interrupted:
            return
        self._newest[model] = snapshot
        self._changed.add(model)

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """The newest snapshot of every model, in the order of the adapter ids."""
        with self._condition:
            newest = dict(self._newest)
        return tuple(newest.get(each) or Snapshot(model_id=each, interrupted=True) for each in self._adapter_ids)

    async def clear(self) -> None:
        """Flush, stop the writer thread, and remove the checkpoint."""
        await asyncio.to_thread(self._stop_writer)
        await asyncio.to_thread(self._location.write, None)
        await self.aclose()

    async def aclose(self) -> None:
        """Flush and stop the writer thread. Idempotent."""
        await asyncio.to_thread(self._stop_writer)
        if self._owns_location:
            await self._location.close()

    def close(self) -> None:
        """`aclose` for a saver on a path, for code without an event loop."""
        self._stop_writer()

    # -- the writer thread --------------------------------------------------------------------------------------

    def _stop_writer(self) -> None:
        with self._condition:
            self._closing = True
            self._condition.notify()
        if self._writer is not None:
            self._writer.join()

    def _run_writer(self) -> None:
        while True:
            with self._condition:
                while not self._flush_requested and not self._closing:
                    self._condition.wait()
                if not self._flush_requested and not self._changed:
                    return
                last, self._flush_requested = self._closing, False
                changed = {model: self._newest[model] for model in self._changed}
                self._changed = set()
                flush, self._next_flush = self._next_flush, _new_future()
                remove = not self._keep_finished and self._all_finished()
            flush.set_result(self._flush(changed, remove=remove))
            if last:
                return

    def _all_finished(self) -> bool:
        finished = [snapshot for snapshot in self._newest.values() if not snapshot.interrupted]
        return len(finished) == len(self._adapter_ids)

    def _flush(self, changed: dict[str, Snapshot], *, remove: bool) -> bool:
        try:
            for model, snapshot in changed.items():
                self._encoded[model] = msgspec.Raw(msgspec.json.encode(snapshot))
            self._location.write(None if remove else self._encode_checkpoint())
        except Exception as exc:  # no error of a disk or a store may fail a model's run
            log.warning("a fan-out's checkpoint was not written; the next write includes the update: %s", exc)
            with self._condition:
                self._changed.update(changed)
            return False
        return True

    def _encode_checkpoint(self) -> bytes:
        checkpoint = _EncodedCheckpoint(
            version=VERSION,
            fanout_id=self.fanout_id,
            prompt=self._prompt,
            timestamp=self.timestamp,
            adapter_ids=self._adapter_ids,
            verbose=self.verbose,
            responses=[self._encoded.get(each) or _encode_not_started(each) for each in self._adapter_ids],
        )
        return msgspec.json.encode(checkpoint)


class _EncodedCheckpoint(msgspec.Struct, kw_only=True):
    """A `FanoutCheckpoint` with encoded snapshots: a flush encodes only the changed ones."""

    version: int
    fanout_id: str
    prompt: str
    timestamp: datetime
    adapter_ids: tuple[str, ...]
    verbose: bool
    responses: list[msgspec.Raw]


def _encode_not_started(model: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(Snapshot(model_id=model, interrupted=True)))


def _new_future() -> "Future[bool]":
    future: Future[bool] = Future()
    # Several callers wait for it, so none of them may cancel it.
    future.set_running_or_notify_cancel()
    return future


def _resolve_location(
    location: Path | str | RunStore | CheckpointLocation, fanout_id: str
) -> tuple[CheckpointLocation, bool]:
    """Return the location, and whether it was created here."""
    if isinstance(location, str | Path):
        load(location)
        return CheckpointFile(Path(location).absolute()), True
    if isinstance(location, CheckpointLocation):
        return location, False
    return CheckpointRun(location, fanout_id), True
