"""The scorecard: its judge, and the program for holdfast, killed for real."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench.scorecard.judge import Trial, judge, list_repeated
from bench.scorecard.ledger import EFFECTS, POINTS, Ledger
from bench.scorecard.table import AGAIN, DOUBLED, FOUND, SYSTEMS, TOOLS, UNKNOWN, format_page

ROOT = Path(__file__).parents[2]
RUN_ID = "order-1"


def make_trial(
    point: str = "", *repeated: str, found: bool = True, unknown_reported: bool = False, result_again: bool = True
) -> Trial:
    return Trial(point, [*EFFECTS, *repeated], found, unknown_reported, result_again)


def test_a_program_that_repeats_nothing_scores_full() -> None:
    scores = judge([make_trial(), *(make_trial(point) for point in POINTS)], 2048)
    assert scores.trials == scores.found == len(POINTS) == 22
    assert (scores.model_calls_repeated, scores.tool_calls_repeated, scores.payments_doubled) == (0, 0, 0)
    assert scores.approval_consumed_once
    assert scores.result_again == 23
    assert scores.run_bytes == 2048


def test_the_call_that_a_kill_hits_does_not_count_as_finished() -> None:
    assert list_repeated(make_trial("after look-a", "look-a")) == []
    assert list_repeated(make_trial("after look-a", "model-1", "look-a")) == ["model-1"]


def test_finished_calls_that_were_repeated_are_counted_by_kind() -> None:
    trials = [make_trial(), make_trial("before pay", "model-2", "look-c"), make_trial("after fetch-2", "fetch-1")]
    scores = judge(trials, 0)
    assert (scores.model_calls_repeated, scores.tool_calls_repeated) == (1, 2)


def test_a_payment_that_a_kill_hits_counts_when_it_is_made_twice() -> None:
    scores = judge([make_trial(), make_trial("after pay", "pay"), make_trial("before pay")], 0)
    assert (scores.payments_doubled, scores.unknown_reported) == (1, 0)
    assert judge([make_trial(), make_trial("after pay", unknown_reported=True)], 0).unknown_reported == 1


def test_an_approval_that_is_used_twice_is_seen_without_a_kill() -> None:
    assert not judge([make_trial("", "pay"), make_trial("before pay")], 0).approval_consumed_once


def test_runs_that_only_their_caller_finds_and_lost_results_are_counted() -> None:
    scores = judge([make_trial(), make_trial("before pay", found=False, result_again=False)], 0)
    assert (scores.found, scores.result_again) == (0, 1)


def test_the_page_leaves_a_field_empty_that_a_system_does_not_claim_and_says_what_was_seen() -> None:
    scores = judge([make_trial(), make_trial("after pay", "pay", "fetch-1", found=False)], 3 * 1024)
    page = format_page(dict.fromkeys(SYSTEMS, scores), 60)
    rows = {
        cells[1].strip(): [cell.strip() for cell in cells[2:-1]]
        for line in page.splitlines()
        if (cells := line.split("|"))[1:]
    }
    names = [system.name for system in SYSTEMS]

    def list_empty(row: str) -> list[str]:
        return [name for name, cell in zip(names, rows[row], strict=True) if not cell]

    assert list_empty(FOUND) == ["LangGraph", "pydantic-ai StepPersistence", "OpenAI Agents sessions"]
    assert list_empty(DOUBLED) == ["OpenAI Agents sessions"]
    assert not {"holdfast, workflow", "holdfast, agent"} & set(list_empty(UNKNOWN))
    assert set(rows["storage of a further run"]) == {"3 KB"}
    (seen,) = [line for line in page.splitlines() if line.startswith("- **pydantic-ai StepPersistence")]
    assert seen.endswith(f"Not claimed, but seen: {TOOLS}: 1; {AGAIN}: 2 of 2.")


def start(name: str, command: str, folder: Path) -> "subprocess.Popen[str]":
    program = ("-m", f"bench.scorecard.programs.{name}", command, str(folder), "", RUN_ID)
    return subprocess.Popen([sys.executable, *program], cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("program", ["holdfast", "holdfast_workflow"])
@pytest.mark.parametrize("point", ["after pay", "after fetch-2"])
def test_the_program_for_holdfast_survives_a_kill(program: str, point: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    ledger = Ledger(tmp_path / RUN_ID)
    ledger.plan_kill(point)
    approver = start(program, "approve", tmp_path)
    try:
        killed = start(program, "submit", tmp_path)
        killed.communicate()
        assert killed.returncode == -signal.SIGKILL
        worker = start(program, "work", tmp_path)
        worker.communicate()
        assert worker.returncode == 0
        again = start(program, "submit", tmp_path)
        assert again.communicate()[0] == "result of model-4\n"
    finally:
        approver.kill()
        approver.communicate()
    effects = ledger.read()
    assert effects.count("pay") == 1
    assert list_repeated(Trial(point, effects, True, False, True)) == []
    assert ledger.is_unknown_reported == (point == "after pay")
