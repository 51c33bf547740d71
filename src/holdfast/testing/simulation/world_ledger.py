"""What is known outside of the store: effects, acknowledgements that clients got, events that they saw."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

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


#: What the results of some kinds of calls say; the others are "done".
_RESULTS = {"transaction": "booked"}


class ActiveRun(NamedTuple):
    """A call of a model or a tool in progress, which counts its run among those that execute."""

    counts: "Counter[tuple[int, str]]"
    key: tuple[int, str]

    def leave(self) -> None:
        self.counts[self.key] -= 1


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
    model_calls: dict[str, list[float]] = field(default_factory=partial(defaultdict, list))
    #: The run and the number of each reply that a model was asked for.
    replies: set[tuple[str, int]] = field(default_factory=set)
    #: By run: the user messages of the latest model call.
    heard: dict[str, list[str]] = field(default_factory=dict)
    #: By run: the user messages of all model calls.
    ever_heard: dict[str, set[str]] = field(default_factory=partial(defaultdict, set))
    #: By run: the results of tool calls that its model has seen.
    results: dict[str, dict[str, Any]] = field(default_factory=partial(defaultdict, dict))
    #: Requests that returned: kind, run id, what.
    acknowledged: list[tuple[str, str, Any]] = field(default_factory=list)
    #: By watcher: the run and the durable events that it got, as (cursor, description).
    watched: dict[str, tuple[str, list[tuple[str, str]]]] = field(default_factory=dict)
    outputs: dict[str, set[str]] = field(default_factory=partial(defaultdict, set))
    problems: list[str] = field(default_factory=list)
    #: By run: steps that are durable for sure, since a `once` call of the step has begun.
    durable_steps: dict[str, int] = field(default_factory=dict)
    #: By run of a workflow: what its code has seen, by place, in any attempt.
    seen: dict[str, dict[str, str]] = field(default_factory=partial(defaultdict, dict))
    #: By run of a workflow: what of it is durable for sure, since a later `once` call has begun.
    durable_values: dict[str, dict[str, str]] = field(default_factory=partial(defaultdict, dict))
    #: By run and place: what the code had seen when it made this call.
    asked: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    #: By run: the places whose calls were undone, in this order.
    undone: dict[str, list[str]] = field(default_factory=partial(defaultdict, list))
    #: Runs in the background that are no children.
    detached: set[str] = field(default_factory=set)
    #: By process and run: calls of models and tools in progress.
    active: Counter[tuple[int, str]] = field(default_factory=Counter)
    #: The runs that share a concurrency limit, and the limit.
    limited: frozenset[str] = frozenset()
    limit: int = 0
    #: By message of a conversation: the step of the world at which a client first sent it.
    asked_at: dict[str, int] = field(default_factory=dict)
    #: By run and call: the result of a transaction that a model or a workflow has seen. It is durable.
    booked: dict[tuple[str, str], str] = field(default_factory=dict)
    #: By fork: the last step that it has copied.
    forks: dict[str, int] = field(default_factory=dict)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.scheduler.now:10.6f} {self.scheduler.steps:6} {text}")

    def begin(self, effect: ToolEffect) -> None:
        self.note(f"{effect} begins")
        self.begun[effect] += 1
        if effect.step == 0:
            self._check_place(effect)
        elif effect.step <= self.forks.get(effect.run_id, 0):
            self.problems.append(f"{effect} was repeated in a fork after step {self.forks[effect.run_id]}")
        if effect.kind == "once":
            if self.begun[effect] > 1:
                self.problems.append(f"{effect} was made {self.begun[effect]} times")
            known = self.durable_steps.get(effect.run_id, 0)
            self.durable_steps[effect.run_id] = max(known, effect.step)
        if effect.step < self.durable_steps.get(effect.run_id, 0) and not self.has_zombies:
            self.problems.append(
                f"{effect} was made after a once call of step {self.durable_steps[effect.run_id]} had begun"
            )

    def finish(self, effect: ToolEffect) -> str:
        """Record the end of a call, and return its result: a call that is repeated has another one."""
        self.note(f"{effect} has ended")
        self.finished[effect] += 1
        return f"{effect.call_id} {_RESULTS.get(effect.kind, 'done')}, call {self.begun[effect]}"

    # -- workflows ----------------------------------------------------------------------------------------------

    def ask(self, run_id: str, place: str, seen: dict[str, str]) -> None:
        """The code of a workflow makes a call, and has seen this in its present attempt."""
        self.asked[run_id, place] = dict(seen)

    def see(self, run_id: str, place: str, value: Any) -> None:
        """The code of a workflow has got a value."""
        self.note(f"{run_id}: {place} is {value!r:.60}")
        known = self.durable_values[run_id].get(place)
        if known is not None and known != repr(value) and not self.has_zombies:
            self.problems.append(f"run {run_id}: the value of step {place} was {known}, and is {value!r} later")
        self.seen[run_id][place] = repr(value)
        if self._see_booking(run_id, place, value):
            self.durable_values[run_id] |= {**self.asked.pop((run_id, place), {}), place: repr(value)}
        self.results[run_id][place] = value

    def _see_booking(self, run_id: str, place: str, value: Any) -> bool:
        """Return whether this is the result of a transaction, and check that it is the one that was seen before."""
        if not isinstance(value, str) or not value.startswith(f"{place} booked, call "):
            return False
        if (known := self.booked.setdefault((run_id, place), value)) != value:
            self.problems.append(f"run {run_id}: transaction {place} was {known!r}, and is {value!r} later")
        return True

    def _check_place(self, effect: ToolEffect) -> None:
        durable = self.durable_values[effect.run_id]
        if effect.call_id in durable and not self.has_zombies:
            self.problems.append(f"{effect} was repeated after its result was durable")
        if effect.kind == "once":
            durable.update(self.asked.pop((effect.run_id, effect.call_id), {}))

    def undo(self, run_id: str, place: str) -> None:
        """A call of a workflow is undone. Those at the top of a script are undone in the reverse of their order."""
        self.note(f"{run_id}: {place} is undone")
        seen, undone = self.seen[run_id], self.undone[run_id]
        if not any(each.run_id == run_id and each.call_id == place for each in self.begun):
            self.problems.append(f"run {run_id}: {place} was undone, and never made")
        top, later = f"{place.partition('.')[0]}.t", False
        for other in seen:
            if later and other.startswith(f"{top}r") and other not in undone:
                self.problems.append(f"run {run_id}: {place} was undone before {other}, which came later")
            later = later or (other == place and place.startswith(top))
        undone.append(place)

    # -- runs that execute --------------------------------------------------------------------------------------

    def enter(self, process: int, run_id: str) -> ActiveRun:
        """A model or a tool of the run is called. Checks the concurrency limit."""
        root = run_id.partition(":")[0]
        self.active[process, root] += 1
        executing = {run for (_, run), count in self.active.items() if count > 0 and run in self.limited}
        if self.limit and len(executing) > self.limit and not self.has_zombies:
            self.problems.append(f"the runs {sorted(executing)} execute at once, and the limit is {self.limit}")
        return ActiveRun(self.active, (process, root))

    def forget_process(self, process: int) -> None:
        """The process has died: it executes nothing more."""
        for key in [key for key in self.active if key[0] == process]:
            del self.active[key]

    def call_model(self, run_id: str, replies: int, heard: list[str], results: dict[str, Any], *, check: bool) -> None:
        self.note(f"{run_id}: model call {replies + 1}")
        if check and not self.has_zombies and replies + 1 <= self.durable_steps.get(run_id, 0):
            self.problems.append(
                f"run {run_id}: the model was asked for reply {replies + 1} after a once call of step"
                f" {self.durable_steps[run_id]} had begun"
            )
        self.model_calls[run_id].append(self.scheduler.now)
        self.replies.add((run_id, replies))
        self.heard[run_id] = heard
        self.ever_heard[run_id].update(heard)
        for call_id, value in results.items():
            self._see_booking(run_id, call_id, value)
        self.results[run_id].update(results)

    def acknowledge(self, kind: str, run_id: str, what: Any = None) -> None:
        self.note(f"{run_id}: {kind} {what or ''} is acknowledged")
        self.acknowledged.append((kind, run_id, what))
