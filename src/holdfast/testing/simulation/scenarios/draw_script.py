"""Draws the scripts of runs from a seed: the steps of agents, the trees of workflows, the messages of conversations."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.testing.simulation.plan import Action, PlannedRun, StoreKind
from holdfast.testing.simulation.scenarios.script_agent import Step, make_message, make_prompt
from holdfast.testing.simulation.scenarios.script_workflow import Node, make_script

_TOOLS = ("pure", "idempotent", "once", "once", "blocking", "approved", "deferred", "broken")


class ScriptRandom(random.Random):
    """Random numbers for the scripts of one plan."""

    #: What else they call: only a store with transactions accepts it.
    further_tools: tuple[str, ...] = ()

    def use_store(self, store: StoreKind) -> None:
        self.further_tools = ("book", "book", "book") if store == "sqlite" else ()


class DrawnRun(NamedTuple):
    """A planned run, and what clients do that depends on its script."""

    run: PlannedRun
    #: The names of the signals that it waits for.
    signals: Sequence[str] = ()
    actions: Sequence[Action] = ()


def draw_agent_run(rng: ScriptRandom, run_id: str) -> DrawnRun:
    """Draw a run of an agent, with or without phases."""
    script = draw_steps(rng, rng.choice((1, 2, 3, 5)))
    signals = [step[0][1]["name"] for step in script if step[0][0] == "wait_for"]
    agent = "staged" if rng.random() < 0.15 else "actor"
    return DrawnRun(_make_run(rng, run_id, agent, make_prompt(script)), signals=signals)


def draw_steps(rng: ScriptRandom, count: int, depth: int = 0) -> list[Step]:
    return [_draw_step(rng, number, depth) for number in range(count)]


def _draw_step(rng: ScriptRandom, number: int, depth: int) -> Step:
    draw = rng.random()
    if draw < 0.1:
        return [("sleep", {"seconds": rng.choice((0, 1, 5))})]
    if draw < 0.2:
        return [("wait_for", {"name": f"s{number}", "timeout": rng.choice((1, 15))})]
    if draw < 0.3 and depth == 0:
        return [("child", {"steps": draw_steps(rng, rng.choice((1, 2)), depth + 1)})]
    if draw < 0.35:
        return [("ask_person", {"question": "which?"})]
    return [(rng.choice(_TOOLS + rng.further_tools), {}) for _ in range(rng.choice((1, 1, 2, 3)))]


def _make_run(rng: ScriptRandom, run_id: str, agent: str, prompt: str, *, may_fail: bool = False) -> PlannedRun:
    return PlannedRun(run_id, agent, prompt, at=rng.random() * 2, waits=rng.random() < 0.3, may_fail=may_fail)


# -- workflows ----------------------------------------------------------------------------------------------------


def draw_workflow_run(rng: ScriptRandom, run_id: str) -> DrawnRun:
    """Draw a run of a workflow."""
    tree = _Tree(rng)
    nodes = [tree.draw(2, top=True) for _ in range(rng.choice((1, 2, 3, 4)))]
    may_fail = rng.random() < 0.25
    if may_fail:
        nodes.append(["fail", "tf"])
    script = make_script(nodes, lives=rng.choice((1, 1, 1, 2)))
    return DrawnRun(_make_run(rng, run_id, "flow", script, may_fail=may_fail), signals=tree.signals)


_STEPS = ("pure", "idempotent", "once", "once", "blocking", "approved", "deferred", "broken", "reserve", "reserve")


class _Tree:
    """Draws the parts of one script, and numbers them."""

    def __init__(self, rng: ScriptRandom) -> None:
        self._rng = rng
        self._count = 0
        self.signals: list[str] = []

    def draw(self, depth: int, *, top: bool = False, prefix: str = "") -> Node:
        """Draw a part.

        The place of a step at the top begins with `t`, in a race with `x`, and in a saga with that of the saga.
        """
        rng, draw = self._rng, self._rng.random()
        self._count += 1
        place = f"{prefix or ('t' if top else 'n')}{self._count}"
        if depth > 0 and draw < 0.35:
            return self._draw_block(place, depth - 1)
        if draw < 0.42:
            return ["sleep", place, rng.choice((0, 1, 3, 8))]
        if draw < 0.48:
            self.signals.append(f"s{self._count}")
            return ["wait", place, f"s{self._count}", rng.choice((1, 15))]
        if draw < 0.52:
            return ["ask", place]
        if draw < 0.56:
            return ["value", place] if top else ["tool", place, "pure"]
        if draw < 0.6:
            return ["child", place, draw_steps(rng, 1, 1)]
        if draw < 0.7:
            ends = rng.choice(("result", "result", "leave", "cancel", "detached"))
            return ["start", place, draw_steps(rng, 1, 1), ends]
        name = rng.choice(_STEPS + rng.further_tools)
        return ["tool", f"tr{self._count}" if top and name == "reserve" else place, name]

    def _draw_block(self, place: str, depth: int) -> Node:
        kind = self._rng.choice(("all", "all", "map", "first", "saga"))
        if kind == "first":
            return [kind, place, self.draw(depth, prefix="x"), self.draw(depth, prefix="x")]
        if kind == "saga":
            inner = f"{place}s"
            nodes = [self.draw(0, prefix=inner) for _ in range(self._rng.choice((1, 2, 3)))]
            return [kind, place, [*nodes, ["fail", f"{inner}f"]] if self._rng.random() < 0.6 else nodes]
        prefix = "x" if place.startswith("x") else ""
        return [kind, place, [self.draw(depth, prefix=prefix) for _ in range(self._rng.choice((2, 3)))]]


# -- conversations ------------------------------------------------------------------------------------------------


def draw_conversation(rng: ScriptRandom, key: str) -> DrawnRun:
    """Draw a conversation: its first message begins it."""
    run_id, at = f"chat:talker:{key}", rng.random() * 2
    messages = [_draw_message(rng, run_id, f"{key}m{number}", at) for number in range(rng.choice((1, 2, 3, 5)))]
    return DrawnRun(PlannedRun(run_id, "talker", "", at, waits=False), actions=messages)


def _draw_message(rng: ScriptRandom, run_id: str, message_id: str, at: float) -> Action:
    when = rng.choice(("queue", "queue", "steer", "interrupt", "reject"))
    text = make_message(message_id, draw_steps(rng, rng.choice((0, 1, 2)), 1))
    return Action("say", run_id, at + rng.random() * 8, message_id, text=text, when=when)
