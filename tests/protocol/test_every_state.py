"""A small fleet, in every state that it can get into.

`test_protocol_model` tries the protocol in orders that hypothesis finds, with strikes and power cuts. Here every order
of moves is tried, for one run and two workers, with writes that are still on their way when their worker is gone.
"""

from collections import deque
from dataclasses import replace

import pytest
from tests.protocol.invariants import broken, end_of
from tests.protocol.model import Rules, State, beginning, moves

#: One run and two workers, one of which may die; claimed three times at most.
SMALL = [
    Rules(runs=((False,),), claims=3),
    Rules(runs=((True,),), claims=3),
    Rules(runs=((False, True),), claims=3),
]


def explore(rules: Rules, only: str = "") -> tuple[dict[State, tuple[State, str] | None], list[str]]:
    """Every state that can be reached, with how it was first reached; and the shortest way to one that is broken.

    Args:
        only: stop at nothing but a fault in which this word is.
    """
    first = beginning(rules)
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        if wrong := [fault for fault in broken(state, rules) if only in fault]:
            return came_from, [*_way_to(state, came_from), *wrong]
        for label, following in moves(state, rules):
            if following not in came_from:
                came_from[following] = (state, label)
                waiting.append(following)
    return came_from, []


def _way_to(state: State, came_from: dict[State, tuple[State, str] | None]) -> list[str]:
    labels: list[str] = []
    step = came_from[state]
    while step is not None:
        state, label = step
        labels.append(label)
        step = came_from[state]
    return labels[::-1]


@pytest.mark.parametrize("rules", SMALL, ids=["once", "reconciled", "both"])
def test_all_invariants_hold_in_every_state(rules: Rules) -> None:
    reached, way = explore(rules)
    assert not way, way
    assert len(reached) > 10_000


def test_from_every_state_the_run_comes_to_its_end() -> None:
    reached, _ = explore(SMALL[0])
    assert all(run.over for state in reached for run in end_of(state, SMALL[0]).runs)


def test_without_the_fence_an_owner_writes_after_its_reign() -> None:
    _, way = explore(replace(SMALL[0], fence=False))
    assert way[-1] == "run 0: an owner whose reign was over has written", way


def test_without_the_fence_an_effect_happens_twice() -> None:
    # No worker has to die: it is enough that the write of a slow worker is taken after another has claimed the run.
    _, way = explore(Rules(runs=((False,),), claims=2, deaths=0, fence=False), only="happened")
    assert way[-1] == "run 0: the once effect of call 0 happened 2 times", way


def test_without_the_intent_first_an_effect_happens_twice() -> None:
    _, way = explore(replace(SMALL[0], intent_first=False))
    assert way[-1] == "run 0: the once effect of call 0 happened 2 times", way
    assert "worker 0 makes call 0 of run 0" in way
