"""DBOS on the database of a job, asked to commit to the disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from bench.systems.footprint import uses_postgres
from bench.systems.protocol import Job
from dbos import DBOS


@sqlalchemy.event.listens_for(sqlalchemy.Engine, "connect")
def to_the_disk(connection: Any, record: Any) -> None:
    """SQLite in WAL mode, which is faster than DBOS's default and as safe with `synchronous=FULL`."""
    if type(connection).__module__.startswith("sqlite3"):
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")


def database_url(job: Job) -> str:
    return job["postgres"] or "" if uses_postgres(job) else f"sqlite:///{Path(job['folder']) / 'dbos.sqlite'}"


@contextmanager
def launched(job: Job) -> Iterator[None]:
    """DBOS runs; what was interrupted is being recovered."""
    config: Any = {"name": "bench", "system_database_url": database_url(job), "log_level": "ERROR"}
    # Timeout for a connection: with the default of 30 seconds runs fail where 1,000 share a pool.
    DBOS(config=config | {"db_engine_kwargs": {"pool_timeout": 3600}})
    DBOS.launch()
    try:
        yield
    finally:
        DBOS.destroy()
