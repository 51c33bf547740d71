"""Where the runs of a job are kept: savers that commit to the disk, synchronous and asynchronous."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
from bench.systems.footprint import uses_postgres
from bench.systems.protocol import Job
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

#: As LangGraph's documentation has them.
SETTINGS = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


@contextmanager
def saver(job: Job) -> Iterator[Any]:
    if uses_postgres(job):
        with ConnectionPool(job["postgres"] or "", min_size=4, max_size=16, kwargs=SETTINGS) as pool:
            postgres = PostgresSaver(pool)
            postgres.setup()
            yield postgres
        return
    with closing(sqlite3.connect(_database(job), check_same_thread=False)) as connection:
        connection.execute("PRAGMA synchronous=FULL")  # WAL is what its own setup asks for
        sqlite = SqliteSaver(connection)
        sqlite.setup()
        yield sqlite


@asynccontextmanager
async def async_saver(job: Job) -> AsyncIterator[Any]:
    """Open LangGraph's own saver, in memory or on the disk, or holdfast's."""
    if job["variant"] == "memory":
        yield InMemorySaver()
        return
    if job["variant"].endswith("-holdfast"):
        from holdfast.adapters.langgraph import HoldfastSaver  # no other workload should pay for it

        async with HoldfastSaver.from_url(job["postgres"] or f"sqlite:{_database(job)}") as ours:
            yield ours
        return
    if uses_postgres(job):
        async with AsyncConnectionPool(job["postgres"] or "", min_size=4, max_size=16, kwargs=SETTINGS) as pool:
            postgres = AsyncPostgresSaver(pool)
            await postgres.setup()
            yield postgres
        return
    async with aiosqlite.connect(_database(job)) as connection:
        await connection.execute("PRAGMA synchronous=FULL")
        sqlite = AsyncSqliteSaver(connection)
        await sqlite.setup()
        yield sqlite


async def threads(saver: Any) -> list[str]:
    """Every thread that the saver has: LangGraph itself lists none."""
    query = "select distinct thread_id from checkpoints"
    if isinstance(saver, AsyncPostgresSaver):
        async with saver.conn.connection() as connection:
            return [row["thread_id"] for row in await (await connection.execute(query)).fetchall()]
    return [name for (name,) in await saver.conn.execute_fetchall(query)]


def _database(job: Job) -> Path:
    return Path(job["folder"]) / "checkpoints.db"
