"""A file that is appended to and synced."""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from bench.systems.raw.row import Row

_HEAD = struct.Struct("<qqq")


class FileLog:
    """One file for all runs: each message after a head with its run, number and length."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / "raw.log"
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._loaded: dict[int, list[bytes]] | None = None

    def append(self, rows: Sequence[Row]) -> None:
        os.write(self._file, b"".join(_HEAD.pack(run, seq, len(body)) + body for run, seq, body in rows))
        os.fdatasync(self._file)

    def runs(self) -> list[int]:
        return list(self._read())

    def load(self, run: int) -> list[bytes]:
        return self._read()[run]

    def _read(self) -> dict[int, list[bytes]]:
        if self._loaded is None:
            self._loaded, data, at = {}, self._path.read_bytes(), 0
            while at < len(data):
                run, _, size = _HEAD.unpack_from(data, at)
                at += _HEAD.size + size
                self._loaded.setdefault(run, []).append(data[at - size : at])
        return self._loaded

    def close(self) -> None:
        os.close(self._file)
