"""Plans: everything that will happen to a simulated world, drawn from its seed and small enough to read."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

StoreKind = Literal["memory", "sqlite"]
FaultKind = Literal[
    "kill", "freeze", "close", "end_loop", "cancel_all", "clock_jump", "slow_store", "failing_store", "lost_notices",
    "false_notices", "disk_error", "disk_kill", "power_cut", "call_kill", "call_freeze",
]  # fmt: skip
ActionKind = Literal["send", "signal", "answer", "cancel", "watch", "result", "say", "fork"]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that a client starts."""

    run_id: str
    agent: str
    prompt: str
    at: float
    #: The client waits for the result.
    waits: bool
    #: Its script has a failure that nothing catches.
    may_fail: bool = False
    #: It counts towards the concurrency limit of the plan.
    is_limited: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """A request of a client."""

    kind: ActionKind
    run_id: str
    at: float
    #: Tells two of the same kind and run apart.
    key: str
    #: The message of a conversation, and what happens if it comes during a turn.
    text: str = ""
    when: str = ""
    #: The last step that a fork copies.
    step: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault after a number of scheduler steps."""

    kind: FaultKind
    step: int
    #: Which of the processes, counted from zero.
    target: int
    #: Seconds, a probability, or a number of disk calls or steps.
    amount: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One world."""

    seed: int
    store: StoreKind
    processes: int
    runs: tuple[PlannedRun, ...]
    actions: tuple[Action, ...]
    faults: tuple[Fault, ...]
    #: Seconds that a model or a tool takes at most.
    slowness: float = 2.0
    #: Seconds by which the clock of each process is ahead.
    skews: tuple[float, ...] = field(default=())
    #: Seconds that a write or a sync of the disk takes at most.
    disk_delay: float = 0.0
    #: The most runs that execute at once, of those that are limited. Zero: all.
    limit: int = 0
    #: Tokens that all runs together may use. Zero: any number.
    budget: int = 0
    #: Seconds for which finished runs are kept. Zero: for days.
    retention: float = 0.0
    #: Seconds between two saves of a run. Zero: it saves every step.
    save_interval: float = 0.0
    #: The outcome of a `once` call in doubt can be looked up.
    reconciles: bool = False
    #: Whether a worker that is silent is dead, as in another container; else its process decides.
    by_lease: bool = False

    def without(self, kind: Literal["runs", "actions", "faults"], index: int) -> "Plan":
        """Return the plan without one of its parts."""
        items: list[Any] = list(getattr(self, kind))
        del items[index]
        changes: dict[str, Any] = {kind: tuple(items)}
        return replace(self, **changes)
