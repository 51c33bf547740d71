"""Draws plans from seeds: how many processes, which runs, what clients ask, which faults happen when."""

import random
from collections.abc import Sequence

from holdfast.testing.simulation.plan import Action, Fault, FaultKind, Plan, PlannedRun, StoreKind
from holdfast.testing.simulation.scenarios.script_agent import Step, make_prompt

PROCESS_FAULTS: tuple[FaultKind, ...] = ("kill", "kill", "kill", "freeze", "close", "end_loop", "cancel_all")
ORDERLY_FAULTS: tuple[FaultKind, ...] = ("close", "end_loop", "cancel_all")
STORE_FAULTS: tuple[FaultKind, ...] = ("slow_store", "failing_store", "lost_notices", "false_notices", "clock_jump")
DISK_FAULTS: tuple[FaultKind, ...] = ("disk_error", "disk_kill", "disk_kill", "power_cut")


def make_plan(seed: int, store: StoreKind | None = None) -> Plan:
    """Draw a plan from a seed."""
    rng = random.Random(seed)
    drawn: StoreKind = rng.choice(("memory", "sqlite"))
    kind = store or drawn
    processes = rng.choice((1, 2, 2, 3))
    scripts = {f"r{number}": _make_script(rng) for number in range(rng.choice((1, 1, 2, 3, 4)))}
    runs = tuple(_make_run(rng, run_id, script) for run_id, script in scripts.items())
    actions = [
        action for run in runs for action in (*make_actions(rng, run), *_make_mail(rng, run, scripts[run.run_id]))
    ]
    return _make_plan(rng, seed, kind, runs, actions, processes)


def plan_runs(seed: int, starts: Sequence[tuple[str, str]], store: StoreKind | None = None) -> Plan:
    """Draw a plan for runs of these agents with these prompts."""
    rng = random.Random(seed)
    drawn: StoreKind = rng.choice(("memory", "sqlite"))
    runs = tuple(
        PlannedRun(f"r{number}", agent, prompt, rng.random() * 2, waits=rng.random() < 0.3)
        for number, (agent, prompt) in enumerate(starts)
    )
    actions = [action for run in runs for action in make_actions(rng, run)]
    return _make_plan(rng, seed, store or drawn, runs, actions, rng.choice((1, 2, 2, 3)))


def _make_plan(
    rng: random.Random, seed: int, kind: StoreKind, runs: tuple[PlannedRun, ...], actions: list[Action], processes: int
) -> Plan:
    return Plan(
        seed=seed,
        store=kind,
        processes=processes,
        runs=runs,
        actions=tuple(sorted(actions, key=lambda action: action.at)),
        faults=_make_faults(rng, kind, processes),
        slowness=rng.choice((0.0, 0.5, 2.0, 5.0)),
        skews=tuple(rng.choice((0.0, 0.0, -4.0, 1.0, 4.0)) for _ in range(processes)),
        by_lease=rng.random() < 0.5,
    )


def _make_script(rng: random.Random) -> list[Step]:
    return [_make_step(rng, number) for number in range(rng.choice((1, 2, 3, 5)))]


def _make_run(rng: random.Random, run_id: str, script: list[Step]) -> PlannedRun:
    agent = "staged" if rng.random() < 0.15 else "actor"
    return PlannedRun(run_id, agent, make_prompt(script), at=rng.random() * 2, waits=rng.random() < 0.3)


_TOOLS = ("pure", "idempotent", "once", "once", "blocking", "approved", "deferred", "broken")


def _make_step(rng: random.Random, number: int, depth: int = 0) -> Step:
    draw = rng.random()
    if draw < 0.1:
        return [("sleep", {"seconds": rng.choice((0, 1, 5))})]
    if draw < 0.2:
        return [("wait_for", {"name": f"s{number}", "timeout": rng.choice((1, 15))})]
    if draw < 0.3 and depth == 0:
        steps = [_make_step(rng, each, depth + 1) for each in range(rng.choice((1, 2)))]
        return [("child", {"steps": steps})]
    if draw < 0.35:
        return [("ask_person", {"question": "which?"})]
    return [(rng.choice(_TOOLS), {}) for _ in range(rng.choice((1, 1, 2, 3)))]


def make_actions(rng: random.Random, run: PlannedRun) -> list[Action]:
    """Draw what clients ask of any run."""
    asked = range(rng.choice((1, 3)))
    actions = [Action("answer", run.run_id, run.at + rng.random() * 8, f"a{number}") for number in asked]
    watchers = range(rng.choice((0, 1, 2)))
    actions += [Action("watch", run.run_id, run.at + rng.random() * 5, f"w{number}") for number in watchers]
    if rng.random() < 0.3:
        actions.append(Action("result", run.run_id, run.at + rng.random() * 5, "result"))
    return actions


def _make_mail(rng: random.Random, run: PlannedRun, script: list[Step]) -> list[Action]:
    messages = range(rng.choice((0, 0, 1, 3)))
    actions = [Action("send", run.run_id, run.at + rng.random() * 6, f"m{number}") for number in messages]
    names = [step[0][1]["name"] for step in script if step[0][0] == "wait_for" and rng.random() < 0.7]
    actions += [Action("signal", run.run_id, run.at + rng.random() * 6, name) for name in names]
    if rng.random() < 0.15:
        actions.append(Action("cancel", run.run_id, run.at + rng.random() * 6, "cancel"))
    return actions


def _make_faults(rng: random.Random, store: StoreKind, processes: int) -> tuple[Fault, ...]:
    kinds = (*PROCESS_FAULTS, *PROCESS_FAULTS, *STORE_FAULTS)
    if store == "sqlite":
        kinds = (*PROCESS_FAULTS, *PROCESS_FAULTS, "clock_jump", *DISK_FAULTS, *DISK_FAULTS)
    reach, count = rng.choice((100, 400, 1500)), rng.choice((0, 1, 1, 2, 3, 5))
    if rng.random() < 0.15:  # nothing but orderly ends: they count as no strike, however many there are
        kinds, count = ORDERLY_FAULTS, 10
    faults = [
        Fault(rng.choice(kinds), rng.randrange(reach), rng.randrange(processes), rng.random()) for _ in range(count)
    ]
    return tuple(sorted(faults, key=lambda fault: fault.step))
