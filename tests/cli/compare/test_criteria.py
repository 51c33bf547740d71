"""Success criteria, reports, preferences and recipes."""

import os
import resource
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.compare.criteria import Check, Contains, Criterion, check_response
from holdfast.cli.compare.recipe import RecipeError, read_recipe
from holdfast.cli.compare.report import (
    COLUMNS,
    Preference,
    Report,
    append_preference,
    build_report,
    compute_scores,
    format_rows,
    read_preferences,
)
from holdfast.fanout import ModelResponse, WriteSnapshot
from holdfast.fanout.workspace import MAX_FILE_BYTES


def response(*writes: WriteSnapshot) -> ModelResponse:
    return ModelResponse(model_id="m", text="done", proposed_writes=writes)


NEW = WriteSnapshot(path="new/file.txt", content="hello\n")
GONE = WriteSnapshot(path="old.txt", delete=True)


async def verdicts(folder: Path, given: ModelResponse, *criteria: Criterion) -> list[bool]:
    return [check.passed for check in await check_response(given, criteria, folder)]


async def test_files_are_those_that_the_response_proposes(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    criteria = [
        Criterion(file_exists="new/file.txt"),
        Criterion(file_exists="old.txt"),
        Criterion(contains=Contains(path="new/file.txt", text="hello")),
        Criterion(contains=Contains(path="new/file.txt", text="goodbye")),
        Criterion(contains=Contains(path="nowhere.txt", text="")),
        Criterion(file_exists="../outside.txt"),
    ]
    assert await verdicts(tmp_path, response(NEW, GONE), *criteria) == [True, False, True, False, False, False]
    assert await verdicts(tmp_path, response(), *criteria) == [False, True, False, False, False, False]


async def test_a_file_need_not_be_text_to_be_there(tmp_path: Path) -> None:
    (tmp_path / "logo.png").write_bytes(b"\x89PNG\xff")
    with (tmp_path / "large.csv").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    (tmp_path / "folder").mkdir()
    criteria = [Criterion(file_exists=name) for name in ("logo.png", "large.csv", "folder")]
    assert await verdicts(tmp_path, response(), *criteria) == [True, True, False]
    gone = WriteSnapshot(path="logo.png", delete=True)
    assert await verdicts(tmp_path, response(gone), *criteria) == [False, True, False]


async def test_a_command_runs_in_a_copy(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    (tmp_path / "link").symlink_to("old.txt")
    os.mkfifo(tmp_path / "pipe")
    criteria = [
        Criterion(run="cat new/file.txt && test ! -e old.txt"),
        Criterion(run="echo touched > new/file.txt; echo made > made.txt; echo what went wrong; exit 3"),
        Criterion(run="test -e made.txt"),
    ]
    checks = await check_response(response(NEW, GONE), criteria, tmp_path)
    assert [check.passed for check in checks] == [True, False, True]
    assert checks[1].detail == "what went wrong"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "old.txt", "pipe"]


async def test_a_command_that_takes_too_long_is_killed_with_all_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"(sleep 1000 & echo $! > {pid}; wait) & wait"
    checks = await check_response(response(), [Criterion(run=script, seconds=0.5)], tmp_path)
    assert not checks[0].passed
    assert "killed after 0.5 s" in checks[0].detail
    gone(int(pid.read_text()))


async def test_what_a_command_leaves_running_holds_nobody_up(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    checks = await check_response(response(), [Criterion(run=f"sleep 1000 & echo $! > {pid}")], tmp_path)
    assert checks[0].passed
    gone(int(pid.read_text()))


def gone(pid: int) -> None:
    """Return once there is no such process, or only a zombie."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} still runs")


def test_a_report_as_a_table_and_as_json() -> None:
    responses = [
        ModelResponse(model_id="a", text="x", latency_ms=1500, input_tokens=7, cost_usd=0.25, proposed_writes=(NEW,)),
        ModelResponse(model_id="b", error="no"),
        ModelResponse(model_id="c", interrupted=True),
    ]
    checks = {
        "a": [Check(criterion="one", passed=True), Check(criterion="two", passed=False)],
        "b": [Check(criterion="one", passed=True)],
    }
    whole = build_report("why?", responses, checks)
    assert [(row.status, row.passed) for row in whole.rows] == [
        ("completed", False),
        ("failed", False),
        ("interrupted", None),
    ]
    assert not whole.ok
    first = dict(zip(COLUMNS, format_rows(whole)[0], strict=True))
    assert (first["passed"], first["time"], first["in"], first["cost"], first["writes"]) == (
        "1 of 2", "1.5 s", "7", "$0.2500", "1",
    )  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Report) == whole


def test_preferences_are_lines_that_add_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "deep" / "preferences.jsonl"
    assert compute_scores(path) == []
    append_preference(path, Preference(prompt="p", winner="a", losers=("b", "c")))
    with path.open("ab") as file:
        file.write(b'{"at":"2026-01-01T00:0')  # a write that a crash has cut off
    append_preference(path, Preference(prompt="q", winner="b", losers=("a",)))
    append_preference(path, Preference(prompt="r", winner="a", losers=("b",)))
    assert [preference.prompt for preference in read_preferences(path)] == ["p", "q", "r"]
    assert "line 2 is not a preference" in caplog.text
    assert [(score.model_id, score.wins, score.comparisons) for score in compute_scores(path)] == [
        ("a", 2, 3),
        ("b", 1, 3),
        ("c", 0, 1),
    ]


def test_a_preference_that_finds_no_room_is_told_and_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "preferences.jsonl"
    append_preference(path, Preference(prompt="p", winner="a", losers=("b",)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            append_preference(path, Preference(prompt="q", winner="b", losers=("a",)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    append_preference(path, Preference(prompt="r", winner="a", losers=("b",)))
    assert [preference.prompt for preference in read_preferences(path)] == ["p", "r"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no front matter", "front matter"),
        ("---\nmodels: 42\n---\n", "models"),
        ("---\nmodel: [a]\n---\n", "unknown field"),
        ("---\nsuccess:\n  - {file_exists: a, run: b}\n---\n", "exactly one of"),
        ("---\ntasks: [{name: a/b, prompt: x}]\n---\n", "not a valid task name"),
        ("---\ntasks: [{name: a, prompt: x}, {name: a, prompt: y}]\n---\n", "the same name"),
    ],
)
def test_a_recipe_that_cannot_be_understood(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "recipe.md"
    path.write_text(text)
    with pytest.raises(RecipeError, match=why):
        read_recipe(path)
    with pytest.raises(RecipeError, match=r"missing\.md"):
        read_recipe(tmp_path / "missing.md")
