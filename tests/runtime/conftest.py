"""A folder with a store and with the processes that share it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.task_process import TaskAgents
from tests.store_kinds import STORES

from holdfast import App, WorkerSettings
from holdfast.checkpoint.record import RunFilter, RunRecord
from holdfast.checkpoint.store import iter_runs

#: Recovers nothing by itself.
IDLE_WORKER = WorkerSettings(take_runs=False)


class ProcessHarness:
    """Where child processes and the test itself share a store."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.agents = TaskAgents(folder)
        self._children: list[subprocess.Popen[str]] = []

    def app(self, agents: TaskAgents | None = None, **options: Any) -> App:
        """An App of this process, which recovers nothing unless told to."""
        mine = agents or self.agents
        return App([mine.agent, mine.other], options.pop("store", self.url), **{"worker": IDLE_WORKER, **options})

    def start(self, command: str, *arguments: str, later: int = 0) -> "subprocess.Popen[str]":
        """A child process that has the store open."""
        program = [sys.executable, "-m", "tests.runtime.task_process", str(self.folder), self.url, str(later)]
        child = subprocess.Popen(
            [*program, command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._children.append(child)
        if command != "run_sync":
            assert _read_line(child) == b"ready\n"
        return child

    def kill_all(self) -> None:
        for child in self._children:
            with child:
                child.kill()

    def set_flag(self, name: str) -> None:
        (self.folder / name).touch()

    def clear_flag(self, name: str) -> None:
        (self.folder / name).unlink()

    def read_effects(self) -> list[str]:
        """What was done to the world: run, tool and call."""
        return self.agents.read_effects()

    def list_calls(self) -> list[str]:
        """The tools that were called, in order."""
        return [deed.split()[1] for deed in self.read_effects()]

    def wait_for_effect(self, deed: str) -> None:
        self._wait(lambda: deed in self.read_effects())

    def wait_for_calls(self, tool: str, count: int) -> None:
        self._wait(lambda: self.list_calls().count(tool) >= count)

    def _wait(self, seen: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not seen():
            assert time.monotonic() < end, f"there is only {self.read_effects()}"
            time.sleep(0.005)


def _read_line(process: "subprocess.Popen[str]") -> bytes:
    """Read one line and nothing after it: `communicate` does not return what `readline` has buffered."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(process.stdout.fileno(), 1)):
        line += byte
    return line


async def load_records(app: App, filter: RunFilter | None = None) -> dict[str, RunRecord]:
    assert app.store is not None
    return {record.run_id: record async for record in iter_runs(app.store, filter)}


@contextmanager
def _open_harness(folder: Path, kind: str) -> Iterator[ProcessHarness]:
    with STORES[kind].open_empty(folder) as url:
        harness = ProcessHarness(folder, url)
        try:
            yield harness
        finally:
            harness.kill_all()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ProcessHarness]:
    """On SQLite."""
    with _open_harness(tmp_path, "sqlite") as harness:
        yield harness


@pytest.fixture(params=["sqlite", "postgres"])
def fleet_harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProcessHarness]:
    """On each store that a fleet may share."""
    with _open_harness(tmp_path, request.param) as harness:
        yield harness
