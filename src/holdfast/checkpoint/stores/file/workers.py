"""One small file for each worker: which process it is, and when it last showed a sign of life."""

import contextlib
import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import msgspec

from holdfast.checkpoint.claim import Worker
from holdfast.checkpoint.liveness import is_alive
from holdfast.checkpoint.stores.file.disk import Disk, of_one_file
from holdfast.checkpoint.stores.file.layout import NOT_JSON, Layout, created
from holdfast.checkpoint.stores.file.names import file_name

#: A host that was asleep for so long. Sooner, a worker that wakes up would be without its file, and dead for ever.
_FORGOTTEN_AFTER = timedelta(days=30).total_seconds()

_worker = msgspec.json.Decoder(Worker)


class Workers:
    """Who is alive. A worker without a file is not.

    On one host that is known from the process itself. From elsewhere (another host, another container) it is known by
    the time of the file, which each worker's own process touches; both times are the file system's.
    """

    def __init__(self, layout: Layout, disk: Disk, *, dead_after: timedelta) -> None:
        self._layout, self._disk = layout, disk
        self._dead_after = dead_after.total_seconds()
        self._ours: set[str] = set()
        self._guard = threading.Lock()
        self._stopped = threading.Event()
        self._heart: threading.Thread | None = None

    def enlist(self, worker: Worker) -> None:
        with self._guard:
            path = self._path(worker.worker_id)
            temporary = self._layout.new_temporary(file_name(worker.worker_id))
            with created(self._disk, temporary, msgspec.json.encode(worker) + b"\n"):
                self._disk.replace(temporary, path)
            self._ours.add(worker.worker_id)
            if self._heart is None:
                self._heart = threading.Thread(
                    target=self._beat, args=(self._stopped,), name="holdfast-file-heartbeat", daemon=True
                )
                self._heart.start()

    def discharge(self, worker_id: str) -> None:
        with self._guard:
            self._ours.discard(worker_id)
            self._disk.unlink(self._path(worker_id))

    def stop(self) -> None:
        """No more signs of life from here. The workers stay enlisted: their process may live on."""
        with self._guard:
            heart, self._heart = self._heart, None
            self._stopped.set()
            self._stopped = threading.Event()  # for the next heart, if the store is opened again
        if heart is not None:
            heart.join()

    def alive(self, worker_id: str) -> bool:
        path = self._path(worker_id)
        try:
            worker = _worker.decode(path.read_bytes())
        except (FileNotFoundError, *NOT_JSON):
            # Spoilt: torn by a power cut, which no worker survived.
            return False
        except OSError as error:
            # Another user's: which process it is cannot be read, when it was heard can.
            if not of_one_file(error):
                raise
        else:
            here = is_alive(worker.process)
            if here is not None:
                return here
        with contextlib.suppress(FileNotFoundError):
            return self._silence(path) <= self._dead_after
        return False

    def forget_the_dead(self) -> None:
        """Delete the files of workers that will never come back."""
        for path in self._layout.workers.iterdir():
            with contextlib.suppress(OSError, *NOT_JSON):
                worker = _worker.decode(path.read_bytes())
                here = is_alive(worker.process)
                if here is False or (here is None and self._silence(path) > _FORGOTTEN_AFTER):
                    self._disk.unlink(path)

    def _silence(self, path: Path) -> float:
        """Seconds since the file was touched, on the clock of its file system."""
        try:
            os.utime(self._layout.clock)
            now = self._layout.clock.stat().st_mtime
        except OSError:
            # A folder we may only read.
            now = time.time()
        return now - path.stat().st_mtime

    def _beat(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._dead_after / 5):
            with self._guard:
                for worker_id in self._ours:
                    # The file is gone if somebody discharged the worker: it stays so. A disk that cannot be reached
                    # for a while: the next beat may get through.
                    with contextlib.suppress(OSError):
                        os.utime(self._path(worker_id))

    def _path(self, worker_id: str) -> Path:
        return self._layout.worker(file_name(worker_id))
