"""A fan-out that is killed repeatedly does not repeat a call whose answer was kept."""

import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from tests.fanout.fanout_process import MODELS

from holdfast.fanout import ModelResponse, WriteSnapshot, load


def requests(folder: Path) -> list[tuple[int, str, int]]:
    """Life, model and turn of every request."""
    path = folder / "requests"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(life), model, int(turn)) for life, model, turn in map(str.split, lines)]


def start(folder: Path, life: int, kept: str, death: str = "") -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.fanout.fanout_process", str(folder), str(life), kept, death]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def killed(folder: Path, child: "subprocess.Popen[bytes]", more: int) -> bool:
    """Kill the child once it has made this many further requests; return whether it did."""
    wanted, end = len(requests(folder)) + more, time.monotonic() + 60
    while len(requests(folder)) < wanted and child.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)
    with child:
        if child.poll() is not None:
            assert child.returncode == 0
            return False
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        return True


@pytest.mark.parametrize("kept", ["file", "store"])
def test_finished_models_are_not_asked_again_and_the_others_go_on(tmp_path: Path, kept: str) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("<0>")
    dice = random.Random(kept)
    completed: dict[int, set[str]] = {}
    life = 0
    while killed(tmp_path, start(tmp_path, life, kept), dice.randrange(4, 12)) and life < 20:
        life += 1
        found = load(tmp_path / "checkpoint.json")
        completed[life] = {each.model_id for each in found.responses if each.completed} if found else set()
    assert 2 <= life < 20
    check_requests(requests(tmp_path), completed)
    assert not (tmp_path / "checkpoint.json").exists()


def test_many_models_survive_many_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 kills and 12 models; `HOLDFAST_CRASH_LONG=1` makes it 12 kills and 50 models."""
    kills, count = (12, 50) if os.environ.get("HOLDFAST_CRASH_LONG") else (3, 12)
    monkeypatch.setenv("HOLDFAST_FANOUT_MODELS", str(count))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("<0>")
    dice = random.Random(count)
    for life in range(kills):
        assert killed(tmp_path, start(tmp_path, life, "store"), dice.randrange(8, 20))
    with start(tmp_path, kills, "store") as child:
        output, _ = child.communicate(timeout=110)
    assert child.returncode == 0
    turns = {f"p{number % 2}:m{number}": 2 + number % 6 for number in range(count)}
    check_responses(output, turns)
    check_requests(requests(tmp_path), {}, turns)


def check_requests(
    made: list[tuple[int, str, int]], completed: dict[int, set[str]], models: dict[str, int] = MODELS
) -> None:
    assert len(set(made)) == len(made), "a turn was asked for twice in one life"
    for life, model, _ in made:
        assert model not in completed.get(life, ()), "a finished model was called again"
    for model, turns in models.items():
        its = [(life, turn) for life, asked, turn in made if asked == model]
        # The one request that was in progress may be repeated in the next life; nothing before it.
        for (life, turn), (next_life, following) in pairwise(its):
            assert following == turn + 1 or (following == turn and next_life > life), (model, its)
        assert its[-1][1] == turns


@pytest.mark.parametrize("kept", ["file", "store"])
@pytest.mark.parametrize("moment", ["release", "settled", "append", "appended"])
def test_no_moment_of_death_makes_a_model_answer_twice(tmp_path: Path, kept: str, moment: str) -> None:
    """Between a model's last reply and the end of the fan-out; one model at a time, so nothing else is in progress."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("<0>")
    with start(tmp_path, 0, kept, moment) as child:
        assert child.wait(60) == -signal.SIGKILL
    child = start(tmp_path, 1, kept, "none")
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    check_responses(output)
    made = [(model, turn) for _, model, turn in requests(tmp_path)]
    assert sorted(made) == sorted((model, turn) for model, turns in MODELS.items() for turn in range(turns + 1))


def check_responses(output: bytes, models: dict[str, int] = MODELS) -> list[ModelResponse]:
    """They are those of an undisturbed fan-out."""
    responses = msgspec.json.decode(output, type=list[ModelResponse])
    assert [response.model_id for response in responses] == list(models)
    for response, turns in zip(responses, models.values(), strict=True):
        assert (response.text, response.error) == (f"{response.model_id} has answered", "")
        assert response.input_tokens == 10 * (turns + 1)
        assert response.output_tokens == sum(range(turns + 1))
        assert response.cost_usd == 0.25 * (turns + 1)
        assert response.tool_calls == {"write_file": turns, "edit_file": turns}
        assert response.proposed_writes == (
            *(WriteSnapshot(path=f"{turn}.txt", content=f"{response.model_id} {turn}") for turn in range(turns)),
            WriteSnapshot(path="a.txt", content=f"<{turns}>"),
        )
    return responses


def test_the_responses_are_those_of_an_undisturbed_fanout(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("<0>")
    assert killed(tmp_path, start(tmp_path, 0, "file"), 12)
    left = load(tmp_path / "checkpoint.json")
    assert left is not None
    child = start(tmp_path, 1, "file")
    output, _ = child.communicate(timeout=60)
    for response in check_responses(output):
        for before in left.responses:
            if before.model_id == response.model_id:
                assert response.latency_ms >= before.latency_ms
                assert before.completed or response.latency_ms > before.latency_ms
    assert [each.name for each in (tmp_path / "work").iterdir()] == ["a.txt"]
    assert (tmp_path / "work" / "a.txt").read_text() == "<0>"
