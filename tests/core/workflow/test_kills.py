"""A workflow is killed with SIGKILL at every point of its life. A ledger outside the store is the oracle."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.store_kinds import STORES

#: 1, in `make chaos`: a trial for each point.
STRIDE = int(os.environ.get("HOLDFAST_KILL_STRIDE", "7"))


def check_trials(template: str, folder: Path, stride: int) -> None:
    command = [sys.executable, "-m", "tests.core.workflow.kill_trials", template, str(folder), str(stride)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    wanted = {name: value for name, value in report["baseline"]["output"].items() if name != "same"}
    trials = [trial for trial in report["trials"] if trial["killed"]]
    assert trials, "the winner of a race depends on time, and with it the number of the points"
    for trial in trials:
        output = {name: value for name, value in trial["output"].items() if name != "same"}
        assert output == wanted
        assert len(trial["ledger"]) == len(set(trial["ledger"])), "a charge was made twice"
        assert {line for line in trial["ledger"] if not line.endswith("9? 9")} == {
            "charge city 1? 1",
            "charge city 2? 2",
            "charge city 3? 3",
            "charge again 7",
        }


def test_a_workflow_killed_at_every_point_in_sqlite_finishes_with_the_same_output(tmp_path: Path) -> None:
    check_trials("sqlite:{folder}/runs.db", tmp_path, STRIDE)


def test_a_workflow_killed_in_postgres_finishes_with_the_same_output(tmp_path: Path) -> None:
    with STORES["postgres"].open_empty(tmp_path) as url:
        check_trials(url, tmp_path, 3 * STRIDE)
