"""Claims, workers, and whether the process of a worker is alive."""

import functools
import os
import socket
import subprocess
from contextvars import ContextVar
from datetime import datetime, timedelta
from pathlib import Path

import msgspec


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One process, distinct from a later one with the same pid."""

    #: Host, boot and pid namespace: pids of two processes can be compared only if this is equal.
    host: str
    pid: int
    #: When the process started, in a unit of the operating system.
    started: str


@functools.cache
def _host_id() -> str:
    """Pids mean the same to two processes exactly when they share a boot and a pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    if boot.exists() and namespace.is_symlink():
        return f"{socket.gethostname()}/{boot.read_text().strip()}/{os.readlink(namespace)}"
    return socket.gethostname()


def _process_start_time(pid: int) -> str | None:
    """Return the start time of a live process; `None` if there is none, or if it is a zombie.

    A killed process whose main thread has ended, and whose other threads are ending, is shown as a zombie too. It is
    not one: it still holds its files and locks.
    """
    if Path("/proc/self/stat").exists():
        try:
            # The process name, in parentheses, may hold spaces and parentheses: split after the last one.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        state, threads, started = fields[0], int(fields[17]), fields[19]
        return None if state in ("Z", "X") and threads <= 1 else started
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    state, _, started = shown.partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


@functools.cache
def _identify_own(pid: int) -> ProcessIdentity:
    """Cached by the pid, because the process may fork."""
    return ProcessIdentity(host=_host_id(), pid=pid, started=_process_start_time(pid) or "unknown")


def find_process(pid: int) -> ProcessIdentity | None:
    """Return the process with this pid on this host; `None` if there is none."""
    started = _process_start_time(pid)
    return None if started is None else ProcessIdentity(host=_host_id(), pid=pid, started=started)


class Processes:
    """The processes of this host, as the operating system shows them. A simulator overrides both methods."""

    def identify_own(self) -> ProcessIdentity:
        """Return the identity of the calling process."""
        return _identify_own(os.getpid())

    def is_alive(self, process: ProcessIdentity) -> bool | None:
        """Whether the process runs (a stopped one does); `None` if that cannot be known from this host."""
        if process.host != _host_id():
            return None
        if process == self.identify_own():
            return True
        return _process_start_time(process.pid) == process.started


_SYSTEM_PROCESSES = Processes()

#: Where this process finds itself and others. A simulator sets its own in the context of each simulated process.
PROCESSES: ContextVar[Processes] = ContextVar("holdfast_processes", default=_SYSTEM_PROCESSES)


def this_process() -> ProcessIdentity:
    """Return the identity of the calling process."""
    return PROCESSES.get().identify_own()


def is_process_alive(process: ProcessIdentity) -> bool | None:
    """Whether the process runs (a stopped one does); `None` if that cannot be known from this host."""
    return PROCESSES.get().is_alive(process)


class WorkerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A process that executes runs. It has one heartbeat for all of them."""

    #: New for every process start; never used again.
    worker_id: str
    process: ProcessIdentity


class WorkerHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A registered worker, as other processes see it."""

    worker: WorkerIdentity
    #: Whether the runs it holds are left to it.
    alive: bool
    #: Its last heartbeat. A worker on this host may be known to be dead although it was a moment ago.
    last_at: datetime


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The right to execute one run, until a larger token exists.

    The holder keeps the token it was given and hands it to every write. It never reads a newer one from the store:
    that would defeat the fence.
    """

    run_id: str
    worker_id: str
    #: Grows over the whole store, so also over removal and re-creation of a run id.
    token: int
    #: Claims in a row, this one included, without a finished step.
    strikes: int
    #: The worker that held the run until now, if it did not release it: it has died, or lost the run to this claim.
    taken_from: str | None = None


_BACKOFF = (timedelta(0), timedelta(0), timedelta(seconds=5), timedelta(seconds=30))


def backoff(strikes: int) -> timedelta:
    """Return the time from a claim until recovery may take the run again, by its number of strikes.

    The first death of an owner costs no wait: that is a deploy or a power cut. Further ones may be poison.
    """
    return _BACKOFF[min(strikes, len(_BACKOFF) - 1)]
