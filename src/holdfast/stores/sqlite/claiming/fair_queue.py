"""Chooses the next runs of a worker, fairly among callers. Runs in a write transaction."""

from collections.abc import Collection, Iterable, Sequence

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.limits import LimitName, Slots, choose_fairly
from holdfast.stores.sqlite.claiming.by_id import claim_run
from holdfast.stores.sqlite.claiming.candidates import Candidate, CandidateScan, Lane, ScanCursor
from holdfast.stores.sqlite.claiming.limits import read_slots
from holdfast.stores.sqlite.liveness import Liveness
from holdfast.stores.sqlite.transaction import Transaction

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
