"""Workers in processes of their own, and what happens to them."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from tests.chaos.agent import Effect, Ledger
from tests.chaos.worker import WorkerConfig

#: Workers are on two hosts, so that both ways to learn of a death are tried.
HOSTS = ("north", "south")


class Fleet:
    """Four workers on one store. Whatever happens to them, there are four again soon."""

    def __init__(
        self, url: str, folder: Path, *, size: int = 4, seconds: float = 0.1, concurrency: int = 4, bug: str = ""
    ) -> None:
        self.url, self._folder = url, folder
        self.ledger = Ledger(folder / "ledger")
        self._orders = [
            WorkerConfig(
                url=url,
                ledger=str(folder / "ledger"),
                host=HOSTS[number % len(HOSTS)],
                seconds=seconds,
                concurrency=concurrency,
                bug=bug,
            )
            for number in range(size)
        ]
        self._workers = [self._start(number) for number in range(size)]
        self._waking: list[tuple[float, subprocess.Popen[bytes]]] = []
        self.kills = self.stops = 0

    @property
    def size(self) -> int:
        return len(self._workers)

    def pid(self, number: int) -> int:
        return self._workers[number].pid

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        with (self._folder / f"worker-{number}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.worker", msgspec.json.encode(self._orders[number]).decode()],
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )

    def kill(self, number: int) -> None:
        """SIGKILL, and a new worker in its place."""
        self._workers[number].kill()
        self._workers[number].wait()
        self._workers[number] = self._start(number)
        self.kills += 1

    def stop(self, number: int, seconds: float) -> None:
        """SIGSTOP; SIGCONT after so long."""
        worker = self._workers[number]
        worker.send_signal(signal.SIGSTOP)
        self._waking.append((time.monotonic() + seconds, worker))
        self.stops += 1

    def wake(self, *, all_of_them: bool = False) -> None:
        """SIGCONT to those that have been stopped for long enough."""
        now = time.monotonic()
        for when, worker in list(self._waking):
            if all_of_them or now >= when:
                worker.send_signal(signal.SIGCONT)
                self._waking.remove((when, worker))

    def dismiss(self) -> list[int]:
        """SIGTERM to all, once they listen to it. Their exit codes."""
        self.wake(all_of_them=True)
        for worker in self._workers:
            ready = self._folder / f"ready-{worker.pid}"
            self.until(lambda ledger, ready=ready: ready.exists())  # type: ignore[misc]
            worker.send_signal(signal.SIGTERM)
        return [worker.wait(timeout=60) for worker in self._workers]

    def close(self) -> None:
        """Leave no process behind, however the test ended."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()

    def printed(self) -> str:
        logs = sorted(self._folder.glob("worker-*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in logs if log.stat().st_size)

    def until(self, enough: Callable[[list[Effect]], bool], *, timeout: float = 60.0) -> None:
        """Return when the ledger says so."""
        deadline = time.monotonic() + timeout
        while not enough(self.ledger.read()):
            assert time.monotonic() < deadline, f"the fleet does not get that far\n{self.printed()}"
            time.sleep(0.01)


@contextlib.contextmanager
def fleet(url: str, folder: Path, *, seconds: float = 0.1, concurrency: int = 4, bug: str = "") -> Iterator[Fleet]:
    workers = Fleet(url, folder, seconds=seconds, concurrency=concurrency, bug=bug)
    try:
        yield workers
    finally:
        workers.close()


class Chaos:
    """Random mishaps, the same ones for the same seed; how they meet the workers is up to the machine."""

    def __init__(self, workers: Fleet, seed: int, restart_server: Callable[[bool], None] | None = None) -> None:
        self._workers, self._restart_server = workers, restart_server
        self._chance = random.Random(seed)
        self.restarts = 0

    def disrupt(self) -> float:
        """One mishap. Returns how long to wait for the next."""
        self._workers.wake()
        number = self._chance.randrange(self._workers.size)
        what = self._chance.random()
        if what < 0.5:
            self._workers.kill(number)
        elif what < 0.9 or self._restart_server is None:
            # Some wake up in time, some after they were declared dead.
            self._workers.stop(number, self._chance.choice([0.2, 0.5, 2.5]))
        else:
            self._restart_server(self._chance.random() < 0.5)
            self.restarts += 1
        return self._chance.uniform(0.1, 0.6)
