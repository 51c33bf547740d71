"""Killed at random moments, the checkpoint holds what was reported, and all that was acknowledged."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.fanout.saver_process import IDS

from holdfast.fanout.checkpoint_file import clear, load

ROUNDS = int(os.environ.get("HOLDFAST_CRASH_ROUNDS", "6"))


def lines(folder: Path) -> list[str]:
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


def newest(folder: Path, word: str) -> dict[str, int]:
    """The last turn of each model of which the log says this."""
    found: dict[str, int] = {}
    for line in lines(folder):
        said, model, turn = line.split()
        if said == word:
            found[model] = max(found.get(model, 0), int(turn))
    return found


def test_no_kill_loses_what_was_acknowledged(tmp_path: Path) -> None:
    dice = random.Random(6)
    for seed in range(ROUNDS):
        before = len(lines(tmp_path))
        child = subprocess.Popen([sys.executable, "-m", "tests.fanout.saver_process", str(tmp_path), str(seed)])
        wanted = before + dice.randrange(50, 3000)
        end = time.monotonic() + 60
        while len(lines(tmp_path)) < wanted and time.monotonic() < end:
            assert child.poll() is None
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        kept = load(tmp_path / "checkpoint.json")
        assert kept is not None
        assert kept.adapter_ids == tuple(IDS)
        reported, acknowledged = newest(tmp_path, "reported"), newest(tmp_path, "acknowledged")
        assert acknowledged
        turns = {each.model_id: int(each.text) for each in kept.responses}
        assert set(acknowledged) <= set(turns)
        for model, turn in turns.items():
            assert acknowledged.get(model, 0) <= turn <= reported[model], model
        unfinished = list(tmp_path.glob(".checkpoint.json.*.tmp"))
        assert len(unfinished) <= 1, "the first write removes what killed processes have left"
    clear(tmp_path / "checkpoint.json")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
