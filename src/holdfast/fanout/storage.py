"""Where a fan-out's checkpoint is kept: in a file, or as one small run in a store."""

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.checkpoint.claim import Claim, WorkerIdentity, this_process
from holdfast.checkpoint.codec import FORMAT_VERSION, Begin, Progress, RunMeta, encode
from holdfast.checkpoint.errors import RunBusy, RunNotFound
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, NewRun, Release, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.fanout import atomic_file
from holdfast.fanout import checkpoint as checkpoints
from holdfast.fanout.checkpoint import FanoutCheckpoint
from holdfast.fanout.errors import CorruptCheckpoint, FanoutBusy, FanoutError

log = logging.getLogger("holdfast.fanout")

#: No agent has this name, so no recovery takes the run that a checkpoint is kept in.
AGENT_NAME = "holdfast/fanout"


class CheckpointLocation(Protocol):
    """Keeps one checkpoint."""

    async def open(self) -> FanoutCheckpoint | None:
        """What is kept there, which is ours alone from now on.

        Raises:
            CorruptCheckpoint: it cannot be read. FanoutBusy: another process has it.
        """
        ...

    def write(self, data: bytes | None) -> None:
        """Put `data` in place of what is there; `None`: nothing. Not in the event loop; raises whatever goes wrong."""
        ...

    async def close(self) -> None:
        """Somebody else may have it. Trouble is logged: the responses must not be lost to it."""
        ...


class CheckpointFile:
    """A file, and beside it a lock, so that two processes do not drive one fan-out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = path.parent / f".{path.name}.lock"
        self._lock_fd: int | None = None

    async def open(self) -> FanoutCheckpoint | None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._acquire_lock()
        try:
            kept = checkpoints.load(self._path)
        except BaseException:
            await self.close()
            raise
        atomic_file.remove_stale_temp_files(self._path)
        return kept

    def _acquire_lock(self) -> None:
        while True:
            fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as exc:
                os.close(fd)
                if not isinstance(exc, BlockingIOError):
                    raise FanoutError(
                        f"{self._lock_path} cannot be locked: {exc.strerror}; keep it on another file system"
                    ) from exc
                raise FanoutBusy(f"another process drives the fan-out of {self._path}: wait for it, or end it") from exc
            # The one who had it before may have removed the name of what was just locked.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(self._lock_path)):
                    self._lock_fd = fd
                    return
            os.close(fd)

    def write(self, data: bytes | None) -> None:
        if data is None:
            atomic_file.remove_file(self._path)
        else:
            atomic_file.write_atomically(self._path, data)

    async def close(self) -> None:
        if self._lock_fd is not None:
            fd, self._lock_fd = self._lock_fd, None
            try:
                self._lock_path.unlink(missing_ok=True)
            except OSError as exc:
                log.warning("%s stays, which does no harm: %s", self._lock_path, exc)
            os.close(fd)


class CheckpointRun:
    """One run of an open store, whose journal is rewritten with every flush. Belongs to the running event loop."""

    def __init__(self, store: CheckpointStore, fanout_id: str) -> None:
        self._store, self._run_id = store, fanout_id
        self._loop = asyncio.get_running_loop()
        self._worker_id = f"w-{secrets.token_hex(8)}"
        self._worker_registered = False
        self._claim: Claim | None = None
        self._next_seq = 0

    async def open(self) -> FanoutCheckpoint | None:
        await self._register_worker()
        try:
            claim = await self._store.claim(
                self._run_id, self._worker_id, statuses={*CLAIMABLE_STATUSES, RunStatus.PARKED}
            )
        except RunNotFound:
            return None
        except RunBusy as exc:
            raise FanoutBusy(f"another process drives the fan-out {self._run_id}: wait for it, or end it") from exc
        self._claim = claim
        try:
            stored = await self._store.load(self._run_id)
            self._next_seq = stored.record.next_seq
            bodies = [entry.body for entry in stored.entries if entry.kind is EntryKind.PHASE]
            return checkpoints.decode(_unwrap_checkpoint(bodies, self._run_id), f"in run {self._run_id}")
        except BaseException:
            await self.close()
            raise

    async def _register_worker(self) -> None:
        if not self._worker_registered:
            await self._store.register_worker(WorkerIdentity(worker_id=self._worker_id, process=this_process()))
            self._worker_registered = True

    def write(self, data: bytes | None) -> None:
        work = self._remove() if data is None else self._write(data)
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _write(self, data: bytes) -> None:
        await self._register_worker()
        meta = RunMeta(run_id=self._run_id, agent_name=AGENT_NAME)
        bodies = [
            (EntryKind.BEGIN, encode(Begin(version=FORMAT_VERSION, meta=meta))),
            (EntryKind.PHASE, encode(_CheckpointPhase(output=msgspec.Raw(data)))),
        ]
        entries = [Entry(seq=self._next_seq + at, kind=kind, body=body) for at, (kind, body) in enumerate(bodies)]
        progress = encode(Progress())
        if self._claim is None:
            run = NewRun(
                run_id=self._run_id,
                agent_name=AGENT_NAME,
                meta=encode(meta.summary()),
                progress=progress,
                entries=entries,
            )
            self._claim = await self._store.create(run, worker_id=self._worker_id)
        else:
            await self._store.append(
                self._claim, Append(entries=entries, progress=progress, rewrite=True, step_finished=True)
            )
        self._next_seq += len(entries)

    async def _remove(self) -> None:
        if self._claim is not None:
            claim, self._claim = self._claim, None
            await self._store.remove(self._run_id, claim=claim)
        self._next_seq = 0

    async def close(self) -> None:
        try:
            if self._claim is not None:
                claim, self._claim = self._claim, None
                await self._log_failure(self._store.release(claim, Release(status=RunStatus.INTERRUPTED)))
        finally:
            # What a worker has claimed and not settled is free when there is no such worker.
            if self._worker_registered:
                self._worker_registered = False
                await self._log_failure(self._store.deregister_worker(self._worker_id))

    async def _log_failure(self, step: Awaitable[None]) -> None:
        try:
            await step
        except Exception as exc:  # a host's own store may raise anything
            log.error("the store did not let go of the checkpoint of the fan-out %s: %s", self._run_id, exc)


class _CheckpointPhase(msgspec.Struct, kw_only=True):
    """The checkpoint as the output of a phase, which every command that looks at runs can show."""

    name: str = "fan-out"
    output: msgspec.Raw
    iteration: int = 0


def _unwrap_checkpoint(bodies: list[bytes], run_id: str) -> msgspec.Raw:
    if not bodies:
        raise CorruptCheckpoint(f"in run {run_id}", "the run is no fan-out")
    try:
        return msgspec.json.decode(bodies[-1], type=_CheckpointPhase).output
    except msgspec.MsgspecError as exc:
        raise CorruptCheckpoint(f"in run {run_id}", str(exc)) from exc
