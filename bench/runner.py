"""Runs jobs: each in its own process, with an empty folder and database, under a time limit."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.environment import python_for
from bench.plan import Job, Subject
from bench.records import Record, condense_result
from tests.postgres_server import LocalServer, NamedServer, fresh_database

ROOT = Path(__file__).parent.parent
#: Not all environments have holdfast installed.
_ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}


class Runner:
    """Runs the systems' programs. Starts a PostgreSQL server when a job needs one and none was given."""

    def __init__(self, *, time_limit: float, server: LocalServer | NamedServer | None = None) -> None:
        self._time_limit = time_limit
        self._server, self._own_server = server, server is None

    def run_job(self, job: Job, repeat: int) -> Record:
        """Measure once. A failure is recorded too."""
        record = Record(
            workload=job.workload, system=job.subject.system, variant=job.subject.variant, numbers=job.numbers,
            repeat=repeat, took=0.0,
        )  # fmt: skip
        began = time.monotonic()
        try:
            record.result = condense_result(self._measure(job))
        except subprocess.TimeoutExpired:
            record.failed = f"not done after {self._time_limit:.0f} s"
        except (RuntimeError, OSError) as exc:
            record.failed = str(exc)
        record.took = round(time.monotonic() - began, 3)
        return record

    def workloads(self, system: str) -> list[str]:
        """Return the workloads of the system's program."""
        command = [str(python_for(system)), "-m", f"bench.systems.{system}", "--workloads"]
        return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split()

    def close(self) -> None:
        if self._own_server and isinstance(self._server, LocalServer):
            self._server.remove()

    def _measure(self, job: Job) -> dict[str, Any]:
        with _folder() as folder, self._database(job.subject) as postgres:
            asked = {
                "workload": job.workload, "variant": job.subject.variant, "folder": str(folder), "postgres": postgres,
                **job.numbers,
            }  # fmt: skip
            if job.workload != "w3":
                return self._process(job.subject.system, asked)
            self._process(job.subject.system, {**asked, "phase": "prepare"})
            return self._process(job.subject.system, {**asked, "phase": "recover"})

    def _process(self, system: str, job: dict[str, Any]) -> dict[str, Any]:
        command = [str(python_for(system)), "-m", f"bench.systems.{system}", json.dumps(job)]
        done = _run_process(command, self._time_limit)
        if job.get("phase") == "prepare" and done.returncode in (0, -9):
            return {}
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise RuntimeError(_redact_names(said[-1] if said else f"exit code {done.returncode}", job))
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result

    @contextlib.contextmanager
    def _database(self, subject: Subject) -> Iterator[str | None]:
        if not subject.variant.startswith("postgres"):
            yield None
            return
        self._server = self._server or LocalServer(fsync="on")
        with fresh_database(self._server) as url:
            yield url


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Create a folder on the disk of the repository: /tmp may be memory."""
    path = Path(tempfile.mkdtemp(prefix=".bench-", dir=ROOT))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _run_process(command: list[str], time_limit: float) -> "subprocess.CompletedProcess[str]":
    """Run a process to its end. On a timeout kill it with its children."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=_ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=time_limit)
    except BaseException:
        subprocess.run(["kill", "-9", "--", f"-{process.pid}"], check=False)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _redact_names(words: str, job: dict[str, Any]) -> str:
    """Remove paths of this machine: results are published."""
    for place in (job["folder"], job["postgres"], str(ROOT)):
        words = words.replace(place, "...") if place else words
    return words[:300]
