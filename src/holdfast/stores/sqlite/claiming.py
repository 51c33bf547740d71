"""Claims: by id, and from the fair queue within the concurrency limits."""

from collections.abc import Collection, Iterable, Sequence

from holdfast.checkpoint.errors import LimitReached, RunBusy, RunNotClaimable, RunNotFound
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.workers import (
    Claim,
    LimitName,
    LimitUsage,
    Slots,
    backoff,
    choose_fairly,
    list_limit_names,
    make_limit,
)
from holdfast.config import LimitKind
from holdfast.stores.sqlite.candidates import Candidate, CandidateScan, Lane, ScanCursor
from holdfast.stores.sqlite.database import statement
from holdfast.stores.sqlite.liveness import Liveness
from holdfast.stores.sqlite.transaction import Execute, Transaction, find_run, to_micros


def set_limit(kind: LimitKind, name: str, max_runs: int | None, default: bool, transaction: Transaction) -> bool:
    """Set or remove a limit. Returns whether there was one."""
    existed = transaction.fetch_one(statement("find_limit"), (kind, name)) is not None
    if max_runs is None:
        transaction.execute(statement("remove_limit"), (kind, name, default))
    else:
        transaction.execute(statement("set_limit"), (kind, name, max_runs, default))
    transaction.notify = True
    return existed


def list_usage(liveness: Liveness, execute: Execute) -> tuple[LimitUsage, ...]:
    rows = execute(statement("list_limits")).fetchall()
    slots = read_slots(liveness, execute)
    return tuple(
        LimitUsage(limit=make_limit(kind, name, max_runs), running=slots.used[kind, name], is_default=bool(is_default))
        for kind, name, max_runs, is_default in rows
    )


def read_slots(liveness: Liveness, execute: Execute) -> Slots:
    """Return the slots of all limits. A store without limits reads no runs."""
    caps: dict[LimitName, int] = {
        (kind, name): max_runs for kind, name, max_runs, _ in execute(statement("list_limits")).fetchall()
    }
    slots = Slots(caps, ())
    if not caps:
        return slots
    alive = liveness.alive_workers(execute)
    for owner, agent_name, key, count in execute(statement("running_runs")).fetchall():
        if owner in alive:
            slots.used["agent", agent_name] += count
            slots.used["key", key] += count
    return slots


def claim(
    run_id: str,
    worker_id: str,
    statuses: Collection[RunStatus],
    steal: bool,
    within_limits: bool,
    liveness: Liveness,
    transaction: Transaction,
) -> Claim:
    run = find_run(run_id, transaction)
    if run is None:
        raise RunNotFound(run_id)
    counts_as = {run.status}
    if run.status is RunStatus.RUNNING:
        if not liveness.is_alive(run.owner, transaction.execute):
            counts_as.add(RunStatus.INTERRUPTED)
        elif run.owner is not None and not steal:
            raise RunBusy(run_id, run.owner)
    if run.is_due(transaction.now_micros):
        counts_as.add(RunStatus.INTERRUPTED)
    if counts_as.isdisjoint(statuses):
        raise RunNotClaimable(run_id, run.status.value, run.reason)
    names = list_limit_names(run.agent_name, run.key, shares_parent_slot=run.shares_parent_slot)
    if within_limits and not has_slot(names, liveness, transaction):
        raise LimitReached(run_id, run.status.value)
    return claim_run(run.run_key, run_id, run.strikes, worker_id, transaction)


def has_slot(names: Sequence[LimitName], liveness: Liveness, transaction: Transaction) -> bool:
    """Return whether none of these limits is reached."""
    return not names or read_slots(liveness, transaction.execute).try_take(names)


def claim_run(run_key: int, run_id: str, strikes: int, worker_id: str, transaction: Transaction) -> Claim:
    """Give the run to the worker. `strikes` are those before this claim."""
    token, strikes = transaction.next_token(), strikes + 1
    not_before = to_micros(transaction.now + backoff(strikes))
    row = (run_key, worker_id, token, strikes, not_before, transaction.now_micros)
    previous = transaction.execute(statement("running_owner"), (run_key,)).fetchone()
    transaction.execute(statement("claim_run"), row)
    taken_from = None if previous is None else previous[0]
    return Claim(run_id=run_id, worker_id=worker_id, token=token, strikes=strikes, taken_from=taken_from)


