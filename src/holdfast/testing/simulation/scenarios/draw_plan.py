"""Draws plans from seeds: how many processes, which runs, what clients ask, which faults happen when."""

import operator
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from holdfast.testing.simulation.plan import Action, Fault, FaultKind, Plan, PlannedRun, StoreKind
from holdfast.testing.simulation.scenarios.draw_script import (
    DrawnRun,
    ScriptRandom,
    draw_agent_run,
    draw_conversation,
    draw_workflow_run,
)
from holdfast.testing.simulation.scenarios.script_agent import make_prompt

T = TypeVar("T")

PROCESS_FAULTS: tuple[FaultKind, ...] = ("kill", "kill", "kill", "freeze", "close", "end_loop", "cancel_all")
ORDERLY_FAULTS: tuple[FaultKind, ...] = ("close", "end_loop", "cancel_all")
STORE_FAULTS: tuple[FaultKind, ...] = ("slow_store", "failing_store", "lost_notices", "false_notices", "clock_jump")
DISK_FAULTS: tuple[FaultKind, ...] = ("disk_error", "disk_kill", "disk_kill", "power_cut")

CALL_FAULTS: tuple[FaultKind, ...] = ("call_kill", "call_kill", "call_freeze")

#: Needs the result of its first child when the second one has ended, after the retention of the first.
_PARENT = PlannedRun(
    "r9",
    "actor",
    make_prompt([[("pair", {"left": [[("once", {})]], "right": [[("sleep", {"seconds": 100})]]})]]),
    at=0.5,
    waits=False,
)

#: A schedule with SQLite takes four times as long: by time, it has two thirds.
_STORES: tuple[StoreKind, ...] = ("memory", "memory", "sqlite")

#: What a run of a plan is.
_DRAWS: tuple[Callable[[ScriptRandom, str], DrawnRun], ...] = (
    draw_agent_run,
    draw_agent_run,
    draw_agent_run,
    draw_workflow_run,
    draw_workflow_run,
    draw_conversation,
)


def make_plan(seed: int, store: StoreKind | None = None, *, hazards: bool = True) -> Plan:
    """Draw a plan from a seed. Without its hazards it is the one of earlier versions."""
    rng = ScriptRandom(seed)
    drawn: StoreKind = rng.choice(_STORES)
    kind = store or drawn
    rng.use_store(kind)
    processes = rng.choice((1, 2, 2, 3))
    runs = [rng.choice(_DRAWS)(rng, f"r{number}") for number in range(rng.choice((1, 1, 2, 3, 4)))]
    actions = [action for run in runs for action in _draw_requests(rng, run)]
    plan = _make_plan(rng, seed, kind, [each.run for each in runs], actions, processes)
    plan = _draw_rules(rng, plan)
    if kind == "sqlite":
        plan = replace(plan, disk_delay=rng.choice((0.0, 0.0, 0.0, 0.2)))
    return _draw_hazards(rng, plan) if hazards else plan


def _draw_rules(rng: random.Random, plan: Plan) -> Plan:
    """Draw a limit, a budget or a short retention for some plans."""
    draw = rng.random()
    if draw < 0.15:
        runs = tuple(replace(run, is_limited=run.agent in ("actor", "staged")) for run in plan.runs)
        return replace(plan, runs=runs, limit=rng.choice((1, 1, 2)))
    if draw < 0.25 and all(run.agent in ("actor", "talker") for run in plan.runs):
        return replace(plan, budget=rng.choice((11, 33, 66)))
    if draw < 0.32:
        return replace(plan, retention=60.0)
    return plan


def _draw_hazards(rng: random.Random, plan: Plan) -> Plan:
    """Draw how often runs are saved, and what some plans have to survive besides."""
    if plan.retention:
        plan = replace(plan, runs=(*plan.runs, _PARENT))
    plan = replace(plan, save_interval=rng.choice((0.0, 0.0, 2.0)), reconciles=rng.random() < 0.3)
    draw, faults = rng.random(), plan.faults
    if draw < 0.4:
        faults += _draw_faults(rng, CALL_FAULTS, rng.choice((1, 2, 3)), 400, plan.processes)
        # A person who answers before approvals expire.
        answers = [Action("answer", "", second, f"q{second}") for second in range(1, 9)]
        plan = replace(plan, actions=_sort([*plan.actions, *answers], "at"))
    elif draw < 0.5:
        faults = _draw_faults(rng, ("kill",), 10, 1500, plan.processes)
    return replace(plan, faults=_sort(faults, "step"))


