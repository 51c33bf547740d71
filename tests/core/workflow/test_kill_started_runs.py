"""A parent and the runs that it has started are killed with SIGKILL at every write. A ledger outside is the oracle."""

import json
import subprocess
import sys
from pathlib import Path

from tests.core.workflow.test_kills import STRIDE
from tests.store_kinds import STORES


def check_trials(template: str, folder: Path, stride: int) -> None:
    command = [sys.executable, "-m", "tests.core.workflow.kill_started_runs", template, str(folder), str(stride)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    wanted = {"paid": [1, 2], "winner": "paid", "left": "cancelled", "children": 3}
    assert report["baseline"]["output"] == wanted
    trials = [trial for trial in report["trials"] if trial["killed"]]
    assert trials
    for trial in trials:
        assert trial["output"] == wanted
        assert sorted(trial["ledger"]) == ["charge order 1 1", "charge order 2 2"]


def test_a_parent_and_its_started_runs_killed_at_every_write_in_sqlite_finish_with_one_effect_each(
    tmp_path: Path,
) -> None:
    check_trials("sqlite:{folder}/runs.db", tmp_path, 2 * STRIDE)


def test_a_parent_and_its_started_runs_killed_in_postgres_finish_with_one_effect_each(tmp_path: Path) -> None:
    with STORES["postgres"].open_empty(tmp_path) as url:
        check_trials(url, tmp_path, 4 * STRIDE)
