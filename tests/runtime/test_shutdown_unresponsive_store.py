"""A process that has to stop while its store does not answer stops long before the store's timeout has passed."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import psycopg
import pytest
from tests.store_kinds import STORES

from holdfast import Agent, App, Reply

PROGRAM = """
import asyncio, sys
from datetime import timedelta
from holdfast import Agent, App, Reply, WorkerSettings
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore

async def model(messages, tools):
    print("asked", flush=True)
    await asyncio.Event().wait()

async def main():
    url, timeout = sys.argv[1], timedelta(hours=1)
    path = url.removeprefix("sqlite:")
    store = PostgresStore(url, timeout=timeout) if path == url else SqliteStore(path, timeout=timeout)
    agent = Agent(name="agent", model=model)
    async with App([agent], store, worker=WorkerSettings(take_runs=False, shutdown_timeout=timedelta(0))) as app:
        await app.run("agent", "go", run_id="r1")

asyncio.run(main())
"""


@contextlib.contextmanager
def silence(url: str) -> Iterator[None]:
    """No other client can read the runs in this database."""
    if url.startswith("sqlite:"):
        connection = apsw.Connection(url.removeprefix("sqlite:"))
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.close()
    else:
        with psycopg.connect(url) as session:
            session.execute("lock table holdfast.run, holdfast.worker, holdfast.writer in access exclusive mode")
            yield
            session.rollback()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_sigterm_ends_a_process_whose_store_does_not_answer(kind: str, tmp_path: Path) -> None:
    with STORES[kind].open_empty(tmp_path) as url:
        command = [sys.executable, "-c", PROGRAM, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "asked\n"
            try:
                with silence(url):
                    process.send_signal(signal.SIGTERM)
                    said = process.communicate(timeout=100)[1]
            finally:
                process.kill()
        assert "and recovery resumes them when this process has ended: r1" in said
        assert "Shutdown" in said
        assert asyncio.run(_resumed(url)) == "done"


async def _resumed(url: str) -> str:
    async def model(messages: object, tools: object) -> Reply:
        return Reply(text="done")

    async with App([Agent(name="agent", model=model)], url, worker=False) as app:
        return str((await app.run("agent", "go", run_id="r1")).output)
