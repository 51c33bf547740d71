"""A server in a process of its own, shared by the tests of this folder, and others that a test may kill."""

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.web.site import SECRET

from holdfast.web.auth import Scope
from holdfast.web.tokens import BrowserTokens

ROOT = Path(__file__).parents[2]


@dataclass
class Site:
    """A folder with a store, and the processes that work on it."""

    folder: Path
    store: str = ""
    url: str = ""
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = self.store or f"sqlite:{self.folder / 'runs.db'}"

    def start(self, kind: str = "users") -> "subprocess.Popen[str]":
        """Start a server or a worker, and return when it is ready. A server gets the port of the one before."""
        port = urlsplit(self.url).port or 0
        command = [sys.executable, "-m", "tests.web.site", str(self.folder), self.store, kind, str(port)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line, "the process ended before it was ready"
        if not kind.endswith("worker"):
            self.url = line
        return process

    def kill(self, process: "subprocess.Popen[str]") -> None:
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self.processes:
            self.kill(process)
            assert process.stdout is not None
            process.stdout.close()

    def open_gate(self, run_id: str) -> None:
        (self.folder / f"open-{run_id}").touch()

    def read_ledger(self, run_id: str) -> list[str]:
        lines = (self.folder / "ledger").read_text().splitlines() if (self.folder / "ledger").exists() else []
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == run_id]

    def wait_for_line(self, run_id: str, text: str) -> str:
        """Return the line of the ledger that begins with this text, once it is there."""
        while True:
            for line in self.read_ledger(run_id):
                if line.startswith(text):
                    return line
            time.sleep(0.01)

    def issue_token(self, run_id: str, *scopes: Scope) -> str:
        return BrowserTokens(SECRET).issue(run_id, scopes=set(scopes))

    def client(self, user: str = "ann", **headers: str) -> httpx.AsyncClient:
        sent = {"x-user": user, **headers} if user else headers
        return httpx.AsyncClient(base_url=self.url, headers=sent, timeout=30, trust_env=False, verify=False)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with the API under a prefix of a FastAPI app, which executes its runs too."""
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        site.start()
        yield site
    finally:
        site.stop()


@pytest.fixture
async def ann(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    async with site.client("ann") as client:
        yield client


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[Site]:
    """A folder whose processes the test starts and kills."""
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.stop()
