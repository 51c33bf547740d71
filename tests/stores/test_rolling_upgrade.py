"""The schema is migrated while a worker of the version before executes runs. It needs no restart."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import apsw
import psycopg
import pytest
from tests.postgres_server import fresh_database
from tests.stores.next_release import NEXT_VERSION, VERSION, make_next_release
from tests.stores.postgres_support import fail_after_timeout, wait_until

FOLDER = Path(__file__).parent


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path / 'runs.db'}"
        return
    with fresh_database() as url:
        yield url


def read_version(url: str) -> object:
    if url.startswith("sqlite:"):
        connection = apsw.Connection(url.removeprefix("sqlite:"))
        with contextlib.closing(connection):
            return connection.pragma("user_version")
    with psycopg.connect(url) as server:
        [(version,)] = server.execute("select max(version) from holdfast.schema_version").fetchall()
        return version


@contextlib.contextmanager
def start(program: str, url: str, folder: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs a program of this folder, and writes its output to files of its name."""
    with (folder / program).open("wb") as out, (folder / f"{program}.log").open("wb") as log:
        command = [sys.executable, "-P", str(FOLDER / program), url, str(folder)]
        process = subprocess.Popen(command, env=os.environ | env, stdout=out, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_ledger(folder: Path) -> list[tuple[str, str, int]]:
    """The calls so far: run, call and process."""
    path = folder / "ledger"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(run_id, call_id, int(pid)) for run_id, call_id, pid in (line.split() for line in lines)]


async def wait_for_calls(folder: Path, more: int) -> None:
    """Return when each run of the older worker has made this many further calls."""
    before = Counter(run_id for run_id, _, _ in read_ledger(folder))

    async def made() -> bool:
        now = Counter(run_id for run_id, _, _ in read_ledger(folder))
        return len(now) == 4 and all(now[run_id] >= before[run_id] + more for run_id in now)

    await wait_until(made)


async def test_a_worker_of_the_version_before_continues_through_a_migration(url: str, tmp_path: Path) -> None:
    async def migrated() -> bool:
        return (tmp_path / "migrated").exists()

    release = make_next_release(tmp_path)
    with start("charging_worker.py", url, tmp_path) as worker:
        async with fail_after_timeout():
            await wait_for_calls(tmp_path, 3)
            assert read_version(url) == VERSION
            # Opening the store migrates it, between two saves of the runs of the older worker.
            with start("newer_app.py", url, tmp_path, PYTHONPATH=str(release)) as app:
                await wait_until(migrated)
                assert read_version(url) == NEXT_VERSION
                await wait_for_calls(tmp_path, 3)
                # The older worker takes another run from the newer schema.
                (tmp_path / "stop").touch()
                assert await asyncio.to_thread(app.wait) == 0, (tmp_path / "newer_app.py.log").read_text()
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait) == 0, (tmp_path / "charging_worker.py.log").read_text()
    calls = read_ledger(tmp_path)
    assert {pid for _, _, pid in calls} == {worker.pid}
    assert max(Counter((run_id, call_id) for run_id, call_id, _ in calls).values()) == 1
    outputs = json.loads((tmp_path / "newer_app.py").read_text())
    assert outputs == {run_id: str(count) for run_id, count in Counter(run_id for run_id, _, _ in calls).items()}


async def test_a_schema_of_the_version_before_is_refused_after_the_migration(url: str, tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    release = make_next_release(tmp_path)
    with start("charging_worker.py", url, tmp_path):
        async with fail_after_timeout():
            await wait_for_calls(tmp_path, 1)
            with start("newer_app.py", url, tmp_path, PYTHONPATH=str(release)) as app:
                assert await asyncio.to_thread(app.wait) == 0, (tmp_path / "newer_app.py.log").read_text()
            with start("newer_app.py", url, tmp_path) as older:
                assert await asyncio.to_thread(older.wait) == 1
    assert "SchemaTooNew" in (tmp_path / "newer_app.py.log").read_text()
