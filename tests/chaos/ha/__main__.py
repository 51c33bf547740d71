"""`make chaos-ha`: a fleet of workers while Patroni's leaders are killed, switched over and cut off.

Prints a line for each event and for each oracle, and exits with 1 if an oracle failed.
"""

import asyncio
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from tests.chaos.agent import chaos_agent
from tests.chaos.checks import find_faults
from tests.chaos.fleet import Fleet
from tests.chaos.ha.cluster import Cluster, Host, open_cluster
from tests.chaos.test_fleet import collect
from tests.chaos.worker import open_store

from holdfast import App

WORKERS, RUNS = 4, 200
#: Longer than a failover, as the documentation advises.
LEASE_SECONDS = 90.0


def kill_leader(cluster: Cluster, leader: Host) -> None:
    leader.kill()


def kill_leader_of_a_lagging_standby(cluster: Cluster, leader: Host) -> None:
    """The standby has received what was acknowledged, and not replayed it."""
    standby = cluster.find_synchronous_standby()
    standby.ask("select pg_wal_replay_pause()::text")

    def lags() -> bool:
        return standby.ask("select pg_last_wal_receive_lsn() > pg_last_wal_replay_lsn()") == [(True,)]

    cluster.wait_until(lags)
    leader.kill()


def switch_over(cluster: Cluster, leader: Host) -> None:
    candidate = cluster.find_synchronous_standby()
    answer = leader.call_api("/switchover", {"leader": leader.name, "candidate": candidate.name})
    assert answer, leader.read_log()


class Partition:
    """The leader is cut off from etcd and its standbys, and another one takes over. Clients still reach the first."""

    def __init__(self) -> None:
        self.acknowledged = False

    def __call__(self, cluster: Cluster, leader: Host) -> None:
        with psycopg.connect(leader.url, autocommit=True) as connection:
            connection.execute("create table if not exists probe (at timestamptz)")
        leader.isolate()
        probe = threading.Thread(target=self._write, args=(leader,), daemon=True)
        probe.start()
        cluster.wait_for_leader(other_than=leader)
        waiting = leader.ask("select count(*) from pg_stat_activity where wait_event = 'SyncRep'")
        assert waiting[0][0] > 0, "no commit waits for the standby of the old leader"
        leader.kill()
        probe.join()

    def _write(self, leader: Host) -> None:
        try:
            with psycopg.connect(leader.url, autocommit=True) as connection:
                connection.execute("insert into probe values (now())")
        except psycopg.OperationalError:
            return  # the server was killed
        self.acknowledged = True


async def disrupt(cluster: Cluster, workers: Fleet, name: str, event: Callable[[Cluster, Host], None]) -> list[str]:
    """Submit a part of the runs, make the event in the middle of them, and wait until the cluster is whole again."""
    leader = await asyncio.to_thread(cluster.wait_for_standbys)
    done = len(workers.ledger.read())
    async with App([chaos_agent(workers.ledger, 0)], open_store(cluster.url), worker=False) as app:
        submitted = [await app.submit("chaos", name, run_id=f"{name.replace(' ', '-')}-{n}") for n in range(RUNS // 5)]
    await asyncio.to_thread(workers.wait_until, lambda ledger: len(ledger) >= done + 10)
    started = time.monotonic()
    await asyncio.to_thread(event, cluster, leader)
    new = await asyncio.to_thread(lambda: cluster.wait_for_leader(other_than=leader))
    print(f"{name}: {leader.name} -> {new.name} after {time.monotonic() - started:.0f} s", flush=True)
    if leader.call_api("/cluster") is None:
        leader.start()
    return submitted


async def run(cluster: Cluster, folder: Path) -> list[str]:
    """Make all events. Return the faults."""
    workers = Fleet(cluster.url, folder, size=WORKERS, seconds=0.5, lease_seconds=LEASE_SECONDS)
    partition = Partition()
    events: dict[str, Callable[[Cluster, Host], None]] = {
        "first kill": kill_leader,
        "second kill": kill_leader,
        "switchover": switch_over,
        "partition": partition,
        "kill with a lagging standby": kill_leader_of_a_lagging_standby,
    }
    try:
        submitted = [
            run_id for name, event in events.items() for run_id in await disrupt(cluster, workers, name, event)
        ]
        outcome = await collect(workers, submitted)
        ledger = workers.ledger.read()
        faults = list(find_faults(outcome.outputs, ledger, submitted))
        doubled = [fault for fault in faults if fault.endswith("times")]
        restarts = sum(workers.count_starts()) - WORKERS
        oracles = {
            f"{len(faults) - len(doubled)} faults in {len(submitted)} acknowledged runs": len(faults) - len(doubled),
            f"{len(doubled)} of {len(ledger)} effects doubled": len(doubled),
            f"{restarts} workers restarted": restarts,
            f"{int(partition.acknowledged)} writes acknowledged without a standby": partition.acknowledged,
            f"{len(outcome.left)} runs left in the store": len(outcome.left),
        }
        unknown = sum(output.count("unknown") for output in outcome.outputs.values())
        print(f"{unknown} calls were in doubt, {outcome.unparked} runs unparked")
        for line, failed in oracles.items():
            print(f"{'FAILED' if failed else 'ok':<7} {line}", flush=True)
        return [*faults, *(line for line, failed in oracles.items() if failed)]
    finally:
        if os.environ.get("HOLDFAST_CHAOS_LOGS"):
            print(workers.read_logs())
        workers.close()


def main() -> None:
    started = time.monotonic()
    logging.getLogger("holdfast").setLevel(logging.ERROR)  # warnings about the server are expected
    with tempfile.TemporaryDirectory(prefix="holdfast-ha-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with open_cluster(folder) as cluster:
            print(f"three hosts are up after {time.monotonic() - started:.0f} s", flush=True)
            faults = asyncio.run(run(cluster, folder))
    for fault in faults:
        print(fault)
    print(f"{time.monotonic() - started:.0f} s")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
