"""What is known outside of the store: effects, acknowledgements that clients got, events that they saw."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from holdfast.testing.simulation.machine.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ToolEffect:
    """A call of a tool."""

    run_id: str
    step: int
    call_id: str
    tool: str
    kind: str

    def __str__(self) -> str:
        return f"{self.run_id}: {self.kind} call {self.call_id} of {self.tool} in step {self.step}"


@dataclass(slots=True)
class WorldLedger:
    """Everything that happened outside of the store, in order. A dead process adds nothing."""

    scheduler: Scheduler
    #: A process that was frozen may repeat a model call or a pure call, and writes nothing of it.
    has_zombies: bool
    #: One line for each thing that happened; two worlds with the same seed have the same.
    trace: list[str] = field(default_factory=list)
    begun: Counter[ToolEffect] = field(default_factory=Counter)
    finished: Counter[ToolEffect] = field(default_factory=Counter)
    #: By run: when its model was called.
    model_calls: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    #: By run: the user messages of the latest model call.
    heard: dict[str, list[str]] = field(default_factory=dict)
    #: By run: the user messages of all model calls.
    ever_heard: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: By run: the results of tool calls that its model has seen.
    results: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    #: Requests that returned: kind, run id, what.
    acknowledged: list[tuple[str, str, Any]] = field(default_factory=list)
    #: By watcher: the run and the durable events that it got, as (cursor, description).
    watched: dict[str, tuple[str, list[tuple[str, str]]]] = field(default_factory=dict)
    outputs: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    problems: list[str] = field(default_factory=list)
    #: By run: steps that are durable for sure, since a `once` call of the step has begun.
    durable_steps: dict[str, int] = field(default_factory=dict)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.scheduler.now:10.6f} {self.scheduler.steps:6} {text}")

    def begin(self, effect: ToolEffect) -> None:
        self.note(f"{effect} begins")
        self.begun[effect] += 1
        if effect.kind == "once":
            if self.begun[effect] > 1:
                self.problems.append(f"{effect} was made {self.begun[effect]} times")
            known = self.durable_steps.get(effect.run_id, 0)
            self.durable_steps[effect.run_id] = max(known, effect.step)
        if effect.step < self.durable_steps.get(effect.run_id, 0) and not self.has_zombies:
            self.problems.append(
                f"{effect} was made after a once call of step {self.durable_steps[effect.run_id]} had begun"
            )

    def finish(self, effect: ToolEffect) -> None:
        self.note(f"{effect} has ended")
        self.finished[effect] += 1

    def call_model(self, run_id: str, replies: int, heard: list[str], results: dict[str, Any], *, check: bool) -> None:
        self.note(f"{run_id}: model call {replies + 1}")
        if check and not self.has_zombies and replies + 1 <= self.durable_steps.get(run_id, 0):
            self.problems.append(
                f"run {run_id}: the model was asked for reply {replies + 1} after a once call of step"
                f" {self.durable_steps[run_id]} had begun"
            )
        self.model_calls[run_id].append(self.scheduler.now)
        self.heard[run_id] = heard
        self.ever_heard[run_id].update(heard)
        self.results[run_id].update(results)

    def acknowledge(self, kind: str, run_id: str, what: Any = None) -> None:
        self.note(f"{run_id}: {kind} {what or ''} is acknowledged")
        self.acknowledged.append((kind, run_id, what))