#: Lanes that one scan takes up at least. If more wait, the next scan continues behind them.
_LANES_PER_SCAN = 256
#: Runs of a dead worker, and waiting runs whose time has come, that one scan reads at least: the oldest. A worker that
#: recovers 1,000 runs makes some 1,000 scans.
_OTHERS_PER_SCAN = 32


class FairQueue:
    """Claims runs, highest priority first. Within one, the callers served longest ago come first.

    The order of callers is kept in memory, for each process separately.
    """

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        #: Callers by the time they were last served, the latest last.
        self._served_callers: dict[str, None] = {}
        #: The lane that the next scan starts with.
        self._position: Lane = ("", "")

    def claim_next(
        self, worker_id: str, agents: Collection[str], limit: int, cursor: ScanCursor | None, transaction: Transaction
    ) -> tuple[Sequence[Claim], ScanCursor | None]:
        """Claim up to `limit` runs: the oldest of each caller first, then the second oldest of each, and so on.

        Returns:
            the claims, and the cursor of the next scan; `None` if all waiting lanes were scanned.
        """
        if limit <= 0:
            return (), None
        slots = read_slots(self._liveness, transaction.execute)
        scan = CandidateScan(agents, slots, transaction, self._liveness, max(limit, _OTHERS_PER_SCAN))
        chosen: list[Candidate] = []
        for priority in scan.find_priorities(None if cursor is None else cursor.priority):
            cursor = cursor or ScanCursor(priority, self._position, self._position)
            lanes, cursor = scan.next_lanes(cursor, max(limit, _LANES_PER_SCAN))
            self._position = cursor.position if cursor else ("", "")
            chosen += self._choose(scan, priority, lanes, slots, limit - len(chosen))
            if cursor is not None or len(chosen) >= limit:
                break  # the rest of this priority comes before the next one
        claims = [claim_run(run.run_key, run.run_id, run.strikes, worker_id, transaction) for run in chosen]
        return claims, cursor

    def _choose(
        self, scan: CandidateScan, priority: int, lanes: Sequence[Lane], slots: Slots, limit: int
    ) -> list[Candidate]:
        """Choose runs that have a slot. Further runs of a lane are read only if the first of each do not suffice."""
        chosen: list[Candidate] = []
        first = _find_runs(scan, priority, lanes, 1)
        if len(first) >= limit:
            chosen = choose_fairly(self._order_callers(first, limit), slots, limit)
        if len(chosen) < limit:
            runs = _find_runs(scan, priority, lanes, limit)
            known = set(chosen)
            queues = [[each for each in queue if each[1] not in known] for queue in self._order_callers(runs, limit)]
            chosen += choose_fairly(queues, slots, limit - len(chosen))
        return chosen

    def _order_callers(
        self, runs: dict[str, list[Candidate]], limit: int
    ) -> list[list[tuple[Sequence[LimitName], Candidate]]]:
        """Return the queue of each caller, those served longest ago first."""
        order = {caller: turn for turn, caller in enumerate(self._served_callers)}
        turns = [caller for *_, caller in sorted((order.get(name, -1), runs[name][0], name) for name in runs)]
        self._mark_served(turns[:limit])
        return [[(run.limit_names, run) for run in runs[caller]] for caller in turns]

    def _mark_served(self, callers: Iterable[str]) -> None:
        for caller in callers:
            self._served_callers.pop(caller, None)
            self._served_callers[caller] = None
        while len(self._served_callers) > 4 * _LANES_PER_SCAN:
            del self._served_callers[next(iter(self._served_callers))]


def _find_runs(scan: CandidateScan, priority: int, lanes: Iterable[Lane], limit: int) -> dict[str, list[Candidate]]:
    """Return the oldest runs of each caller, up to `limit` of each of its lanes and agents."""
    found: dict[str, list[Candidate]] = {}
    for lane in lanes:
        if runs := scan.find_runs(priority, lane, limit):
            found.setdefault(lane[0], []).extend(runs)
    for runs in found.values():
        runs.sort()
    return found
