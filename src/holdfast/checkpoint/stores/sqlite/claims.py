"""Who may drive which run next. Each function is a job of the writer."""

import heapq
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from itertools import chain, islice, zip_longest
from typing import NamedTuple

from holdfast.checkpoint.claim import Claim, backoff
from holdfast.checkpoint.errors import RunBusy, RunNotClaimable, RunNotFound
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.stores.sqlite.runs import standing
from holdfast.checkpoint.stores.sqlite.statements import statement
from holdfast.checkpoint.stores.sqlite.transaction import Transaction, to_micros
from holdfast.checkpoint.stores.sqlite.workers import Liveness

#: So many callers are looked at at once, at least. If more wait, the next look begins with the others.
_CALLERS_AT_ONCE = 256


class Round(NamedTuple):
    """How far one claim has looked: from the caller `begin` to the last of all, and then from the first to `begin`."""

    begin: str
    #: The caller to go on with.
    reached: str


class Candidate(NamedTuple):
    """A run that may be taken. The smaller its key, the older it is."""

    run_key: int
    run_id: str
    strikes: int


def claim(
    run_id: str,
    worker_id: str,
    statuses: Collection[Status],
    steal: bool,
    dead_after: timedelta,
    transaction: Transaction,
) -> Claim:
    stands = standing(run_id, transaction)
    if stands is None:
        raise RunNotFound(run_id)
    counts_as = {stands.status}
    if stands.status is Status.RUNNING:
        if not Liveness(transaction.execute, transaction.now, dead_after).alive(stands.owner):
            counts_as.add(Status.INTERRUPTED)
        elif stands.owner is not None and not steal:
            raise RunBusy(run_id, stands.owner)
    if counts_as.isdisjoint(statuses):
        raise RunNotClaimable(run_id, stands.status.value, stands.reason)
    return _take(Candidate(stands.run_key, run_id, stands.strikes), worker_id, transaction)


def _take(run: Candidate, worker_id: str, transaction: Transaction) -> Claim:
    token, strikes = transaction.next_token(), run.strikes + 1
    not_before = to_micros(transaction.now + backoff(strikes))
    row = (run.run_key, worker_id, token, strikes, not_before, transaction.now_micros)
    transaction.execute(statement("take"), row)
    return Claim(run_id=run.run_id, worker_id=worker_id, token=token, strikes=strikes)


class Turns:
    """Whose turn it is: of the callers that wait, those that were served longest ago come first.

    The order is this store's own memory. Other processes have theirs: each of them is fair.
    """

    def __init__(self, dead_after: timedelta) -> None:
        self._dead_after = dead_after
        #: The callers served, the latest last.
        self._served: dict[str, None] = {}
        #: The caller that the next claim begins with: the last one did not look at it.
        self._reached = ""

    def claim_next(
        self, worker_id: str, agents: Collection[str], limit: int, looked: Round | None, transaction: Transaction
    ) -> tuple[Sequence[Claim], Round | None]:
        """Take up to `limit` runs: the oldest of each caller first, then the second oldest of each, and so on.

        Of the callers that come next after those that were looked at. Gives the claims, and how far that was; `None`:
        all that wait were looked at.
        """
        if limit <= 0:
            return (), None
        waiting = _Waiting(sorted(set(agents)), transaction, self._dead_after)
        begin, reached = looked or Round(self._reached, self._reached)
        callers, looked = waiting.next_callers(begin, reached, max(limit, _CALLERS_AT_ONCE))
        self._reached = looked.reached if looked else ""
        rows = {caller: runs for caller in callers if (runs := waiting.runs(caller, 1))}
        if len(rows) < limit:
            rows = {caller: waiting.runs(caller, limit) for caller in rows}
        order = {caller: turn for turn, caller in enumerate(self._served)}
        turns = sorted(rows, key=lambda caller: (order.get(caller, -1), rows[caller][0]))
        ranks = zip_longest(*(rows[caller] for caller in turns))
        chosen = list(islice((run for run in chain.from_iterable(ranks) if run is not None), limit))
        self._remember(turns[:limit])
        return tuple(_take(run, worker_id, transaction) for run in chosen), looked

    def _remember(self, callers: Iterable[str]) -> None:
        for caller in callers:
            self._served.pop(caller, None)
            self._served[caller] = None
        while len(self._served) > 4 * _CALLERS_AT_ONCE:
            del self._served[next(iter(self._served))]


class _Waiting:
    """The runs that no live worker drives, of some agents, within one transaction."""

    def __init__(self, agents: Sequence[str], transaction: Transaction, dead_after: timedelta) -> None:
        self._transaction = transaction
        liveness = Liveness(transaction.execute, transaction.now, dead_after)
        owners = [owner for (owner,) in transaction.execute(statement("owners")).fetchall()]
        dead = [owner for owner in owners if not liveness.alive(owner)]
        #: An agent, and the dead worker that held the run; `None` for those that nobody holds.
        self._places = [(agent, owner) for agent in agents for owner in (None, *dead)]
        self._places_of: dict[str, list[tuple[str, str | None]]] = {}

    def next_callers(self, begin: str, reached: str, limit: int) -> tuple[list[str], Round | None]:
        """Up to `limit` callers that have runs here, and how far the round has come with them; `None`: it is over."""
        callers: list[str] = []
        if reached >= begin:
            callers, reached = self._callers(reached, limit), ""
        if len(callers) < limit and reached < begin:
            callers += self._callers(reached, limit - len(callers), before=begin)
        if len(callers) < limit:
            return callers, None
        # The smallest string that is larger.
        reached = callers[-1] + "\0"
        return callers, Round(begin, reached) if reached != begin else None

    def _callers(self, first: str, limit: int, *, before: str | None = None) -> list[str]:
        """In the order of their names. None may be found by two calls: its runs would be there twice."""
        found: set[str] = set()
        for place in self._places:
            agent, owner = place
            what = "waiting_callers" if owner is None else "abandoned_callers"
            bindings = (agent, first, limit) if owner is None else (agent, first, limit, owner)
            for (caller,) in self._transaction.execute(statement(what), bindings):
                if before is None or caller < before:
                    found.add(caller)
                    self._places_of.setdefault(caller, []).append(place)
        return heapq.nsmallest(limit, found)

    def runs(self, caller: str, limit: int) -> list[Candidate]:
        """The oldest runs of the caller that may be taken now."""
        found: list[Candidate] = []
        for agent, owner in self._places_of[caller]:
            what = "waiting_runs" if owner is None else "abandoned_runs"
            bindings = (agent, caller, self._transaction.now_micros, limit)
            rows = self._transaction.execute(statement(what), bindings if owner is None else (*bindings, owner))
            found += [Candidate(*row) for row in rows]
        return heapq.nsmallest(limit, found)
