"""Who may drive which run next. Each function is a job of the writer."""

import heapq
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from itertools import chain, islice, zip_longest
from typing import NamedTuple

from holdfast.checkpoint.claim import Claim, backoff
from holdfast.checkpoint.errors import RunBusy, RunNotClaimable, RunNotFound
from holdfast.checkpoint.record import RunStatus
from holdfast.stores.sqlite.database import statement
from holdfast.stores.sqlite.heartbeat import Liveness
from holdfast.stores.sqlite.runs import find_run
from holdfast.stores.sqlite.transaction import Transaction, to_micros

#: So many callers are looked at at once, at least. If more wait, the next look begins with the others.
_CALLERS_PER_SCAN = 256


class ScanCursor(NamedTuple):
    """How far one claim has looked: from the caller `begin` to the last of all, and then from the first to `begin`."""

    start: str
    #: The caller to go on with.
    position: str


class Candidate(NamedTuple):
    """A run that may be taken. The smaller its key, the older it is."""

    run_key: int
    run_id: str
    strikes: int


def claim(
    run_id: str,
    worker_id: str,
    statuses: Collection[RunStatus],
    steal: bool,
    lease_timeout: timedelta,
    transaction: Transaction,
) -> Claim:
    stands = find_run(run_id, transaction)
    if stands is None:
        raise RunNotFound(run_id)
    counts_as = {stands.status}
    if stands.status is RunStatus.RUNNING:
        if not Liveness(transaction.execute, transaction.now, lease_timeout).is_alive(stands.owner):
            counts_as.add(RunStatus.INTERRUPTED)
        elif stands.owner is not None and not steal:
            raise RunBusy(run_id, stands.owner)
    if counts_as.isdisjoint(statuses):
        raise RunNotClaimable(run_id, stands.status.value, stands.reason)
    return _claim_run(Candidate(stands.run_key, run_id, stands.strikes), worker_id, transaction)


def _claim_run(run: Candidate, worker_id: str, transaction: Transaction) -> Claim:
    token, strikes = transaction.next_token(), run.strikes + 1
    not_before = to_micros(transaction.now + backoff(strikes))
    row = (run.run_key, worker_id, token, strikes, not_before, transaction.now_micros)
    transaction.execute(statement("claim_run"), row)
    return Claim(run_id=run.run_id, worker_id=worker_id, token=token, strikes=strikes)


class FairQueue:
    """Whose turn it is: of the callers that wait, those that were served longest ago come first.

    The order is this store's own memory. Other processes have theirs: each of them is fair.
    """

    def __init__(self, lease_timeout: timedelta) -> None:
        self._lease_timeout = lease_timeout
        #: The callers served, the latest last.
        self._served_callers: dict[str, None] = {}
        #: The caller that the next claim begins with: the last one did not look at it.
        self._position = ""

    def claim_next(
        self, worker_id: str, agents: Collection[str], limit: int, cursor: ScanCursor | None, transaction: Transaction
    ) -> tuple[Sequence[Claim], ScanCursor | None]:
        """Take up to `limit` runs: the oldest of each caller first, then the second oldest of each, and so on.

        Of the callers that come next after those that were looked at. Gives the claims, and how far that was; `None`:
        all that wait were looked at.
        """
        if limit <= 0:
            return (), None
        waiting = _CandidateScan(sorted(set(agents)), transaction, self._lease_timeout)
        begin, reached = cursor or ScanCursor(self._position, self._position)
        callers, cursor = waiting.next_callers(begin, reached, max(limit, _CALLERS_PER_SCAN))
        self._position = cursor.position if cursor else ""
        rows = {caller: runs for caller in callers if (runs := waiting.find_runs(caller, 1))}
        if len(rows) < limit:
            rows = {caller: waiting.find_runs(caller, limit) for caller in rows}
        order = {caller: turn for turn, caller in enumerate(self._served_callers)}
        turns = sorted(rows, key=lambda caller: (order.get(caller, -1), rows[caller][0]))
        ranks = zip_longest(*(rows[caller] for caller in turns))
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
    """The runs that no live worker drives, of some agents, within one transaction."""

    def __init__(self, agents: Sequence[str], transaction: Transaction, lease_timeout: timedelta) -> None:
        self._transaction = transaction
        liveness = Liveness(transaction.execute, transaction.now, lease_timeout)
        owners = [owner for (owner,) in transaction.execute(statement("running_owners")).fetchall()]
        dead = [owner for owner in owners if not liveness.is_alive(owner)]
        #: An agent, and the dead worker that held the run; `None` for those that nobody holds.
        self._sources = [(agent, owner) for agent in agents for owner in (None, *dead)]
        self._caller_sources: dict[str, list[tuple[str, str | None]]] = {}

    def next_callers(self, start: str, position: str, limit: int) -> tuple[list[str], ScanCursor | None]:
        """Up to `limit` callers that have runs here, and how far the round has come with them; `None`: it is over."""
        callers: list[str] = []
        if position >= start:
            callers, position = self._find_callers(position, limit), ""
        if len(callers) < limit and position < start:
            callers += self._find_callers(position, limit - len(callers), before=start)
        if len(callers) < limit:
            return callers, None
        # The smallest string that is larger.
        position = callers[-1] + "\0"
        return callers, ScanCursor(start, position) if position != start else None

    def _find_callers(self, first: str, limit: int, *, before: str | None = None) -> list[str]:
        """In the order of their names. None may be found by two calls: its runs would be there twice."""
        found: set[str] = set()
        for place in self._sources:
            agent, owner = place
            what = "claimable_callers" if owner is None else "orphaned_callers"
            bindings = (agent, first, limit) if owner is None else (agent, first, limit, owner)
            for (caller,) in self._transaction.execute(statement(what), bindings):
                if before is None or caller < before:
                    found.add(caller)
                    self._caller_sources.setdefault(caller, []).append(place)
        return heapq.nsmallest(limit, found)

    def find_runs(self, caller: str, limit: int) -> list[Candidate]:
        """The oldest runs of the caller that may be taken now."""
        found: list[Candidate] = []
        for agent, owner in self._caller_sources[caller]:
            what = "claimable_runs" if owner is None else "orphaned_runs"
            bindings = (agent, caller, self._transaction.now_micros, limit)
            rows = self._transaction.execute(statement(what), bindings if owner is None else (*bindings, owner))
            found += [Candidate(*row) for row in rows]
        return heapq.nsmallest(limit, found)
