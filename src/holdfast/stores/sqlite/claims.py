"""Claims: which worker executes which run next. `claim` and `claim_next` run in a write transaction."""

import heapq
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, islice, zip_longest
from typing import NamedTuple

from holdfast.checkpoint.claim import Claim, backoff
from holdfast.checkpoint.errors import RunBusy, RunNotClaimable, RunNotFound
from holdfast.checkpoint.record import RunStatus
from holdfast.stores.sqlite.database import statement
from holdfast.stores.sqlite.liveness import Liveness
from holdfast.stores.sqlite.run_row import find_run
from holdfast.stores.sqlite.transaction import Transaction, to_micros

#: Callers that one scan covers at least. If more wait, the next scan continues behind them.
_CALLERS_PER_SCAN = 256
#: Waiting runs that one scan takes up at least: those due longest.
_DUE_PER_SCAN = 256


class ScanCursor(NamedTuple):
    """The position of one scan: from caller `start` to the last, then from the first to `start`."""

    start: str
    #: The caller to continue with.
    position: str


class Candidate(NamedTuple):
    """A run that may be claimed. A smaller key is an older run."""

    run_key: int
    run_id: str
    strikes: int


def claim(
    run_id: str,
    worker_id: str,
    statuses: Collection[RunStatus],
    steal: bool,
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
    return _claim_run(Candidate(run.run_key, run_id, run.strikes), worker_id, transaction)


def _claim_run(run: Candidate, worker_id: str, transaction: Transaction) -> Claim:
    token, strikes = transaction.next_token(), run.strikes + 1
    not_before = to_micros(transaction.now + backoff(strikes))
    row = (run.run_key, worker_id, token, strikes, not_before, transaction.now_micros)
    previous = transaction.execute(statement("running_owner"), (run.run_key,)).fetchone()
    transaction.execute(statement("claim_run"), row)
    taken_from = None if previous is None else previous[0]
    return Claim(run_id=run.run_id, worker_id=worker_id, token=token, strikes=strikes, taken_from=taken_from)


class FairQueue:
    """Claims runs fairly: of the waiting callers, those served longest ago come first.

    The order is kept in memory, for each process separately.
    """

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        #: Callers by the time they were last served, the latest last.
        self._served_callers: dict[str, None] = {}
        #: The caller that the next scan starts with.
        self._position = ""

    def claim_next(
        self, worker_id: str, agents: Collection[str], limit: int, cursor: ScanCursor | None, transaction: Transaction
    ) -> tuple[Sequence[Claim], ScanCursor | None]:
        """Claim up to `limit` runs: the oldest of each caller first, then the second oldest of each, and so on.

        Returns:
            the claims, and the cursor of the next scan; `None` if all waiting callers were scanned.
        """
        if limit <= 0:
            return (), None
        scan = _CandidateScan(sorted(set(agents)), transaction, self._liveness, max(limit, _DUE_PER_SCAN))
        start, position = cursor or ScanCursor(self._position, self._position)
        callers, cursor = scan.next_callers(start, position, max(limit, _CALLERS_PER_SCAN))
        self._position = cursor.position if cursor else ""
        runs = {caller: oldest for caller in callers if (oldest := scan.find_runs(caller, 1))}
        if len(runs) < limit:
            runs = {caller: scan.find_runs(caller, limit) for caller in runs}
        order = {caller: turn for turn, caller in enumerate(self._served_callers)}
        turns = [caller for *_, caller in sorted((order.get(name, -1), runs[name][0], name) for name in runs)]
        ranks = zip_longest(*(runs[caller] for caller in turns))
        chosen = list(islice((run for run in chain.from_iterable(ranks) if run is not None), limit))
        self._mark_served(turns[:limit])
        return tuple(_claim_run(run, worker_id, transaction) for run in chosen), cursor

    def _mark_served(self, callers: Iterable[str]) -> None:
        for caller in callers:
            self._served_callers.pop(caller, None)
            self._served_callers[caller] = None
        while len(self._served_callers) > 4 * _CALLERS_PER_SCAN:
            del self._served_callers[next(iter(self._served_callers))]


class _CandidateScan:
    """Finds runs of some agents without a live owner, within one transaction."""

    def __init__(self, agents: Sequence[str], transaction: Transaction, liveness: Liveness, max_due: int) -> None:
        self._transaction = transaction
        owners = [owner for (owner,) in transaction.execute(statement("running_owners")).fetchall()]
        dead = [owner for owner in owners if not liveness.is_alive(owner, transaction.execute)]
        #: An agent, and the dead owner of its runs; `None` for runs without an owner.
        self._sources = [(agent, owner) for agent in agents for owner in (None, *dead)]
        self._caller_sources: dict[str, list[tuple[str, str | None]]] = {}
        #: Waiting runs whose time has come, by caller.
        self._due: dict[str, list[Candidate]] = {}
        for agent in agents:
            bindings = (agent, transaction.now_micros, max_due)
            for *run, caller in transaction.execute(statement("due_runs"), bindings).fetchall():
                self._due.setdefault(caller, []).append(Candidate(*run))

    def next_callers(self, start: str, position: str, limit: int) -> tuple[list[str], ScanCursor | None]:
        """Return up to `limit` callers with runs, and the cursor behind them; `None` at the end of the scan."""
        callers: list[str] = []
        if position >= start:
            callers, position = self._find_callers(position, limit), ""
        if len(callers) < limit and position < start:
            callers += self._find_callers(position, limit - len(callers), before=start)
        if len(callers) < limit:
            return callers, None
        # The next larger string.
        position = callers[-1] + "\0"
        return callers, ScanCursor(start, position) if position != start else None

    def _find_callers(self, first: str, limit: int, *, before: str | None = None) -> list[str]:
        """Return callers by name. Calls must cover disjoint ranges, or `find_runs` returns runs twice."""
        found = {caller for caller in self._due if first <= caller and (before is None or caller < before)}
        for source in self._sources:
            agent, owner = source
            name = "claimable_callers" if owner is None else "orphaned_callers"
            bindings = (agent, first, limit) if owner is None else (agent, first, limit, owner)
            for (caller,) in self._transaction.execute(statement(name), bindings):
                if before is None or caller < before:
                    found.add(caller)
                    self._caller_sources.setdefault(caller, []).append(source)
        return heapq.nsmallest(limit, found)

    def find_runs(self, caller: str, limit: int) -> list[Candidate]:
        """Return the oldest claimable runs of the caller."""
        found = list(self._due.get(caller, ()))
        for agent, owner in self._caller_sources.get(caller, ()):
            name = "claimable_runs" if owner is None else "orphaned_runs"
            bindings = (agent, caller, self._transaction.now_micros, limit)
            rows = self._transaction.execute(statement(name), bindings if owner is None else (*bindings, owner))
            found += [Candidate(*row) for row in rows]
        return heapq.nsmallest(limit, found)
