"""The counter of fencing tokens: one for the whole store, so that they grow over removal and re-creation of a run."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.stores.file.disk import Disk, read_at, store_error
from holdfast.checkpoint.stores.file.lines import NotALine, sealed, unsealed
from holdfast.checkpoint.stores.file.locks import LockHeld, locked

_WIDTH = 64


class _Slot(msgspec.Struct):
    token: int


_slot = msgspec.json.Decoder(_Slot)


class Tokens:
    """Two slots in one small file, written in turn: a write that is torn leaves the other one."""

    def __init__(self, path: Path, disk: Disk, *, patience: float, largest_in_use: Callable[[], int]) -> None:
        self._path, self._disk, self._patience = path, disk, patience
        self._largest_in_use = largest_in_use
        #: Threads of this process wait here, without polling.
        self._turn = threading.Lock()

    def next(self, *, above: int) -> int:
        """A token larger than `above` and than any that was ever given out. Safe on disk when this returns.

        Raises:
            StoreError: the counter cannot be used now. It is everybody's, so this is about no run in particular.
        """
        try:
            with self._turn, locked(self._path, self._disk, patience=self._patience) as lock:
                return self._next(lock.fd, above)
        except LockHeld:
            raise StoreUnavailable(
                f"the counter {self._path} has been held by another process for {self._patience:g} s, which may be "
                "stopped: see to that process, then try again"
            ) from None
        except OSError as error:
            raise store_error(error, self._path) from error

    def _next(self, fd: int, above: int) -> int:
        slots = [self._read(fd, n) for n in (0, 1)]
        known = [token for token in slots if token is not None]
        token = max([above, *(known or [self._largest_in_use()])]) + 1
        # Over the older of the two: the newer stays readable whatever happens to this write.
        older = 1 if slots[0] is not None and (slots[1] is None or slots[1] < slots[0]) else 0
        line = sealed(msgspec.json.encode(_Slot(token))).rstrip(b"\n").ljust(_WIDTH - 1) + b"\n"
        self._disk.write(fd, line, older * _WIDTH)
        self._disk.sync(fd)
        return token

    def _read(self, fd: int, n: int) -> int | None:
        with contextlib.suppress(NotALine, msgspec.DecodeError):
            return _slot.decode(unsealed(read_at(fd, _WIDTH, n * _WIDTH).rstrip() + b"\n")).token
        return None
