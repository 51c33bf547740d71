"""The protocol of measured programs: take one job, run it in this process, print one JSON object.

`PYTHON -m bench.systems.NAME JOB`, from the root of the repository; `--workloads` prints the names of its workloads.
Standard library only: the environments of the systems have nothing else in common.
"""

import asyncio
import base64
import inspect
import json
import math
import os
import platform
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypedDict


class Job(TypedDict, total=False):
    """One job. The first four fields are always set; the sizes depend on the workload."""

    workload: str
    variant: str
    #: An empty folder of the job's own, on the disk that is measured.
    folder: str
    #: The URL of an empty database of the job's own, for the variants that want one.
    postgres: str | None
    steps: int
    bytes: int
    runs: int
    #: Workflows at a time.
    parallel: int
    sleeps: int
    workers: int
    turns: int
    watchers: int
    seconds: float
    #: w3: "prepare" leaves interrupted runs behind, "recover" resumes them in a new process.
    phase: str


Result = dict[str, Any]
Workload = Callable[[Job], Result | Awaitable[Result]]

#: In a PostgreSQL database: bytes that it occupies; bytes of write-ahead log that its server ever wrote. The difference
#: of two readings is the cost of what happened between them.
POSTGRES_SIZE = "select pg_database_size(current_database())"
POSTGRES_WAL = "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"

_TRUNCATE_LOGS = """
import sqlite3, sys
for path in sys.argv[1:]:
    sqlite3.connect(path, timeout=10).execute("pragma wal_checkpoint(truncate)").fetchall()
"""

_BLOCK = base64.b64encode(random.Random(8).randbytes(1 << 17)).decode()


def main(
    workloads: Mapping[str, Workload], *, packages: Sequence[str] = (), caveats: Mapping[str, str] | None = None
) -> None:
    """Run the job of the command line and print its result.

    Args:
        packages: distributions whose versions stand in the result.
        caveats: by workload, or for "all": why the comparison may be unfair, in one sentence.
    """
    if sys.argv[1:] == ["--workloads"]:
        print(*workloads)
        return
    job: Job = json.loads(sys.argv[1])
    result = _run_workload(workloads[job["workload"]], job)
    from importlib.metadata import version  # slow to import, and some jobs are measured from the start of their process

    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    result |= {
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "peak_memory_bytes": max(each.ru_maxrss for each in used) * 1024,
        "processor_seconds": sum(each.ru_utime + each.ru_stime for each in used),
    }
    known = caveats or {}
    said = [known[name] for name in ("all", job["workload"]) if name in known]
    print(json.dumps(result | ({"caveat": " ".join(said)} if said else {})), flush=True)


def _run_workload(workload: Workload, job: Job) -> Result:
    async def awaited(pending: Awaitable[Result]) -> Result:
        return await pending

    result = workload(job)
    return asyncio.run(awaited(result)) if inspect.isawaitable(result) else result


def text(number: int, size: int) -> str:
    """The text of message `number`: the same for every system, different for each number, and hard to compress."""
    start = number * 997 % (len(_BLOCK) - size)
    return _BLOCK[start : start + size]


def latencies(seconds: Sequence[float]) -> dict[str, float]:
    """The middle and the 99th percentile."""
    ranked = sorted(seconds)
    return {name: ranked[math.ceil(share * len(ranked)) - 1] for name, share in (("p50", 0.5), ("p99", 0.99))}


def disk_bytes(folder: str | Path) -> int:
    """Size of all files in the folder and below, as `ls` shows it, once SQLite's logs are written into their databases.

    The log is bounded and given back; it would only blur what a transcript occupies.
    """
    # In a process of its own: closing a file drops all locks that this process has on it, those of its database too.
    databases = [str(log).removesuffix("-wal") for log in Path(folder).rglob("*-wal")]
    subprocess.run([sys.executable, "-c", _TRUNCATE_LOGS, *databases], check=True)
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def written_bytes(pid: int | str = "self") -> int:
    """Bytes that a process handed to write() since it began: this one, or one that it started."""
    return int(_proc(pid, "io").split("wchar: ")[1].split()[0])


def resident_bytes(pid: int | str = "self") -> int:
    """Memory that a process holds now: this one, or one that it started."""
    return int(_proc(pid, "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(pid: int | str = "self") -> float:
    """Processor time that a process has used, all its threads: this one, or one that it started."""
    if pid == "self":
        return time.process_time()  # finer than what the kernel tells about others
    return sum(map(int, _stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def since_process_start() -> float:
    """Seconds since this process was started; to a hundredth, as the kernel keeps it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(_stat("self")[19]) / os.sysconf("SC_CLK_TCK")


def kill_self() -> NoReturn:
    """End this process as `kill -9` does: nothing is flushed, nothing is tidied up."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL did not end the process")


def _stat(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the second may hold blanks."""
    return _proc(pid, "stat").rpartition(")")[2].split()


def _proc(pid: int | str, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()
