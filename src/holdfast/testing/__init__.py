"""For tests of code that uses holdfast: crash tests, re-entry of workflows, suites for stores and adapters, a clock.

Only the suites and `holdfast.testing.pytest_plugin` need pytest.
"""

from holdfast.core.workflow.reentry import Mismatch
from holdfast.runtime.reading.reentries import ReenteredRun, Reentries, reenter_runs
from holdfast.testing.crash import TRIAL_FOLDER, CrashReport, CrashTestFailed, Trial, crash_everywhere
from holdfast.testing.manual_clock import ManualClock

__all__ = [
    "TRIAL_FOLDER",
    "CrashReport",
    "CrashTestFailed",
    "ManualClock",
    "Mismatch",
    "ReenteredRun",
    "Reentries",
    "Trial",
    "crash_everywhere",
    "reenter_runs",
]
