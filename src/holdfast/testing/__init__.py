"""For tests of code that uses holdfast: crash tests for agents, the contracts of stores and adapters as tests, a clock.

Only the suites and `holdfast.testing.pytest_plugin` need pytest.
"""

from holdfast.testing.crash import TRIAL_FOLDER, CrashReport, CrashTestFailed, Trial, crash_everywhere
from holdfast.testing.manual_clock import ManualClock

__all__ = ["TRIAL_FOLDER", "CrashReport", "CrashTestFailed", "ManualClock", "Trial", "crash_everywhere"]
