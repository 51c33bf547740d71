"""`python -m bench.scorecard [SYSTEM...]`: kill the program of each system at every point.

Prints the page, and writes it if all systems were chosen.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bench.environment import python_for
from bench.scorecard.judge import FURTHER_RUNS, Scores, Trial, judge
from bench.scorecard.ledger import LAST, POINTS, Ledger
from bench.scorecard.table import PAGE, SYSTEMS, System, format_page
from bench.systems.protocol import POSTGRES_SIZE, disk_bytes
from tests.postgres_server import LocalServer, fresh_database

RESULT = f"result of {LAST}"
TIMEOUT_S = 60.0


class Programs(NamedTuple):
    """The programs of one system, and the place of their runs."""

    system: System
    folder: Path
    postgres: str

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Run the server of the system, if it has one of its own."""
        server = self.start("serve", "") if self.system.has_server else None
        try:
            yield
        finally:
            if server is not None:
                server.terminate()
                server.communicate()

    def start(self, command: str, run_id: str) -> "subprocess.Popen[str]":
        program = f"bench.scorecard.programs.{self.system.module}"
        arguments = (command, str(self.folder), self.postgres, run_id)
        with (self.folder / "log").open("a") as log:
            return subprocess.Popen(
                [str(python_for(self.system.environment)), "-m", program, *arguments],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def finish(self, command: str, run_id: str) -> str:
        """Return what the program printed. One that does not end is killed."""
        process = self.start(command, run_id)
        try:
            return process.communicate(timeout=TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0]

    @contextlib.contextmanager
    def approving(self, run_id: str) -> Iterator[None]:
        approver = self.start("approve", run_id)
        try:
            yield
        finally:
            approver.kill()
            approver.communicate()

    def measure_storage(self) -> int:
        """Return the bytes of the store. No process has it open, and the logs of SQLite are in their databases."""
        if not self.system.on_postgres:
            return disk_bytes(self.folder / "store")
        import psycopg

        with psycopg.connect(self.postgres) as connection:
            row = connection.execute(POSTGRES_SIZE).fetchone()
            return int(row[0]) if row else 0


@contextlib.contextmanager
def placed(system: System, server: LocalServer) -> Iterator[Programs]:
    """Give the programs of the system an empty folder and an empty database."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, fresh_database(server) as url:
        (Path(name) / "store").mkdir()
        yield Programs(system, Path(name), url)


def run_trial(programs: Programs, point: str) -> Trial:
    """Kill the program once, restart it as its system documents, and give the same id again."""
    run_id = "order-1"
    ledger = Ledger(programs.folder / run_id)
    if point:
        ledger.plan_kill(point)
    with programs.serving(), programs.approving(run_id):
        programs.finish("submit", run_id)
        found = False
        if point:
            log = (programs.folder / "log").read_text()
            assert not ledger.is_kill_pending, f"{programs.system.name} never came to {point}: {log[-2000:]}"
            programs.finish("work" if programs.system.finds_runs else "submit", run_id)
            wanted = 2 if point == f"after {LAST}" else 1
            found = programs.system.finds_runs and ledger.read().count(LAST) == wanted
        effects = ledger.read()
        output = programs.finish("submit", run_id)
        again = RESULT in output and ledger.read() == effects
    return Trial(point, effects, found, ledger.is_unknown_reported, again)


def measure_growth(programs: Programs) -> int:
    """Return the bytes by which each further run makes the store larger, on average."""
    sizes = []
    for ids in (["order-0"], [f"order-{number}" for number in range(1, FURTHER_RUNS + 1)]):
        with programs.serving():
            for run_id in ids:
                with programs.approving(run_id):
                    output = programs.finish("submit", run_id)
                assert RESULT in output, f"{programs.system.name} did not finish {run_id}"
        sizes.append(programs.measure_storage())
    return (sizes[1] - sizes[0]) // FURTHER_RUNS


def score(system: System, server: LocalServer) -> Scores:
    trials = []
    for point in ("", *POINTS):
        with placed(system, server) as programs:
            trials.append(run_trial(programs, point))
        print(system.name, json.dumps(trials[-1]), file=sys.stderr, flush=True)
    with placed(system, server) as programs:
        growth = measure_growth(programs)
    print(system.name, growth, "bytes a run", file=sys.stderr, flush=True)
    return judge(trials, growth)


def main() -> None:
    chosen = [system for system in SYSTEMS if not sys.argv[1:] or system.module in sys.argv[1:]]
    for system in chosen:
        python_for(system.environment)
    server = LocalServer()
    began = time.monotonic()
    try:
        # Two at once: each has up to four processes, and timeouts.
        with ThreadPoolExecutor(2) as threads:
            scores = dict(zip(chosen, threads.map(lambda system: score(system, server), chosen), strict=True))
    finally:
        server.remove()
    page = format_page(scores, time.monotonic() - began)
    print(page)
    if len(chosen) == len(SYSTEMS):
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
