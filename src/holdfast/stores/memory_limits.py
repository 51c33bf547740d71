"""The concurrency limits of a memory store."""

from collections.abc import Iterable

from holdfast.checkpoint.limits import (
    ConcurrencyLimit,
    LimitKind,
    LimitName,
    LimitUsage,
    Slots,
    list_limit_names,
)
from holdfast.stores.memory_run import MemoryRun


class MemoryLimits:
    """Keeps the limits by agent and by key."""

    def __init__(self) -> None:
        self._limits: dict[LimitName, ConcurrencyLimit] = {}
        #: Those of them that are defaults.
        self._defaults: set[LimitName] = set()

    def set(self, limit: ConcurrencyLimit, *, default: bool) -> None:
        name = limit.kind, limit.name
        if default and name in self._limits and name not in self._defaults:
            return
        self._limits[name] = limit
        (self._defaults.add if default else self._defaults.discard)(name)

    def remove(self, kind: LimitKind, name: str) -> bool:
        self._defaults.discard((kind, name))
        return self._limits.pop((kind, name), None) is not None

    def find_slots(self, running: Iterable[MemoryRun]) -> Slots:
        """Return the slots, given the runs that have a live owner."""
        caps = {name: limit.max_runs for name, limit in self._limits.items()}
        return Slots(caps, (get_limit_names(run) for run in running) if caps else ())

    def list_usage(self, running: Iterable[MemoryRun]) -> tuple[LimitUsage, ...]:
        slots = self.find_slots(running)
        return tuple(
            LimitUsage(limit=limit, running=slots.used[name], is_default=name in self._defaults)
            for name, limit in sorted(self._limits.items())
        )


def get_limit_names(run: MemoryRun) -> tuple[LimitName, ...]:
    return list_limit_names(run.new.agent_name, run.new.key, run.new.parent_run_id)
