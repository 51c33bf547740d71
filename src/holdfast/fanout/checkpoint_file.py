"""The checkpoint file of one prompt on many models: a small JSON document with a snapshot for each model.

Everything here is synchronous. When a call has returned, its effect survives `kill -9` and a power cut.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from holdfast.clock import CLOCK
from holdfast.concurrency import THREADS
from holdfast.db.folders import fsync_folder
from holdfast.fanout.errors import CorruptCheckpoint, FanoutError
from holdfast.fanout.responses import ModelResponse, ResponseSnapshot
from holdfast.ids import make_id


class Checkpoint(msgspec.Struct, frozen=True):
    """One prompt on many models, at the latest step of each."""

    prompt: str
    #: When the first response was recorded.
    timestamp: datetime
    #: The ids of the models, in the order in which they were given.
    adapter_ids: tuple[str, ...]
    #: In the order of the adapter ids. A model that has not started has none.
    responses: tuple[ResponseSnapshot, ...]
    #: Whether the models' steps are logged.
    verbose: bool = False


def build(
    prompt: str,
    adapter_ids: Sequence[str],
    responses: Iterable[ResponseSnapshot | ModelResponse],
    verbose: bool = False,
) -> Checkpoint | None:
    """Return the checkpoint of these responses, or `None` if none is interrupted: nothing is left to resume."""
    snapshots = [
        ResponseSnapshot.from_response(each) if isinstance(each, ModelResponse) else each for each in responses
    ]
    if not any(snapshot.interrupted for snapshot in snapshots):
        return None
    return Checkpoint(prompt, CLOCK.get().now(), tuple(adapter_ids), tuple(snapshots), verbose)


def save(path: Path | str, checkpoint: Checkpoint) -> None:
    """Replace the file by the checkpoint, atomically.

    Raises:
        FanoutError: JSON cannot hold a response.
        OSError: the file could not be written. The previous checkpoint is unchanged.
    """
    for snapshot in checkpoint.responses:
        _encode_snapshot(snapshot)
    _remove_stale_files(Path(path))
    write_atomically(Path(path), msgspec.json.encode(checkpoint))


def load(path: Path | str) -> Checkpoint | None:
    """Return the checkpoint in this file, or `None` if the file does not exist.

    Raises:
        CorruptCheckpoint: the file is not a checkpoint. It was not changed.
    """
    try:
        checkpoint = msgspec.json.decode(Path(path).read_bytes(), type=Checkpoint)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise CorruptCheckpoint(str(path), str(exc)) from exc
    models = [each.model_id for each in checkpoint.responses]
    if len(set(models)) < len(models) or not set(models) <= set(checkpoint.adapter_ids):
        raise CorruptCheckpoint(str(path), "its responses do not match its models")
    return checkpoint


def clear(path: Path | str) -> None:
    """Remove the file, if it exists, and what unfinished writes have left."""
    remove_file(Path(path))


class IncrementalSaver:
    """Writes the latest snapshot of every model to one file, from any number of threads.

    `update` and `mark_completed` return when the file contains the snapshot. Calls that arrive during a write share
    the next one. The file stays until `clear`.
    """

    def __init__(self, path: Path | str, prompt: str, adapter_ids: Sequence[str], verbose: bool = False) -> None:
        """Create a saver. It writes nothing before the first update.

        A file of the same prompt and models is continued: the responses in it stay. Another one is replaced.

        Raises:
            CorruptCheckpoint: the file exists and is not a checkpoint. It was not changed.
        """
        self._path = Path(path).absolute()
        self._adapter_ids = tuple(adapter_ids)
        self._prompt, self._verbose, self._timestamp = prompt, verbose, CLOCK.get().now()
        #: By model id.
        self._encoded: dict[str, msgspec.Raw] = {}
        existing = load(self._path)
        if existing is not None and (existing.prompt, existing.adapter_ids) == (prompt, self._adapter_ids):
            self._timestamp = existing.timestamp
            self._encoded = {each.model_id: _encode_snapshot(each) for each in existing.responses}
        self._recorded = self._written = 0
        #: Guards the two fields above. Never held during a write.
        self._lock = THREADS.get().make_lock()
        self._write_lock = THREADS.get().make_lock()

    def update(self, model_id: str, snapshot: ResponseSnapshot) -> None:
        """Record a finished step of a model: its latest snapshot.

        Raises:
            FanoutError: the model is not one of the adapter ids, the snapshot is of another model, or JSON cannot
                hold it. The file still has the previous snapshot of this model.
            OSError: the file could not be written. The next write includes the snapshot.
        """
        if model_id not in self._adapter_ids:
            raise FanoutError(f"{model_id!r} is not a model of this fan-out: it has {', '.join(self._adapter_ids)}")
        if snapshot.model_id != model_id:
            raise FanoutError(f"the snapshot is of {snapshot.model_id!r}, not of {model_id!r}: use the id of its model")
        encoded = _encode_snapshot(snapshot)
        with self._lock:
            self._encoded[model_id] = encoded
            self._recorded += 1
            number = self._recorded
        with self._write_lock:
            if self._written < number:  # else another caller's write included it
                self._write()

    def mark_completed(self, model_id: str, snapshot: ResponseSnapshot) -> None:
        """Record the final response of a model: its answer or its error.

        Raises:
            FanoutError, OSError: as `update`.
        """
        final = msgspec.structs.replace(snapshot, interrupted=False, completed=not snapshot.error)
        self.update(model_id, final)

    def _write(self) -> None:
        with self._lock:
            encoded, number = dict(self._encoded), self._recorded
        checkpoint = {
            "prompt": self._prompt,
            "timestamp": self._timestamp,
            "adapter_ids": self._adapter_ids,
            "responses": [encoded[each] for each in self._adapter_ids if each in encoded],
            "verbose": self._verbose,
        }
        if not self._written:
            _remove_stale_files(self._path)
        write_atomically(self._path, msgspec.json.encode(checkpoint))
        self._written = number


def _encode_snapshot(snapshot: ResponseSnapshot) -> msgspec.Raw:
    try:
        encoded = msgspec.json.encode(snapshot)
        # NaN is encoded as null, which no reader accepts.
        msgspec.json.decode(encoded, type=ResponseSnapshot)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as exc:
        raise FanoutError(f"the response of {snapshot.model_id!r} cannot be stored as JSON: {exc}") from exc
    return msgspec.Raw(encoded)


# -- atomic replacement of a small file -------------------------------------------------------------------------------


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of the file: write to a temporary file, fsync, rename, fsync the folder.

    Only the owner can read the file, and the folders that are created for it.

    Raises:
        OSError: the file could not be written. Its old content is unchanged.
    """
    create_folder(path.parent)
    temporary, fd = _open_temporary(path)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
            os.replace(temporary, path)
        finally:
            os.close(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_folder(path.parent)


def create_folder(folder: Path) -> None:
    """Create the folder and its missing parents durably, readable by the owner only."""
    missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            each.mkdir(mode=0o700)
        fsync_folder(each.parent)


def remove_file(path: Path) -> None:
    """Remove the file, if it exists, and the temporary files of processes that died while they wrote it."""
    if path.parent.is_dir():
        path.unlink(missing_ok=True)
        _remove_stale_files(path)
        fsync_folder(path.parent)


def _open_temporary(path: Path) -> tuple[Path, int]:
    """Create a locked temporary file. The lock ends with the process, so others see whether it is alive."""
    while True:
        temporary = path.parent / f".{path.name}.{make_id()}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: its stale files stay
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:  # else another process took it for stale before the lock
            return temporary, fd
        os.close(fd)


def _remove_stale_files(path: Path) -> None:
    # The exact pattern spares the temporary files of `path.json`, which another process may be writing.
    unfinished = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{16}\.tmp")
    for name in os.listdir(path.parent) if path.parent.is_dir() else ():
        if not unfinished.fullmatch(name):
            continue
        with contextlib.suppress(OSError):  # removed meanwhile, or locked by its writer
            fd = os.open(path.parent / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (path.parent / name).unlink()
            finally:
                os.close(fd)
