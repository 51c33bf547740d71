"""The stores of a simulated world: one in memory that processes share, and SQLite on a simulated disk."""

import contextlib
import random
import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import apsw

from holdfast.checkpoint.store import RunStore
from holdfast.clock import Clock
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.database import Database
from holdfast.testing.simulation.machine.disk import DiskFault, Kept, SimulatedDisk
from holdfast.testing.simulation.machine.process import SimulatedClock, SimulatedProcess
from holdfast.testing.simulation.machine.scheduler import Scheduler
from holdfast.testing.simulation.machine.store_link import SharedMemory, StoreLink, Weather, finish
from holdfast.testing.simulation.plan import Fault, Plan

#: A row of a user's table.
Row = tuple[Any, ...]

#: Seconds without a heartbeat after which a worker is dead.
LEASE_S = 5.0


class _AnnouncingStore(MemoryStore):
    """A store in memory that tells of each change."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.on_change: Callable[[], None] | None = None

    def _notify_change(self) -> None:
        super()._notify_change()
        if self.on_change is not None:
            self.on_change()


class MemoryBackend:
    """A store in memory, and links to it that are slow, fail, or lose notices."""

    def __init__(self, scheduler: Scheduler, plan: Plan) -> None:
        self._scheduler = scheduler
        self.weather = Weather(plan.seed)
        self._store = _AnnouncingStore(SimulatedClock(scheduler))
        self._shared = SharedMemory(scheduler, self._store, self.weather, LEASE_S)
        self._store.on_change = self._shared.announce
        self._links: dict[SimulatedProcess, StoreLink] = {}

    def __enter__(self) -> Self:
        finish(self._store.open())
        return self

    def __exit__(self, *error: object) -> None:
        self._links.clear()

    def connect(self, process: SimulatedProcess) -> RunStore:
        self._links[process] = link = StoreLink(self._shared, process)
        return link  # type: ignore[return-value] # it delegates to a RunStore

    def inject(self, fault: Fault) -> None:
        weather = self.weather
        if fault.kind == "slow_store":
            weather.slowness = fault.amount * 5
        elif fault.kind == "failing_store":
            weather.failing = fault.amount / 4
            self._scheduler.call_at(self._scheduler.now + 5, self._stop_failing, None)
        elif fault.kind == "lost_notices":
            weather.lost_notices = fault.amount
        elif fault.kind == "false_notices":
            weather.false_notices = fault.amount / 2

    def _stop_failing(self) -> None:
        self.weather.failing = 0.0

    def heal(self) -> None:
        weather = self.weather
        weather.slowness = weather.failing = weather.lost_notices = weather.false_notices = 0.0

    def on_freeze(self, process: SimulatedProcess) -> None:
        if process in self._links:
            self._links[process].on_freeze()

    def on_thaw(self, process: SimulatedProcess) -> None:
        if process in self._links:
            self._links[process].on_thaw()

    def on_death(self, process: SimulatedProcess) -> None:
        """The link has noticed."""

    def cut_power(self, fault: Fault) -> None:
        """Memory has no disk."""

    def read_rows(self, query: str) -> list[Row]:
        """Memory has no tables of a user."""
        return []


#: Where the files of simulated disks are: in memory, if the machine has such a place.
_SHARED_MEMORY = Path("/dev/shm")
_KEPT: tuple[Kept, ...] = ("nothing", "everything", "writes", "sectors")

#: An empty database, made once.
_TEMPLATE: list[bytes] = []


class SqliteBackend:
    """The SQLite store, on a disk that fails, is slow, or loses power."""

    def __init__(self, scheduler: Scheduler, plan: Plan) -> None:
        self._scheduler, self._plan = scheduler, plan
        self._random = random.Random(plan.seed + 1)
        self._folder = Path(
            tempfile.mkdtemp(prefix="holdfast-sim-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None)
        )
        self._file = self._folder / "runs.db"
        may_lose_power = any(fault.kind == "power_cut" for fault in plan.faults)
        name = f"simulated-{self._folder.name}"
        self._disk = SimulatedDisk(name, self._folder, scheduler, plan.seed, may_lose_power=may_lose_power)
        #: By process: its connections.
        self._connections: dict[SimulatedProcess, list[apsw.Connection]] = {}
        #: Disk calls until the next fault, and its kind.
        self._planned: list[tuple[int, DiskFault]] = []
        self._slowness = plan.disk_delay

    def __enter__(self) -> Self:
        apsw.connection_hooks.append(self._on_connect)
        if self._random.random() < 0.8:
            self._file.write_bytes(_make_template())
        self._disk.choose_fault = self._choose_fault
        self._disk.choose_delay = self._choose_delay
        return self

    def __exit__(self, *error: object) -> None:
        apsw.connection_hooks.remove(self._on_connect)
        self._disk.is_dead = True
        for connections in self._connections.values():
            close_all(connections)
        self._disk.unregister()
        shutil.rmtree(self._folder)

    def _on_connect(self, connection: apsw.Connection) -> None:
        if (process := self._scheduler.process) is not None:
            self._connections.setdefault(process, []).append(connection)

    def connect(self, process: SimulatedProcess) -> RunStore:
        return SqliteStore(self._file, lease_timeout=timedelta(seconds=LEASE_S), vfs=self._disk.name)

    def _choose_fault(self) -> DiskFault | None:
        if not self._planned:
            return None
        left, kind = self._planned[0]
        if left > 0:
            self._planned[0] = left - 1, kind
            return None
        self._planned.pop(0)
        return kind

    def _choose_delay(self) -> float:
        if not self._slowness or self._random.random() < 0.5:
            return 0.0
        return self._random.random() ** 3 * self._slowness

    def inject(self, fault: Fault) -> None:
        calls = int(fault.amount * 40)
        if fault.kind == "disk_kill":
            self._planned.append((calls, "kill"))
        elif fault.kind == "disk_error":
            kinds: tuple[DiskFault, ...] = ("io_error", "full", "short_write")
            kind = self._random.choice(kinds)
            self._planned += [(calls, kind), *([(0, kind)] * self._random.choice((0, 0, 3, 20)))]

    def heal(self) -> None:
        self._planned.clear()
        self._slowness = 0.0

    def on_freeze(self, process: SimulatedProcess) -> None:
        """Its heartbeats stop."""

    def on_thaw(self, process: SimulatedProcess) -> None:
        """Its heartbeats continue."""

    def on_death(self, process: SimulatedProcess) -> None:
        """Close the connections, as the operating system does: their locks go, and nothing is written."""
        close_all(self._connections.pop(process, []))

    def read_rows(self, query: str) -> list[Row]:
        """Return what the user's tables hold. A table that no transaction has created is empty."""
        connection = apsw.Connection(str(self._file), flags=apsw.SQLITE_OPEN_READONLY, vfs=self._disk.name)
        try:
            return list(connection.execute(query))
        except apsw.SQLError:
            return []
        finally:
            connection.close()

    def cut_power(self, fault: Fault) -> None:
        for connections in self._connections.values():
            close_all(connections)
        self._connections.clear()
        self._disk.cut_power(_KEPT[int(fault.amount * len(_KEPT))])


def close_all(connections: "list[apsw.Connection]") -> None:
    for connection in connections:
        with contextlib.suppress(BaseException):  # the disk refuses the calls of the dead
            connection.close(True)


def _make_template() -> bytes:
    if not _TEMPLATE:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "runs.db"
            Database(file, durability="process", timeout=timedelta(seconds=1)).prepare()
            _TEMPLATE.append(file.read_bytes())
    return _TEMPLATE[0]
