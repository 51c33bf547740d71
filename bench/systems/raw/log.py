"""What a raw limit is made of: somewhere to put messages so that they are safe, with nothing around it."""

from collections.abc import Sequence
from typing import Protocol

from bench.systems.protocol import Job
from bench.systems.raw.row import Row


class Log(Protocol):
    """Messages of runs, durable as soon as `append` returns. One thread at a time."""

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows, of any runs, by one commit."""
        ...

    def runs(self) -> list[int]: ...

    def load(self, run: int) -> list[bytes]: ...

    def close(self) -> None: ...


def open_log(job: Job) -> Log:
    """The log that the job's variant names; made if it is not there yet."""
    kind = job["variant"].partition("-")[0]
    # Only the driver that is needed is loaded, for some limits are counted from the start of the process.
    if kind == "postgres":
        from bench.systems.raw.postgres import PostgresLog

        return PostgresLog(job["postgres"] or "")
    if kind == "sqlite":
        from bench.systems.raw.sqlite import SqliteLog

        return SqliteLog(job["folder"])
    from bench.systems.raw.file import FileLog

    return FileLog(job["folder"])
