"""Concurrency limits: how many runs of an agent, or with a key, execute at the same time, in all workers of a store."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from holdfast.config import ConcurrencyLimit

T = TypeVar("T")

#: What a limit is for: its kind, and the name of the agent or the key.
LimitName = tuple[str, str]


def make_limit(kind: str, name: str, max_runs: int) -> ConcurrencyLimit:
    """Return the limit of one agent or one key."""
    if kind == "agent":
        return ConcurrencyLimit(agent=name, max_runs=max_runs)
    return ConcurrencyLimit(key=name, max_runs=max_runs)


class LimitUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a store, and how much of it is in use."""

    limit: ConcurrencyLimit
    #: Runs that count towards it: they are running, have a live owner, and no parent or are detached.
    running: int
    #: Whether an App set it at its start. `set_limit` without `default` replaces it for good.
    is_default: bool


def list_limit_names(agent_name: str, key: str, *, shares_parent_slot: bool) -> tuple[LimitName, ...]:
    """Return the limits under which a run counts, if they exist.

    Args:
        shares_parent_slot: as in `RunIndex`.
    """
    if shares_parent_slot:
        return ()
    return (("agent", agent_name),) if not key else (("agent", agent_name), ("key", key))


class Slots:
    """The slots in use, by limit, and those that are free. For a store that claims one run after the other."""

    def __init__(self, caps: Mapping[LimitName, int], running: Iterable[Iterable[LimitName]]) -> None:
        """Count the slots.

        Args:
            caps: the limits of the store.
            running: the names of the limits of each running run that has a live owner.
        """
        self.caps = caps
        self.used: Counter[LimitName] = Counter()
        for names in running:
            self.used.update(names)

    def is_full(self, name: LimitName) -> bool:
        return name in self.caps and self.used[name] >= self.caps[name]

    def try_take(self, names: Sequence[LimitName]) -> bool:
        """Take a slot of each of these limits, or none if one of them is reached."""
        if any(map(self.is_full, names)):
            return False
        self.used.update(names)
        return True


def choose_fairly(queues: Iterable[Iterable[tuple[Sequence[LimitName], T]]], slots: Slots, limit: int) -> list[T]:
    """Choose runs that have a slot: the first of each queue, then the second of each, and so on.

    Args:
        queues: the runs of each caller, oldest first, with the names of their limits.
    """
    waiting = [deque(queue) for queue in queues]
    chosen: list[T] = []
    while waiting and len(chosen) < limit:
        for queue in waiting:
            while queue and len(chosen) < limit:
                names, run = queue.popleft()
                if slots.try_take(names):
                    chosen.append(run)
                    break
        waiting = [queue for queue in waiting if queue]
    return chosen
