"""`python -m bench.scorecard [SYSTEM...]`: kill the program of each system at every point, and write the page."""

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.environment import python_for
from bench.scorecard.judge import Scores, Trial, judge
from bench.scorecard.ledger import LAST, POINTS, Ledger
from bench.scorecard.table import SYSTEMS, System, write_page
from tests.postgres_server import LocalServer, fresh_database

RESULT = f"result of {LAST}"
TIMEOUT_S = 60.0


def run_trial(system: System, point: str, server: LocalServer) -> Trial:
    """Kill the program once, restart it as its system documents, and give the same id again."""
    with tempfile.TemporaryDirectory() as name, fresh_database(server) as url:
        folder = Path(name)
        ledger = Ledger(folder)
        if point:
            ledger.plan_kill(point)
        before = measure(system, folder, url)
        approver = start(system, "approve", folder, url)
        try:
            finish(start(system, "submit", folder, url))
            found = False
            if point:
                assert not ledger.is_kill_pending, f"{system.name} never came to {point}"
                command = "work" if system.finds_runs else "submit"
                finish(start(system, command, folder, url))
                wanted = 2 if point == f"after {LAST}" else 1
                found = system.finds_runs and ledger.read().count(LAST) == wanted
            effects = ledger.read()
            output = finish(start(system, "submit", folder, url))
            again = RESULT in output and ledger.read() == effects
        finally:
            approver.kill()
            approver.wait()
        size = measure(system, folder, url) - before
        return Trial(point, effects, found, ledger.is_unknown_reported, again, size)


def start(system: System, command: str, folder: Path, url: str) -> "subprocess.Popen[str]":
    program = f"bench.scorecard.programs.{system.module}"
    log = (folder / "log").open("a")
    return subprocess.Popen(
        [str(python_for(system.module)), "-m", program, command, str(folder), url],
        stdout=subprocess.PIPE, stderr=log, text=True,
    )  # fmt: skip


def finish(process: "subprocess.Popen[str]") -> str:
    """Return what the program printed. One that does not end is killed."""
    try:
        return process.communicate(timeout=TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def measure(system: System, folder: Path, url: str) -> int:
    """Return the bytes that the runs of the system occupy."""
    if not system.on_postgres:
        own = {"effects", "log", "kill", "reported", "approval"}
        return sum(path.stat().st_size for path in folder.iterdir() if path.name not in own)
    import psycopg

    with psycopg.connect(url) as connection:
        row = connection.execute("select pg_database_size(current_database())").fetchone()
        return int(row[0]) if row else 0


def score(system: System, server: LocalServer) -> Scores:
    trials = []
    for point in ("", *POINTS):
        trials.append(run_trial(system, point, server))
        print(system.name, json.dumps(trials[-1]), file=sys.stderr, flush=True)
    return judge(trials)


def main() -> None:
    chosen = [system for system in SYSTEMS if not sys.argv[1:] or system.module in sys.argv[1:]]
    server = LocalServer()
    began = time.monotonic()
    try:
        with ThreadPoolExecutor(len(chosen)) as threads:
            scores = dict(zip(chosen, threads.map(lambda system: score(system, server), chosen), strict=True))
    finally:
        server.remove()
    write_page(scores, time.monotonic() - began)


if __name__ == "__main__":
    main()
