"""Stores a fan-out's checkpoint: in a file, or as one small run of a store."""

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from holdfast.checkpoint.claims import Claim, WorkerIdentity, this_process
from holdfast.checkpoint.codec import Progress, encode, encode_begin
from holdfast.checkpoint.errors import RunBusy, RunNotFound
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, NewRun, Release, RunStatus, StoredRun
from holdfast.checkpoint.store import RunStore
from holdfast.core.run.info import RunInfo
from holdfast.fanout import atomic_file
from holdfast.fanout import checkpoint as checkpoints
from holdfast.fanout.checkpoint import FanoutCheckpoint
from holdfast.fanout.errors import CorruptCheckpoint, FanoutBusy, FanoutError

log = logging.getLogger("holdfast.fanout")

#: No agent has this name, so no worker claims the run of a checkpoint.
AGENT_NAME = "holdfast/fanout"


@runtime_checkable
class CheckpointLocation(Protocol):
    """Stores one checkpoint."""

    async def open(self) -> FanoutCheckpoint | None:
        """Lock the location and return its checkpoint.

        Raises:
            CorruptCheckpoint: the checkpoint cannot be read.
            FanoutBusy: another process has the location locked.
        """
        ...

    def write(self, data: bytes | None) -> None:
        """Replace the checkpoint by `data`, or remove it. Call it in a thread; it may raise anything."""
        ...

    async def close(self) -> None:
        """Unlock the location. Errors are logged, not raised, so that the responses are not lost."""
        ...


class CheckpointFile:
    """A file, with a lock file beside it so that only one process executes the fan-out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = path.parent / f".{path.name}.lock"
        self._lock_fd: int | None = None

    async def open(self) -> FanoutCheckpoint | None:
        atomic_file.create_folder(self._path.parent)
        self._acquire_lock()
        try:
            checkpoint = checkpoints.load(self._path)
        except BaseException:
            await self.close()
            raise
        atomic_file.remove_stale_temp_files(self._path)
        return checkpoint

    def _acquire_lock(self) -> None:
        while True:
            fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as exc:
                os.close(fd)
                if not isinstance(exc, BlockingIOError):
                    raise FanoutError(
                        f"{self._lock_path} cannot be locked: {exc.strerror}; use another file system"
                    ) from exc
                raise FanoutBusy(f"another process executes the fan-out of {self._path}: wait, or stop it") from exc
            # The previous owner may have unlinked the file between our open and our lock: then try again.
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
                log.warning("the lock file %s could not be removed, which is harmless: %s", self._lock_path, exc)
            os.close(fd)


class CheckpointRun:
    """One run of an open store. Every write replaces its journal. Belongs to the running event loop."""

    def __init__(self, store: RunStore, fanout_id: str) -> None:
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
            raise FanoutBusy(f"another process executes the fan-out {self._run_id}: wait, or stop it") from exc
        self._claim = claim
        try:
            stored = await self._store.load(self._run_id)
            self._next_seq = stored.record.next_seq
            return read_stored_checkpoint(stored)
        except BaseException:
            await self.close()
            raise

    async def _register_worker(self) -> None:
        if not self._worker_registered:
            await self._store.register_worker(WorkerIdentity(worker_id=self._worker_id, process=this_process()))
            self._worker_registered = True

    def write(self, data: bytes | None) -> None:
        write = self._remove() if data is None else self._write(data)
        asyncio.run_coroutine_threadsafe(write, self._loop).result()

    async def _write(self, data: bytes) -> None:
        await self._register_worker()
        info = RunInfo(run_id=self._run_id, agent_name=AGENT_NAME)
        bodies = [
            (EntryKind.BEGIN, encode_begin(info)),
            (EntryKind.PHASE, encode_phase(data)),
        ]
        entries = [Entry(seq=self._next_seq + at, kind=kind, body=body) for at, (kind, body) in enumerate(bodies)]
        progress = encode(Progress())
        if self._claim is None:
            run = NewRun.create(info, progress, entries)
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
            # If the release failed, this frees the claim: its worker no longer exists.
            if self._worker_registered:
                self._worker_registered = False
                await self._log_failure(self._store.deregister_worker(self._worker_id))

    async def _log_failure(self, request: Awaitable[None]) -> None:
        try:
            await request
        except Exception as exc:  # a user's store may raise anything
            log.error("the checkpoint of the fan-out %s could not be released: %s", self._run_id, exc)


class _CheckpointPhase(msgspec.Struct, kw_only=True):
    """The checkpoint as the output of a phase, so that `show` and `export` can display it."""

    name: str = "fan-out"
    output: msgspec.Raw
    iteration: int = 0


def encode_phase(data: bytes) -> bytes:
    """Return the body of the entry that holds an encoded checkpoint."""
    return encode(_CheckpointPhase(output=msgspec.Raw(data)))


def read_stored_checkpoint(stored: StoredRun) -> FanoutCheckpoint:
    """Return the checkpoint that is stored as this run.

    Raises:
        CorruptCheckpoint: it cannot be read, or the run is not a fan-out.
    """
    run_id = stored.record.run_id
    bodies = [entry.body for entry in stored.entries if entry.kind is EntryKind.PHASE]
    return checkpoints.decode(_unwrap_checkpoint(bodies, run_id), f"in run {run_id}")


def _unwrap_checkpoint(bodies: list[bytes], run_id: str) -> msgspec.Raw:
    if not bodies:
        raise CorruptCheckpoint(f"in run {run_id}", "the run is not a fan-out")
    try:
        return msgspec.json.decode(bodies[-1], type=_CheckpointPhase).output
    except msgspec.MsgspecError as exc:
        raise CorruptCheckpoint(f"in run {run_id}", str(exc)) from exc
