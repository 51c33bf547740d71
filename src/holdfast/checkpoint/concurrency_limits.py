"""Concurrency limits: how many runs of an agent, or with a key, execute at the same time, in all workers of a store."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from holdfast.core.errors import DefinitionError

T = TypeVar("T")

LimitKind = Literal["agent", "key"]

#: What a limit is for: its kind, and the name of the agent or the key.
LimitName = tuple[str, str]


class ConcurrencyLimit(msgspec.Struct, frozen=True, kw_only=True):
    """At most `max_runs` runs of one agent, or with one key, execute at the same time. Set exactly one of the two.

    Zero pauses the agent or the key. A run with a parent executes within the parent's slot, and is not counted.
    """

    max_runs: int
    agent: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        """Raise `DefinitionError` unless this names one agent or one key, and a number of runs."""
        names = [name for name in (self.agent, self.key) if name is not None]
        if len(names) != 1 or not isinstance(names[0], str) or not names[0]:
            raise DefinitionError("a ConcurrencyLimit has either an agent or a key: give the name of one of them")
        if not isinstance(self.max_runs, int) or isinstance(self.max_runs, bool) or not 0 <= self.max_runs < 2**31:
            raise DefinitionError(f"max_runs is {self.max_runs!r:.80}: give a whole number, 0 or more")

    @property
    def kind(self) -> LimitKind:
        return "key" if self.agent is None else "agent"

    @property
    def name(self) -> str:
        """The name of the agent, or the key."""
        name = self.key if self.agent is None else self.agent
        assert name is not None  # `__post_init__` has checked it
        return name


def make_limit(kind: str, name: str, max_runs: int) -> ConcurrencyLimit:
    """Return the limit of one agent or one key."""
    if kind == "agent":
        return ConcurrencyLimit(agent=name, max_runs=max_runs)
    return ConcurrencyLimit(key=name, max_runs=max_runs)


class LimitUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a store, and how much of it is in use."""

    limit: ConcurrencyLimit
    #: Runs that count towards it: they are running, have a live owner, and no parent.
    running: int
    #: Whether an App set it at its start. `set_limit` without `default` replaces it for good.
    is_default: bool


def list_limit_names(agent_name: str, key: str, parent_run_id: str | None) -> tuple[LimitName, ...]:
    """Return the limits under which a run counts, if they exist. A run with a parent executes in the parent's slot."""
    if parent_run_id is not None:
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
