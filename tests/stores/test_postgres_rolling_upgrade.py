"""The schema is migrated while a worker of the version before executes runs. It needs no restart."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.postgres_server import fresh_database
from tests.scripted_model import ScriptedModel
from tests.stores.postgres_support import fail_after_timeout, wait_until
from tests.stores.release_fixture import get_release
from tests.stores.test_postgres_schema import VERSION, asked

from holdfast import Agent, App

PROGRAM = Path(__file__).with_name("older_worker.py")


@contextlib.contextmanager
def older_worker(url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the version before, in a process that has only that code on its path."""
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-P", str(PROGRAM), url, str(folder)],
        env=os.environ | {"PYTHONPATH": str(get_release(VERSION - 1))},
        stdout=log,
        stderr=log,
    )
    log.close()
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
    """Return when each run of the older worker has made so many calls more."""
    before = Counter(run_id for run_id, _, _ in read_ledger(folder))

    async def made() -> bool:
        now = Counter(run_id for run_id, _, _ in read_ledger(folder))
        return len(now) == 4 and all(now[run_id] >= before[run_id] + more for run_id in now)

    await wait_until(made)


async def test_a_worker_of_the_version_before_continues_through_a_migration(tmp_path: Path) -> None:
    with fresh_database() as url, older_worker(url, tmp_path) as process:
        async with fail_after_timeout():
            await wait_for_calls(tmp_path, 3)
            assert asked(url, "select max(version) from holdfast.schema_version") == [(VERSION - 1,)]
            # Opening the store migrates it, between two saves of the runs of the older worker.
            async with App([Agent(name="clerk", model=ScriptedModel())], url, worker=False) as app:
                assert asked(url, "select max(version) from holdfast.schema_version") == [(VERSION,)]
                await wait_for_calls(tmp_path, 3)
                (tmp_path / "stop").touch()
                # The older worker takes this one from the newer schema.
                await app.submit("clerk", "Charge.", run_id="new")
                outputs = {run_id: (await app.result(run_id)).output for run_id in [*_list_old_runs(), "new"]}
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait) == 0, (tmp_path / "log").read_text()
    calls = read_ledger(tmp_path)
    assert {pid for _, _, pid in calls} == {process.pid}
    assert max(Counter((run_id, call_id) for run_id, call_id, _ in calls).values()) == 1
    assert outputs == {run_id: str(count) for run_id, count in Counter(run_id for run_id, _, _ in calls).items()}


def _list_old_runs() -> list[str]:
    return [f"old-{number}" for number in range(4)]
