"""An agent of pydantic-ai survives a crash at a point of each kind (HOLDFAST_CHAOS: at every one); bugs are found."""

import os
from typing import Literal

import pytest

from holdfast.testing import CrashTestFailed, crash_everywhere

EVERYTHING = bool(os.environ.get("HOLDFAST_CHAOS"))
STORE = "sqlite:{folder}/runs.db"
SAMPLE: Literal["kinds"] | None = None if EVERYTHING else "kinds"


def test_an_agent_of_pydantic_ai_resumes_after_a_crash_anywhere() -> None:
    report = crash_everywhere(
        "tests.testing.crash.pydantic_ai_agents:agent", "Porto", store=STORE, sample=SAMPLE, max_concurrency=1
    )
    assert report.crashes == len(report.trials)
    assert "at the start of book book-1-0 in step 2 of crash-test" in report.points
    doubts = {call for trial in report.trials for call in trial.in_doubt}
    calls = {"crash-test/book-1-0", "crash-test/book-2-0"}
    assert doubts == calls if EVERYTHING else doubts & calls


def test_a_bug_under_an_agent_of_pydantic_ai_is_found() -> None:
    # The call is made twice, or it is made so late that the two baseline runs differ.
    with pytest.raises(CrashTestFailed, match=r"the once tool book .* was started 2 times|two baseline runs differ"):
        # At every point: whether a crash shows this bug depends on how fast the tool is.
        crash_everywhere(
            "tests.testing.crash.planted.pydantic_ai_unawaited:agent", "Porto", store=STORE, max_concurrency=1
        )
