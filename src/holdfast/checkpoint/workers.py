"""The workers of a store: their processes and claims, how many runs wait for them, and how many may run at once."""

import functools
import json
import os
import socket
import subprocess
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from holdfast.config import ConcurrencyLimit
from holdfast.core.run.status import RunStatus


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

    A killed process whose other threads are still ending is shown as a zombie too, but holds its files and locks.
    """
    if Path("/proc/self/stat").exists():
        try:
            # The process name, in parentheses, may hold spaces and parentheses: split after the last one.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        state, threads, started = fields[0], int(fields[17]), fields[19]
        return None if state in ("Z", "X") and threads <= 1 else started
    return _ask_ps(pid)


def _ask_ps(pid: int) -> str | None:
    """As `_process_start_time`, on a system without /proc."""
    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = shown.stdout.strip().partition(" ")
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
        return process == self.identify_own() or _process_start_time(process.pid) == process.started


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
    #: The agents whose queued and interrupted runs it takes. A process without a worker loop takes none.
    #: `None`: it is not known, because an older version of holdfast has registered it.
    agents: tuple[str, ...] | None = ()


class WorkerHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A registered worker, as other processes see it."""

    worker: WorkerIdentity
    #: Whether the runs it holds are left to it.
    alive: bool
    #: Its last heartbeat. A worker on this host may be known to be dead before its heartbeat is old.
    last_at: datetime


def encode_agents(agents: tuple[str, ...] | None) -> str:
    """Return the stored form of `WorkerIdentity.agents`. Older versions leave the default of the column, `[]`."""
    return "[]" if agents is None else json.dumps(agents or None)


def decode_agents(stored: str) -> tuple[str, ...] | None:
    """Return `WorkerIdentity.agents` from its stored form."""
    return None if stored == "[]" else tuple(json.loads(stored) or ())


def count_live_workers(workers: Iterable[WorkerHeartbeat]) -> Counter[str] | None:
    """Return how many live workers take runs of each agent. An agent that none of them knows counts zero.

    `None`: it is not known, because an older version of holdfast has registered one of them.
    """
    counts: Counter[str] = Counter()
    for each in workers:
        if each.alive:
            if each.worker.agents is None:
                return None
            counts.update(each.worker.agents)
    return counts


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

    The first death of an owner causes no wait: it may be a deploy or a power cut. A run with more may be poison.
    """
    return _BACKOFF[min(strikes, len(_BACKOFF) - 1)]


#: The statuses of runs that wait for a worker.
_QUEUE = (RunStatus.QUEUED, RunStatus.INTERRUPTED)


class RunCount(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one agent that have one status. A running run without a live owner counts as interrupted."""

    agent_name: str
    status: RunStatus
    count: int
    #: For queued and interrupted runs: how many a worker may take now, and the last write of the oldest of them.
    due: int = 0
    oldest: datetime | None = None


class CountedRow(NamedTuple):
    """Runs of one agent, one status and one owner, as a store counts them."""

    agent_name: str
    status: RunStatus
    owner_alive: bool
    runs: int
    due: int
    oldest: datetime | None


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The workers of a store, and how many runs it has."""

    #: Ordered by id. A dead one is in the list until the store deletes it.
    workers: Sequence[WorkerHeartbeat]
    #: Ordered by agent and status.
    counts: Sequence[RunCount]


def merge_rows(rows: Iterable[CountedRow]) -> list[RunCount]:
    """Return one count for each agent and status, in their order."""
    merged: dict[tuple[str, RunStatus], RunCount] = {}
    for row in rows:
        orphaned = row.status is RunStatus.RUNNING and not row.owner_alive
        status = RunStatus.INTERRUPTED if orphaned else row.status
        before = merged.get((row.agent_name, status))
        count, due, oldest = row.runs, row.due if status in _QUEUE else 0, row.oldest if status in _QUEUE else None
        if before is not None:
            count, due = count + before.count, due + before.due
            oldest = min((time for time in (oldest, before.oldest) if time is not None), default=None)
        key = row.agent_name, status
        merged[key] = RunCount(agent_name=row.agent_name, status=status, count=count, due=due, oldest=oldest)
    return [merged[key] for key in sorted(merged)]


def measure_queues(counts: Iterable[RunCount], now: datetime) -> dict[str, tuple[int, float]]:
    """Return for each agent the runs that wait for a worker, and how many seconds the oldest has waited."""
    queues: dict[str, tuple[int, float]] = {}
    for each in counts:
        due, age = queues.get(each.agent_name, (0, 0.0))
        own = 0.0 if each.oldest is None else (now - each.oldest).total_seconds()
        queues[each.agent_name] = due + each.due, max(age, own)
    return queues


T = TypeVar("T")

#: What a limit is for: its kind, and the name of the agent or the key.
LimitName = tuple[str, str]


def make_limit(kind: str, name: str, max_runs: int) -> ConcurrencyLimit:
    """Return the limit of one agent or one key."""
    if kind == "agent":
        return ConcurrencyLimit(agent=name, max_runs=max_runs)
    return ConcurrencyLimit(key=name, max_runs=max_runs)


class LimitUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a store, and how much of it is in use."""

    limit: ConcurrencyLimit
    #: Runs that count towards it: they are running, have a live owner, and no parent or run in the background.
    running: int
    #: Whether an App set it at its start. `set_limit` without `default` replaces it permanently.
    is_default: bool


def list_limit_names(agent_name: str, key: str, *, shares_parent_slot: bool) -> tuple[LimitName, ...]:
    """Return the limits under which a run counts, if they exist.

    Args:
        shares_parent_slot: as in `RunIndex`.
    """
    if shares_parent_slot:
        return ()
    return (("agent", agent_name),) if not key else (("agent", agent_name), ("key", key))


class Slots:
    """The slots in use, by limit, and those that are free. For a store that claims one run after the other."""

    def __init__(self, caps: Mapping[LimitName, int], running: Iterable[Iterable[LimitName]]) -> None:
        """Count the slots.

        Args:
            caps: the limits of the store.
            running: the names of the limits of each running run that has a live owner.
        """
        self.caps = caps
        self.used: Counter[LimitName] = Counter()
        for names in running:
            self.used.update(names)

    def is_full(self, name: LimitName) -> bool:
        return name in self.caps and self.used[name] >= self.caps[name]

    def try_take(self, names: Sequence[LimitName]) -> bool:
        """Take a slot of each of these limits, or none if one of them is reached."""
        if any(map(self.is_full, names)):
            return False
        self.used.update(names)
        return True


def choose_fairly(queues: Iterable[Iterable[tuple[Sequence[LimitName], T]]], slots: Slots, limit: int) -> list[T]:
    """Choose runs that have a slot: the first of each queue, then the second of each, and so on.

    Args:
        queues: the runs of each caller, oldest first, with the names of their limits.
    """
    waiting = [deque(queue) for queue in queues]
    chosen: list[T] = []
    while waiting and len(chosen) < limit:
        for queue in waiting:
            while queue and len(chosen) < limit:
                names, run = queue.popleft()
                if slots.try_take(names):
                    chosen.append(run)
                    break
        waiting = [queue for queue in waiting if queue]
    return chosen
