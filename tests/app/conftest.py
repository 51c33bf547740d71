"""A folder with a store and with the processes that share it."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.app.errands import Errands
from tests.store_kinds import STORES

from holdfast import App
from holdfast.checkpoint.record import RunFilter, RunRecord


class Yard:
    """Where child processes and the test itself share a store."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.errands = Errands(folder)
        self._children: list[subprocess.Popen[str]] = []

    def app(self, errands: Errands | None = None, **options: Any) -> App:
        """An App of this process, which recovers nothing unless told to."""
        mine = errands or self.errands
        return App([mine.agent, mine.other], options.pop("store", self.url), **{"recover": False, **options})

    def start(self, command: str, *arguments: str, later: int = 0) -> "subprocess.Popen[str]":
        """A child process that has the store open."""
        program = [sys.executable, "-m", "tests.app.errands", str(self.folder), self.url, str(later)]
        child = subprocess.Popen(
            [*program, command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._children.append(child)
        if command != "run_sync":
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        return child

    def end(self) -> None:
        for child in self._children:
            with child:
                child.kill()

    def make_true(self, name: str) -> None:
        (self.folder / name).touch()

    def make_false(self, name: str) -> None:
        (self.folder / name).unlink()

    def deeds(self) -> list[str]:
        """What was done to the world: run, tool and call."""
        return self.errands.deeds()

    def calls(self) -> list[str]:
        """The tools that were called, in order."""
        return [deed.split()[1] for deed in self.deeds()]

    def wait_for_deed(self, deed: str) -> None:
        self._wait(lambda: deed in self.deeds())

    def wait_for_calls(self, tool: str, count: int) -> None:
        self._wait(lambda: self.calls().count(tool) >= count)

    def _wait(self, seen: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not seen():
            assert time.monotonic() < end, f"there is only {self.deeds()}"
            time.sleep(0.005)


async def records(app: App, wanted: RunFilter | None = None) -> dict[str, RunRecord]:
    assert app.store is not None
    return {record.run_id: record async for record in app.store.records(wanted)}


@contextmanager
def _yard(folder: Path, kind: str) -> Iterator[Yard]:
    with STORES[kind].place(folder) as url:
        yard = Yard(folder, url)
        try:
            yield yard
        finally:
            yard.end()


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    """On SQLite."""
    with _yard(tmp_path, "sqlite") as yard:
        yield yard


@pytest.fixture(params=["sqlite", "postgres"])
def fleet_yard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Yard]:
    """On each store that a fleet may share."""
    with _yard(tmp_path, request.param) as yard:
        yield yard
