"""A fleet of worker processes, and random kills and stops."""

import contextlib
import functools
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

#: Two simulated hosts, so that both ways to detect a dead worker are used: the pid and the heartbeat.
HOSTS = ("north", "south")


class Fleet:
    """Worker processes on one store. A killed worker is replaced."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        size: int = 4,
        seconds: float = 0.1,
        concurrency: int = 4,
        lease_seconds: float = 1.0,
        bug: str = "",
    ) -> None:
        self.url, self._folder = url, folder
        self.ledger = Ledger(folder / "ledger")
        self._configs = [
            WorkerConfig(
                url=url,
                ledger=str(folder / "ledger"),
                host=HOSTS[number % len(HOSTS)],
                seconds=seconds,
                concurrency=concurrency,
                lease_seconds=lease_seconds,
                bug=bug,
            )
            for number in range(size)
        ]
        self._workers = [self._start(number) for number in range(size)]
        self._stopped: list[tuple[float, subprocess.Popen[bytes]]] = []
        self.kills = self.stops = 0

    @property
    def size(self) -> int:
        return len(self._workers)

    def pid(self, number: int) -> int:
        return self._workers[number].pid

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        with (self._folder / f"worker-{number}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.worker", msgspec.json.encode(self._configs[number]).decode()],
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )

    def kill(self, number: int) -> None:
        """Send SIGKILL and start a new worker in its place."""
        self._workers[number].kill()
        self._workers[number].wait()
        self._workers[number] = self._start(number)
        self.kills += 1

    def stop(self, number: int, seconds: float) -> None:
        """Send SIGSTOP. `wake` sends SIGCONT after this many seconds."""
        worker = self._workers[number]
        worker.send_signal(signal.SIGSTOP)
        self._stopped.append((time.monotonic() + seconds, worker))
        self.stops += 1

    def wake(self, *, all_workers: bool = False) -> None:
        """Send SIGCONT to the workers whose stop time has passed."""
        now = time.monotonic()
        for when, worker in list(self._stopped):
            if all_workers or now >= when:
                worker.send_signal(signal.SIGCONT)
                self._stopped.remove((when, worker))

    def terminate(self) -> list[int]:
        """Send SIGTERM to all workers once they handle it. Return their exit codes."""
        self.wake(all_workers=True)
        for worker in self._workers:
            ready = self._folder / f"ready-{worker.pid}"
            self.wait_until(functools.partial(_exists, ready))
            worker.send_signal(signal.SIGTERM)
        return [worker.wait(timeout=120) for worker in self._workers]

    def close(self) -> None:
        """Kill the workers that are still running."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()

    def count_starts(self) -> list[int]:
        """Return how often each worker has opened its App."""
        files = [self._folder / f"ready-{worker.pid}" for worker in self._workers]
        return [len(file.read_text().splitlines()) if file.exists() else 0 for file in files]

    def read_logs(self) -> str:
        logs = sorted(self._folder.glob("worker-*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in logs if log.stat().st_size)

    def wait_until(self, condition: Callable[[list[Effect]], bool], *, timeout: float = 120.0) -> None:
        """Wait until the condition holds for the ledger."""
        deadline = time.monotonic() + timeout
        while not condition(self.ledger.read()):
            assert time.monotonic() < deadline, f"timed out after {timeout} s\n{self.read_logs()}"
            time.sleep(0.01)


def _exists(path: Path, ledger: list[Effect]) -> bool:
    return path.exists()


@contextlib.contextmanager
def fleet(url: str, folder: Path, *, seconds: float = 0.1, concurrency: int = 4, bug: str = "") -> Iterator[Fleet]:
    workers = Fleet(url, folder, seconds=seconds, concurrency=concurrency, bug=bug)
    try:
        yield workers
    finally:
        workers.close()


class Chaos:
    """Random kills, stops and restarts. The sequence depends on the seed, its timing on the machine."""

    def __init__(self, workers: Fleet, seed: int, restart_server: Callable[[bool], None] | None = None) -> None:
        self._workers, self._restart_server = workers, restart_server
        self._rng = random.Random(seed)
        self.restarts = 0

    def disrupt(self) -> float:
        """Make one disruption, the first of which is a kill. Return the seconds to wait before the next."""
        self._workers.wake()
        number = self._rng.randrange(self._workers.size)
        choice = self._rng.random()
        if choice < 0.5 or not self._workers.kills:
            self._workers.kill(number)
        elif choice < 0.9 or self._restart_server is None:
            # Some wake before their lease ends, some after it.
            self._workers.stop(number, self._rng.choice([0.2, 0.5, 2.5]))
        else:
            self._restart_server(self._rng.random() < 0.5)
            self.restarts += 1
        return self._rng.uniform(0.1, 0.6)
