"""The crash test fails, with a reason, for a bug in the checkpointer, the store, the resume or a user's agent.

The trials are as few as those of `test_own_agents`: one for each kind of point. With HOLDFAST_CHAOS one for each point.
"""

import functools
import os
import signal
from pathlib import Path

import pytest
from tests.testing.crash import agents

from holdfast.core.errors import DefinitionError
from holdfast.testing import CrashReport, CrashTestFailed
from holdfast.testing import crash_everywhere as crash_anywhere

crash_everywhere = functools.partial(
    crash_anywhere, sample=None if os.environ.get("HOLDFAST_CHAOS") else "kinds", seed=1, max_concurrency=1
)

PLANTED = "tests.testing.crash.planted"
FOLDER = "sqlite:{folder}/runs.db"
TWICE = "the once tool book (call book-10 in step 2 of run crash-test) was started 2 times"


def _faults(report: CrashReport | None) -> str:
    assert report is not None
    return "\n".join(fault for trial in report.failed for fault in trial.faults)


def test_a_checkpointer_that_does_not_await_the_intent() -> None:
    with pytest.raises(CrashTestFailed) as failed:
        # At every point: whether a crash shows this bug depends on how fast the tool is.
        crash_everywhere(f"{PLANTED}.unawaited_intent:agent", "Porto", store=FOLDER, sample=None)
    assert TWICE in _faults(failed.value.report)


def test_a_store_that_acknowledges_before_it_writes() -> None:
    with pytest.raises(CrashTestFailed) as failed:
        crash_everywhere(
            f"{PLANTED}.hasty_store:agent", "Porto", store=FOLDER, open_store=f"{PLANTED}.hasty_store:EarlyAckStore"
        )
    faults = _faults(failed.value.report)
    assert "the store lost entries it had acknowledged" in faults
    assert TWICE in faults


def test_a_resume_that_ignores_recorded_results() -> None:
    with pytest.raises(CrashTestFailed) as failed:
        crash_everywhere(f"{PLANTED}.ignored_results:agent", "Porto", store=FOLDER)
    assert "though its result was recorded" in _faults(failed.value.report)


def test_a_reconcile_that_denies_an_executed_call() -> None:
    with pytest.raises(CrashTestFailed) as failed:
        crash_everywhere(f"{PLANTED}.own_mistakes:lying_reconcile", "Porto")
    assert "returned 2 times: its reconcile said NOT_EXECUTED after it had returned" in _faults(failed.value.report)


def test_an_attempt_that_hangs_is_ended_and_prints_its_stack() -> None:
    with pytest.raises(CrashTestFailed) as failed:
        crash_everywhere(f"{PLANTED}.own_mistakes:hangs_after_a_crash", "Porto", sample=1, timeout=2)
    report = failed.value.report
    assert report is not None
    [trial] = report.failed
    assert "the last attempt ended with exit code 1" in trial.faults
    assert "this attempt hangs" in trial.process_output
    assert "own_mistakes.py" in trial.process_output


def test_a_point_that_is_never_reached() -> None:
    with pytest.raises(CrashTestFailed) as failed:
        crash_everywhere(f"{PLANTED}.own_mistakes:shrinking", "Porto", store=FOLDER, sample=None)
    assert "this point was never reached" in _faults(failed.value.report)


def test_an_agent_that_is_not_deterministic() -> None:
    with pytest.raises(CrashTestFailed, match="two baseline runs differ"):
        crash_everywhere(f"{PLANTED}.own_mistakes:nondeterministic", "Porto")


def test_an_agent_that_kills_its_own_process() -> None:
    with pytest.raises(CrashTestFailed, match=f"the baseline run failed .signal {signal.SIGKILL.name}"):
        crash_everywhere(f"{PLANTED}.own_mistakes:dying", "Porto")


def test_an_agent_that_another_process_cannot_import() -> None:
    from tests.testing.crash.planted.own_mistakes import NotAtTheTop

    with pytest.raises(DefinitionError, match="at the top of a module"):
        crash_everywhere(NotAtTheTop.agent, "Porto")
    with pytest.raises(DefinitionError, match="write 'module:attribute'"):
        crash_everywhere("agents.single", "Porto")
    with pytest.raises(CrashTestFailed, match=r"cannot import tests\.testing\.crash\.agents:missing"):
        crash_everywhere("tests.testing.crash.agents:missing", "Porto")


def test_the_logs_of_a_trial_are_kept_in_the_given_folder(tmp_path: Path) -> None:
    report = crash_everywhere(agents.single, "Porto", sample=1, seed=7, folder=tmp_path)
    assert report.seed == 7
    folders = sorted(path.parent.name for path in tmp_path.glob("*/events.jsonl"))
    assert folders == ["trial-0", "trial-1", "trial-2"]
    assert f'"{report.trials[0].crashed_at[0]}"' in (tmp_path / "trial-2" / "events.jsonl").read_text()
