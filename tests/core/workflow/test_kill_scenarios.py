"""Workflows are killed in undo, sagas, branches, races, restarts and with children. A ledger outside is the oracle."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.store_kinds import STORES

#: In the long form there is a trial for each point. The simulator visits these scenarios too, without processes.
IS_LONG = bool(os.environ.get("HOLDFAST_LONG_TESTS"))


class Expected(NamedTuple):
    end: dict[str, Any]
    #: The payments, in one of the orders in which they may be made; those in a tuple in any order.
    paid: list[Any]
    #: The payments that are paid back, in this order.
    undone: list[Any]


CHILD_ENDS = [
    {"end": "cancelled", "parked": 0},
    {"end": "done", "output": "receipt own", "parked": 0},
]

EXPECTED = {
    "undo": Expected({"end": "failed"}, ["a", ("b", "c"), "d"], ["d", ("b", "c"), "a"]),
    "in_saga": Expected(
        {"end": "done", "output": ["receipt a", "no", "receipt e"]},
        ["a", "b", ("c", "d"), "e"],
        [("c", "d"), "b"],
    ),
    "doubt": Expected({"end": "failed"}, ["a", "b"], ["b", "a"]),
    "cancelled": Expected({"end": "cancelled"}, ["a", "b"], ["b", "a"]),
    "race": Expected(
        {"end": "done", "output": ["fast", "receipt fast", "pair", "receipt z"]}, ["fast", ("x", "y"), "z"], []
    ),
    "lost_race": Expected({"end": "failed"}, ["lost", "won", "after"], ["after", "won", "lost"]),
    "lives": Expected({"end": "failed"}, ["a1", "b1", "a2", "b2", "a3", "b3"], ["b3", "a3"]),
    "children": Expected(
        {"end": "done", "output": ["receipt run", "run failed", "receipt started", *CHILD_ENDS]},
        [("waiting", "own", "run", "failed", "started")],
        [("failed", "waiting")],
    ),
    "phases": Expected(
        {"end": "done", "output": ["receipt b", "receipt c", "receipt d", "receipt f"]},
        [("a", "b"), ("c", "d"), "e", "f"],
        [],
    ),
    "phases-fail": Expected({"end": "failed"}, [("a", "b"), ("c", "d"), "e", "f"], ["f"]),
}


def match_order(found: list[str], expected: list[Any]) -> bool:
    """Whether these are the expected ones, in their order."""
    left = list(found)
    for each in expected:
        group = set(each) if isinstance(each, tuple) else {each}
        if set(left[: len(group)]) != group:
            return False
        del left[: len(group)]
    return not left


def check_trial(name: str, trial: dict[str, Any]) -> None:
    expected, lines = EXPECTED[name], [line.split() for line in trial["ledger"]]
    paid = [line[1] for line in lines if line[0] == "pay"]
    undone = [line[1] for line in lines if line[0] == "undo"]
    assert match_order(paid, expected.paid), ("payments", paid)
    assert match_order(list(dict.fromkeys(undone)), expected.undone), ("undone", undone)
    keys = {(line[1], line[2]) for line in lines if line[0] == "undo"}
    assert len(keys) == len(set(undone)), "an undo was repeated with another key"
    assert sum(count - 1 for count in Counter(undone).values()) <= 1, "one kill repeats one undo at most"
    output = trial["output"]
    for key, value in expected.end.items():
        found = output[key]
        if name == "children" and key == "output":
            found = [found[0], "run failed" if "no" in found[1] else found[1], *found[2:]]
        assert found == value, (key, output)
    assert output["parked"] <= (1 if name == "doubt" else 0)
    assert output["unread"] == [], "a run was left behind"


def check_trials(name: str, template: str, folder: Path, stride: int) -> None:
    command = [sys.executable, "-m", "tests.core.workflow.kill_scenarios", template, str(folder), str(stride), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500 if IS_LONG else 280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    check_trial(name, report["baseline"])
    trials = [trial for trial in report["trials"] if trial["killed"]]
    assert trials
    for trial in trials:
        check_trial(name, trial)


NAMES = list(EXPECTED) if IS_LONG else ["undo", "children"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(1600)
def test_a_workflow_that_is_killed_pays_once_and_pays_back_once_in_sqlite(name: str, tmp_path: Path) -> None:
    check_trials(name, "sqlite:{folder}/runs.db", tmp_path, 1 if IS_LONG else 7)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(1600)
def test_a_workflow_that_is_killed_pays_once_and_pays_back_once_in_postgres(name: str, tmp_path: Path) -> None:
    with STORES["postgres"].open_empty(tmp_path) as url:
        check_trials(name, url, tmp_path, 2 if IS_LONG else 19)