def plan_runs(seed: int, starts: Sequence[tuple[str, str]], store: StoreKind | None = None) -> Plan:
    """Draw a plan for runs of these agents with these prompts."""
    rng = random.Random(seed)
    drawn: StoreKind = rng.choice(_STORES)
    runs = [
        PlannedRun(f"r{number}", agent, prompt, rng.random() * 2, waits=rng.random() < 0.3)
        for number, (agent, prompt) in enumerate(starts)
    ]
    actions = [action for run in runs for action in make_actions(rng, run)]
    return _make_plan(rng, seed, store or drawn, runs, actions, rng.choice((1, 2, 2, 3)))


def _make_plan(
    rng: random.Random,
    seed: int,
    kind: StoreKind,
    runs: Sequence[PlannedRun],
    actions: Sequence[Action],
    processes: int,
) -> Plan:
    return Plan(
        seed=seed,
        store=kind,
        processes=processes,
        runs=tuple(runs),
        actions=_sort(actions, "at"),
        faults=_make_faults(rng, kind, processes),
        slowness=rng.choice((0.0, 0.5, 2.0, 5.0)),
        skews=tuple(rng.choice((0.0, 0.0, -4.0, 1.0, 4.0)) for _ in range(processes)),
        by_lease=rng.random() < 0.5,
    )


def make_actions(rng: random.Random, run: PlannedRun) -> list[Action]:
    """Draw what clients ask of any run."""
    asked = range(rng.choice((1, 3)))
    actions = [Action("answer", run.run_id, run.at + rng.random() * 8, f"a{number}") for number in asked]
    watchers = range(rng.choice((0, 1, 2)))
    actions += [Action("watch", run.run_id, run.at + rng.random() * 5, f"w{number}") for number in watchers]
    if rng.random() < 0.3 and run.agent != "talker":
        actions.append(Action("result", run.run_id, run.at + rng.random() * 5, "result"))
    return actions


def _draw_requests(rng: random.Random, drawn: DrawnRun) -> list[Action]:
    run = drawn.run
    actions = [*make_actions(rng, run), *drawn.actions]
    if run.agent in ("actor", "staged"):
        messages = range(rng.choice((0, 0, 1, 3)))
        actions += [Action("send", run.run_id, run.at + rng.random() * 6, f"m{number}") for number in messages]
    names = [name for name in drawn.signals if rng.random() < 0.7]
    actions += [Action("signal", run.run_id, run.at + rng.random() * 6, name) for name in names]
    if run.agent != "talker" and rng.random() < 0.15:
        actions.append(Action("cancel", run.run_id, run.at + rng.random() * 6, "cancel"))
    if run.agent == "actor" and rng.random() < 0.2:
        actions.append(Action("fork", run.run_id, run.at + rng.random() * 8, "fork", step=rng.choice((1, 1, 2))))
    return actions


def _make_faults(rng: random.Random, store: StoreKind, processes: int) -> tuple[Fault, ...]:
    kinds = (*PROCESS_FAULTS, *PROCESS_FAULTS, *STORE_FAULTS)
    if store == "sqlite":
        kinds = (*PROCESS_FAULTS, *PROCESS_FAULTS, "clock_jump", *DISK_FAULTS, *DISK_FAULTS)
    reach, count = rng.choice((100, 400, 1500)), rng.choice((0, 1, 1, 2, 3, 5))
    if rng.random() < 0.15:  # nothing but orderly ends: they count as no strike, however many there are
        kinds, count = ORDERLY_FAULTS, 10
    return _draw_faults(rng, kinds, count, reach, processes)


def _draw_faults(
    rng: random.Random, kinds: Sequence[FaultKind], count: int, reach: int, processes: int
) -> tuple[Fault, ...]:
    faults = [
        Fault(rng.choice(kinds), rng.randrange(reach), rng.randrange(processes), rng.random()) for _ in range(count)
    ]
    return _sort(faults, "step")


def _sort(items: Iterable[T], key: str) -> tuple[T, ...]:
    return tuple(sorted(items, key=operator.attrgetter(key)))
