"""What is known outside of the store: effects, acknowledgements that clients got, events that they saw."""

from collections import Counter, defaultdict
from collections.abc import Callable
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
    #: A save takes no time: the result of a `once` call is durable before the clock advances.
    saves_immediately: bool
    #: One line for each thing that happened; two worlds with the same seed have the same.
    trace: list[str] = field(default_factory=list)
    begun: Counter[ToolEffect] = field(default_factory=Counter)
    finished: Counter[ToolEffect] = field(default_factory=Counter)
    #: By run: when its model was called.
    model_calls: dict[str, list[float]] = field(default_factory=partial(defaultdict, list))
    #: The run and the number of each reply that a model was asked for.
    replies: set[tuple[str, int]] = field(default_factory=set)
    #: By run: how many replies there were before the latest model call, and its user messages.
    latest_call: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
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
    #: How many processes were killed, and how many of them before the run was last known to have finished a step.
    kills: int = 0
    kills_before_step: dict[str, int] = field(default_factory=dict)
    #: By run and call: the result of a `once` call or a transaction that a model or a workflow has seen. It is durable.
    final: dict[tuple[str, str], Any] = field(default_factory=dict)
    #: The run and the call of each `once` call that has begun.
    once: set[tuple[str, str]] = field(default_factory=set)
    #: By process: when a `once` call has ended, its run and id, and its result.
    ended: dict[int, list[tuple[float, tuple[str, str], str]]] = field(default_factory=partial(defaultdict, list))
    #: Called when a model or a tool is called.
    on_call: Callable[[], None] = field(default=lambda: None)
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
            self._begin_once(effect)
        if effect.step < self.durable_steps.get(effect.run_id, 0) and not self.has_zombies:
            self.problems.append(
                f"{effect} was made after a once call of step {self.durable_steps[effect.run_id]} had begun"
            )
        self.on_call()

    def _begin_once(self, effect: ToolEffect) -> None:
        if self.begun[effect] > 1:
            self.problems.append(f"{effect} was made {self.begun[effect]} times")
        # A process that was frozen after it had given the call to a thread cannot know better.
        elif effect.call_id in self.results[effect.run_id] and effect.tool != "blocking":
            self.problems.append(
                f"{effect} was made after its result was {self.results[effect.run_id][effect.call_id]}"
            )
        self.once.add((effect.run_id, effect.call_id))
        if effect.step > max(1, self.durable_steps.get(effect.run_id, 0)):
            self.kills_before_step[effect.run_id] = self.kills
        self.durable_steps[effect.run_id] = max(self.durable_steps.get(effect.run_id, 0), effect.step)

    def count_begun(self, run_id: str, call_id: str) -> int:
        """Return how often a call has begun."""
        return max((n for each, n in self.begun.items() if (each.run_id, each.call_id) == (run_id, call_id)), default=0)

    def finish(self, effect: ToolEffect) -> str:
        """Record the end of a call, and return its result: a call that is repeated has another one."""
        self.note(f"{effect} has ended")
        self.finished[effect] += 1
        result = f"{effect.call_id} {_RESULTS.get(effect.kind, 'done')}, call {self.begun[effect]}"
        # A thread may end after its call was cancelled. The result of a deferred call comes later.
        if effect.kind == "once" and effect.tool not in ("blocking", "deferred") and self.scheduler.process is not None:
            end = self.scheduler.now, (effect.run_id, effect.call_id), result
            self.ended[self.scheduler.process.number].append(end)
        return result

    def look_up(self, run_id: str, call_id: str) -> int:
        """Return how often a call that is in doubt has begun."""
        process = self.scheduler.process
        # One that was frozen may ask about a call that another process has made meanwhile, and writes nothing of it.
        if (run_id, call_id) in self.final and not (process is not None and process.was_frozen):
            self.problems.append(f"run {run_id}: {call_id} is in doubt after it was {self.final[run_id, call_id]!r}")
        return self.count_begun(run_id, call_id)

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
        if self._see_result(run_id, place, value):
            self.durable_values[run_id] |= {**self.asked.pop((run_id, place), {}), place: repr(value)}
        self.results[run_id][place] = value

    def _see_result(self, run_id: str, place: str, value: Any) -> bool:
        """Return whether this is the result of a transaction. Check that a final one has not changed."""
        is_booked = isinstance(value, str) and value.startswith(f"{place} booked, call ")
        if is_booked or (run_id, place) in self.once:
            known = self.final.setdefault((run_id, place), value)
            if known != value:
                self.problems.append(f"run {run_id}: the result of {place} was {known!r}, and is {value!r} later")
        return is_booked

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
        if not self.count_begun(run_id, place):
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
        for when, call, result in self.ended.pop(process, ()):
            if self.saves_immediately and when < self.scheduler.now:
                self.final.setdefault(call, result)
        for key in [key for key in self.active if key[0] == process]:
            del self.active[key]

    def call_model(self, run_id: str, replies: int, heard: list[str], results: dict[str, Any], *, check: bool) -> None:
        self.note(f"{run_id}: model call {replies + 1}")
        self.on_call()
        if check and not self.has_zombies and replies + 1 <= self.durable_steps.get(run_id, 0):
            self.problems.append(
                f"run {run_id}: the model was asked for reply {replies + 1} after a once call of step"
                f" {self.durable_steps[run_id]} had begun"
            )
        self.model_calls[run_id].append(self.scheduler.now)
        self.replies.add((run_id, replies))
        # A process that was frozen may repeat an earlier call, without the messages that came since.
        called, before = self.latest_call.get(run_id, (0, []))
        if not self.has_zombies or (replies, len(heard)) >= (called, len(before)):
            self.latest_call[run_id] = replies, heard
        self.ever_heard[run_id].update(heard)
        for call_id, value in results.items():
            self._see_result(run_id, call_id, value)
        self.results[run_id].update(results)

    def acknowledge(self, kind: str, run_id: str, what: Any = None) -> None:
        self.note(f"{run_id}: {kind} {what or ''} is acknowledged")
        self.acknowledged.append((kind, run_id, what))
