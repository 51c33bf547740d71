"""An agent of pydantic-ai survives a crash at every point, and its bugs are found."""

import pytest

from holdfast.testing import CrashTestFailed, crash_everywhere


def test_an_agent_of_pydantic_ai_resumes_after_a_crash_anywhere() -> None:
    report = crash_everywhere("tests.crash.pydantic_ai_agents:agent", "Porto", store="sqlite:{folder}/runs.db")
    assert report.crashes == len(report.points) == len(report.trials)
    assert "at the start of book book-1-0 in step 2 of crash-test" in report.points
    assert {call for trial in report.trials for call in trial.in_doubt} == {
        "crash-test/book-1-0",
        "crash-test/book-2-0",
    }


def test_a_bug_under_an_agent_of_pydantic_ai_is_found() -> None:
    # The call is made twice, or it is made so late that the two baseline runs differ.
    with pytest.raises(CrashTestFailed, match=r"the once tool book .* was started 2 times|two baseline runs differ"):
        crash_everywhere("tests.crash.planted.pydantic_ai_unawaited:agent", "Porto", store="sqlite:{folder}/runs.db")
