"""Simulate many seeds, shrink what fails, and say how to see it again."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from holdfast.testing.simulation.plan import Plan, StoreKind
from holdfast.testing.simulation.scenarios.draw_plan import make_plan, plan_runs
from holdfast.testing.simulation.world.world import AppFactory, World, WorldOutcome

#: Worlds that the search for a smaller failing plan may try.
_MAX_SHRINKS = 120


class SimulationFailed(AssertionError):
    """A schedule has broken a promise. The text has the seed, the shrunk plan and the trace."""

    def __init__(self, outcome: WorldOutcome, command: str) -> None:
        super().__init__(format_failure(outcome, command))
        self.seed, self.problems, self.trace = outcome.plan.seed, outcome.problems, outcome.trace


class Figures:
    """How much was simulated."""

    def __init__(self) -> None:
        self.schedules = self.steps = self.kills = self.runs = 0
        #: Processor time, which other load on the machine changes little.
        self.seconds = 0.0
        self._began = time.process_time()

    def add(self, outcome: WorldOutcome) -> None:
        self.schedules += 1
        self.steps += outcome.steps
        self.kills += outcome.kills
        self.runs += len(outcome.statuses)
        self.seconds = time.process_time() - self._began

    def merge(self, other: "Figures") -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        self.kills += other.kills
        self.runs += other.runs
        self.seconds += other.seconds

    def __str__(self) -> str:
        rate = self.schedules / max(self.seconds, 0.001) * 120
        return (
            f"{self.schedules} schedules ({rate:.0f} in a minute of two processors), {self.runs} runs,"
            f" {self.kills} killed processes, {self.steps} steps"
        )


def simulate(
    app_factory: AppFactory,
    runs: Sequence[tuple[str, str]],
    *,
    seeds: Iterable[int] = range(100),
    store: StoreKind | None = None,
) -> Figures:
    """Execute runs of your own agents under simulated faults: kills, freezes, slow stores, clock jumps, power cuts.

    Every seed is one schedule: another number of processes, other faults at other moments. Each run has to end `done`;
    no `once` tool of it is called twice; nothing acknowledged is lost; watchers miss nothing. Time is virtual: use
    `asyncio.sleep` in models and async tools, and no network.

    Args:
        app_factory: makes the App of one process on the given store. It is called for each process that starts.
        runs: the name of an agent and a prompt, for each run of a schedule.
        seeds: one schedule for each.
        store: `memory` or `sqlite`. By default the seed decides.

    Raises:
        SimulationFailed: with the first seed that broke a promise. The same seed gives the same trace again.
    """
    figures = Figures()
    for seed in seeds:
        plan = plan_runs(seed, runs, store)
        outcome = World(plan, app_factory).run()
        figures.add(outcome)
        if outcome.problems:
            raise SimulationFailed(shrink(outcome, app_factory), f"simulate(..., seeds=[{seed}], store={store!r})")
    return figures


def run_seed(seed: int, store: StoreKind | None = None) -> WorldOutcome:
    """Simulate the scripted agents of this package once."""
    return World(make_plan(seed, store)).run()


def shrink(failed: WorldOutcome, app_factory: AppFactory | None = None) -> WorldOutcome:
    """Return the outcome of the smallest plan found that fails in the same way."""
    wanted, tries = _describe(failed), 0
    is_smaller = True
    while is_smaller and tries < _MAX_SHRINKS:
        is_smaller = False
        for plan in _list_smaller(failed.plan):
            tries += 1
            outcome = World(plan, app_factory).run()
            if outcome.problems and _describe(outcome) == wanted:
                failed, is_smaller = outcome, True
                break
            if tries >= _MAX_SHRINKS:
                break
    return failed


def _list_smaller(plan: Plan) -> Iterable[Plan]:
    for kind in ("faults", "runs", "actions"):
        for index in range(len(getattr(plan, kind)) - 1, -1, -1):
            yield plan.without(kind, index)
    if any(plan.skews):
        yield replace(plan, skews=())


def _describe(outcome: WorldOutcome) -> str:
    """Return the first problem without its names and numbers."""
    return re.sub(r"\br\d\S*|[\d.]+|'.*|\{.*|\[.*", "", outcome.problems[0])


def format_failure(outcome: WorldOutcome, command: str, *, lines: int = 60) -> str:
    """Return what went wrong, the plan and the end of the trace."""
    plan = outcome.plan
    parts = [f"seed {plan.seed}, {plan.store}, {plan.processes} processes, {outcome.steps} steps"]
    parts += [f"  problem: {problem}" for problem in outcome.problems]
    parts += [f"see it again: {command}", "the smallest plan that fails in this way:"]
    parts += [f"  {item}" for item in (*plan.runs, *plan.actions, *plan.faults)]
    parts += [
        f"the last of {len(outcome.trace)} lines of its trace:",
        *(f"  {line}" for line in outcome.trace[-lines:]),
    ]
    return "\n".join(parts)
