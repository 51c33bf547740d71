"""Whether a process is alive: known at once on one host, unknown from here on another."""

import functools
import os
import socket
import subprocess
from pathlib import Path

import msgspec


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One process, told apart from a later one that got the same pid."""

    #: Host, boot and pid namespace: pids of two processes can be compared only if this is equal.
    host: str
    pid: int
    #: When the process started, in whatever unit the host tells it.
    started: str


@functools.cache
def _host() -> str:
    """Pids mean the same to two processes exactly when they share a boot and a pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    if boot.exists() and namespace.is_symlink():
        return f"{socket.gethostname()}/{boot.read_text().strip()}/{os.readlink(namespace)}"
    return socket.gethostname()


def _started(pid: int) -> str | None:
    """The start time of a live process; `None` if there is none, or if only its corpse is left."""
    if Path("/proc/self/stat").exists():
        try:
            # The name, in parentheses, may hold spaces and parentheses itself: count from behind it.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        state, started = fields[0], fields[19]
        return None if state in ("Z", "X") else started
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    state, _, started = shown.partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def this_process() -> ProcessIdentity:
    """The identity of the calling process."""
    started = _started(os.getpid())
    return ProcessIdentity(host=_host(), pid=os.getpid(), started=started or "unknown")


def process_with(pid: int) -> ProcessIdentity | None:
    """The process that has this pid here, if one has."""
    started = _started(pid)
    return None if started is None else ProcessIdentity(host=_host(), pid=pid, started=started)


def is_alive(process: ProcessIdentity) -> bool | None:
    """Whether the process runs (a stopped one does); `None` if that cannot be known from this host."""
    if process.host != _host():
        return None
    return _started(process.pid) == process.started
