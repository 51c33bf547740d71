"""Who is alive: at once and for sure on this host, by heartbeat elsewhere."""

import functools
import os
from datetime import datetime, timedelta

from holdfast.checkpoint.claim import Worker
from holdfast.checkpoint.liveness import ProcessIdentity, is_alive, this_process
from holdfast.checkpoint.stores.sqlite.statements import statement
from holdfast.checkpoint.stores.sqlite.transaction import Execute, Transaction, from_micros


@functools.cache
def _this_process(pid: int) -> ProcessIdentity:
    """The process that asks lives: no need to look, for each of a thousand runs that it has just claimed."""
    return this_process()


class Liveness:
    """Tells whether a worker is alive, from its row.

    A worker without a row is dead: it was discharged, or found dead and struck off.
    """

    def __init__(self, execute: Execute, now: datetime, dead_after: timedelta) -> None:
        self._execute = execute
        self._now = now
        self._dead_after = dead_after

    def alive(self, worker_id: str | None) -> bool:
        if worker_id is None:
            return False
        row = self._execute(statement("worker"), (worker_id,)).get
        return row is not None and self._lives(row)

    def all_alive(self) -> frozenset[str]:
        return frozenset(row[0] for row in self._execute(statement("workers")).fetchall() if self._lives(row))

    def dead(self) -> list[str]:
        """The workers that have a row and are dead."""
        return [row[0] for row in self._execute(statement("workers")).fetchall() if not self._lives(row)]

    def _lives(self, row: tuple[str, str, int, str, int]) -> bool:
        _, host, pid, started, heartbeat_at = row
        process = ProcessIdentity(host=host, pid=pid, started=started)
        known = process == _this_process(os.getpid()) or is_alive(process)
        if known is not None:
            return known
        return self._now - from_micros(heartbeat_at) < self._dead_after


def enlist(worker: Worker, dead_after: timedelta, transaction: Transaction) -> None:
    # Here, so that the rows of workers that died do not add up.
    for worker_id in Liveness(transaction.execute, transaction.now, dead_after).dead():
        transaction.execute(statement("discharge"), (worker_id,))
    process = worker.process
    row = (worker.worker_id, process.host, process.pid, process.started, transaction.now_micros)
    transaction.execute(statement("enlist"), row)


def discharge(worker_id: str, transaction: Transaction) -> None:
    transaction.execute(statement("discharge"), (worker_id,))
    transaction.signals = True
