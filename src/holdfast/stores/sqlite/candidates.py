"""Finds the runs that may be claimed, lane by lane, whatever the number of runs."""

import heapq
import json
from collections.abc import Collection, Iterator
from typing import NamedTuple

from holdfast.checkpoint.workers import LimitName, Slots, list_limit_names
from holdfast.stores.sqlite.database import statement
from holdfast.stores.sqlite.liveness import Liveness
from holdfast.stores.sqlite.transaction import Transaction

#: The queued runs of one priority with the same caller and the same key are a lane: either all have a slot of their
#: key, or none. The key is empty for runs without one.
Lane = tuple[str, str]

#: Lanes whose key has no slot are walked over. One scan walks this many at most.
_LANES_TO_WALK = 1024


class ScanCursor(NamedTuple):
    """The position of one scan: from lane `start` to the last, then from the first to `start`."""

    priority: int
    start: Lane
    #: The lane to continue with.
    position: Lane


class Candidate(NamedTuple):
    """A run that may be claimed. A smaller key is an older run."""

    run_key: int
    run_id: str
    strikes: int
    agent_name: str
    shares_parent_slot: bool
    key: str

    @property
    def limit_names(self) -> tuple[LimitName, ...]:
        return list_limit_names(self.agent_name, self.key, shares_parent_slot=self.shares_parent_slot)


class CandidateScan:
    """Finds runs of some agents without a live owner, within one transaction."""

    def __init__(
        self, agents: Collection[str], slots: Slots, transaction: Transaction, liveness: Liveness, max_other: int
    ) -> None:
        """Look for runs of dead workers.

        Args:
            max_other: how many runs of each dead worker, and how many waiting runs whose time has come, to consider.
        """
        self._transaction, self._max_other = transaction, max_other
        self._agents = sorted({agent for agent in agents if not slots.is_full(("agent", agent))})
        self._full_keys = {name for kind, name in slots.caps if kind == "key" and slots.is_full((kind, name))}
        self._full_keys_json = json.dumps(sorted(self._full_keys))
        self._lane_agents: dict[Lane, list[str]] = {}
        #: Runs of dead workers and waiting runs whose time has come, by priority and lane.
        self._others: dict[int, dict[Lane, list[Candidate]]] = {}
        owners = [owner for (owner,) in transaction.execute(statement("running_owners")).fetchall()]
        for owner in owners:
            if not liveness.is_alive(owner, transaction.execute):
                for agent in self._agents:
                    self._add_others("orphaned_runs", (agent, transaction.now_micros, max_other), owner)
        self._due_priorities: set[int] = set()

    def find_priorities(self, highest: int | None) -> Iterator[int]:
        """Iterate over the priorities of waiting runs, from `highest` on, or from the highest that there is."""
        found = set(self._others)
        for agent in self._agents:
            for (priority,) in self._transaction.execute(statement("claimable_priorities"), (agent,)).fetchall():
                found.add(priority)
            rows = self._transaction.execute(statement("due_priorities"), (agent, self._transaction.now_micros))
            self._due_priorities |= {priority for (priority,) in rows.fetchall()}
        found |= self._due_priorities
        return iter(sorted((each for each in found if highest is None or each <= highest), reverse=True))

    def next_lanes(self, cursor: ScanCursor, limit: int) -> tuple[list[Lane], ScanCursor | None]:
        """Return up to `limit` lanes whose key has a slot, and the cursor behind them; `None` after the last lane."""
        priority, start, position = cursor
        self._lane_agents.clear()
        if priority in self._due_priorities:
            self._due_priorities.discard(priority)
            for agent in self._agents:
                self._add_others("due_runs", (agent, self._transaction.now_micros, self._max_other), priority)
        walk = max(limit, _LANES_TO_WALK) if self._full_keys else limit
        lanes: list[Lane] = []
        if position >= start:
            lanes, position = self._walk_lanes(priority, position, walk), ("", "")
        if len(lanes) < walk and position < start:
            lanes += self._walk_lanes(priority, position, walk - len(lanes), before=start)
        is_last = len(lanes) < walk
        free = [lane for lane in lanes if lane[1] not in self._full_keys]
        if len(free) > limit:
            free, is_last = free[:limit], False
            lanes = free
        if is_last:
            return free, None
        caller, key = lanes[-1]
        position = caller, key + "\0"  # the next larger lane
        return free, ScanCursor(priority, start, position) if position != start else None

    def find_runs(self, priority: int, lane: Lane, limit: int) -> list[Candidate]:
        """Return the claimable runs of the lane: of each agent up to `limit`, the oldest."""
        found = list(self._others.get(priority, {}).get(lane, ()))
        for agent in self._lane_agents.get(lane, ()):
            bindings = (agent, priority, *lane, self._transaction.now_micros, limit)
            found += [Candidate(*row) for row in self._transaction.execute(statement("claimable_runs"), bindings)]
        return found

    def _add_others(self, name: str, bindings: tuple[object, ...], last: object) -> None:
        rows = self._transaction.execute(statement(name), (*bindings, last, self._full_keys_json)).fetchall()
        for *run, priority, caller in rows:
            candidate = Candidate(*run)
            lanes = self._others.setdefault(priority, {})
            lanes.setdefault((caller, candidate.key), []).append(candidate)

    def _walk_lanes(self, priority: int, first: Lane, limit: int, *, before: Lane | None = None) -> list[Lane]:
        """Return lanes in order. Calls must cover disjoint ranges, or `find_runs` returns runs twice."""
        others = self._others.get(priority, ())
        found = {lane for lane in others if first <= lane and (before is None or lane < before)}
        for agent in self._agents:
            bindings = (agent, priority, *first, limit)
            for lane in self._transaction.execute(statement("claimable_lanes"), bindings).fetchall():
                if before is None or lane < before:
                    found.add(lane)
                    self._lane_agents.setdefault(lane, []).append(agent)
        return heapq.nsmallest(limit, found)
