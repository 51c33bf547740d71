"""Whether a worker is alive: by its process on this host, by its heartbeat elsewhere."""

from datetime import timedelta
from typing import NamedTuple

from holdfast.checkpoint.workers import (
    ProcessIdentity,
    WorkerHeartbeat,
    WorkerIdentity,
    decode_agents,
    is_process_alive,
    this_process,
)
from holdfast.clock import Clock
from holdfast.stores.sqlite.database import statement
from holdfast.stores.sqlite.transaction import Execute, from_micros

#: Rows of workers whose heartbeat has not changed for this many lease timeouts are deleted.
_FORGET_AFTER_LEASES = 1000


class WorkerRow(NamedTuple):
    """The row of a worker."""

    worker_id: str
    host: str
    pid: int
    started: str
    #: Grows with each heartbeat. Compared only with earlier values of the same worker.
    heartbeat: int
    #: A JSON array of names.
    agents: str

    @property
    def process(self) -> ProcessIdentity:
        return ProcessIdentity(host=self.host, pid=self.pid, started=self.started)


class _Observation(NamedTuple):
    heartbeat: int
    #: When this process first saw this heartbeat, by its own monotonic clock.
    since: float


class Liveness:
    """Decides from its row whether a worker is alive. A worker without a row is dead: it was deregistered.

    If the processes of the worker can be seen from here, its process decides. Otherwise (another container, another
    host) the worker is dead when its heartbeat does not change for `lease_timeout`, measured by the monotonic clock of
    this process. Wall clocks are not compared: one that is an hour ahead neither keeps a dead worker alive nor kills a
    live one. So this process has to watch for `lease_timeout` before it declares such a worker dead.

    Used by several threads. Each operation on the dict is atomic, and the latest observation wins.
    """

    def __init__(self, clock: Clock, lease_timeout: timedelta) -> None:
        self._clock = clock
        self._lease_s = lease_timeout.total_seconds()
        self._observations: dict[str, _Observation] = {}

    def is_alive(self, worker_id: str | None, execute: Execute) -> bool:
        if worker_id is None:
            return False
        row = execute(statement("get_worker"), (worker_id,)).get
        return row is not None and self._is_row_alive(WorkerRow(*row))

    def alive_workers(self, execute: Execute) -> frozenset[str]:
        return frozenset(row.worker_id for row in _list_workers(execute) if self._is_row_alive(row))

    def list_heartbeats(self, execute: Execute) -> list[WorkerHeartbeat]:
        """Return all registered workers, ordered by id."""
        return [
            WorkerHeartbeat(
                worker=WorkerIdentity(worker_id=row.worker_id, process=row.process, agents=decode_agents(row.agents)),
                alive=self._is_row_alive(row),
                last_at=from_micros(row.heartbeat),
            )
            for row in sorted(_list_workers(execute))
        ]

    def forgettable_workers(self, execute: Execute) -> list[str]:
        """Return the workers whose row is no longer needed: the process has ended, or its heartbeat is long overdue."""
        rows = _list_workers(execute)
        for worker_id in set(self._observations) - {row.worker_id for row in rows}:
            self._observations.pop(worker_id, None)
        return [row.worker_id for row in rows if self._is_forgettable(row)]

    def _is_forgettable(self, row: WorkerRow) -> bool:
        known = self._is_process_alive(row)
        return self._observe(row) > _FORGET_AFTER_LEASES * self._lease_s if known is None else not known

    def _is_row_alive(self, row: WorkerRow) -> bool:
        known = self._is_process_alive(row)
        return self._observe(row) < self._lease_s if known is None else known

    def _is_process_alive(self, row: WorkerRow) -> bool | None:
        """Return whether the process runs; `None` if that cannot be known from here."""
        process = row.process
        if _is_earlier_boot(process.host, this_process().host):
            return False
        return is_process_alive(process)

    def _observe(self, row: WorkerRow) -> float:
        """Return for how many seconds this process has seen the same heartbeat."""
        now = self._clock.monotonic()
        seen = self._observations.get(row.worker_id)
        if seen is None or seen.heartbeat != row.heartbeat:
            self._observations[row.worker_id] = seen = _Observation(row.heartbeat, now)
        return now - seen.since


def _is_earlier_boot(host: str, own_host: str) -> bool:
    """Whether the process ran before the last boot of this host: same host name, another boot id.

    The processes of a SQLite file are on one host, so its processes ended with the boot.
    """
    name, _, boot = host.partition("/")
    own_name, _, own_boot = own_host.partition("/")
    return name == own_name and boot.partition("/")[0] != own_boot.partition("/")[0]


def _list_workers(execute: Execute) -> list[WorkerRow]:
    return [WorkerRow(*row) for row in execute(statement("list_workers")).fetchall()]
