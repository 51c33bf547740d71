"""For tests of code that uses holdfast: crash tests for agents, the contract of stores as tests, a manual clock.

Only `holdfast.testing.store_suite` and `holdfast.testing.pytest_plugin` need pytest.
"""

from holdfast.testing.clock import ManualClock
from holdfast.testing.crash import TRIAL_FOLDER, CrashReport, CrashTestFailed, Trial, crash_everywhere

__all__ = ["TRIAL_FOLDER", "CrashReport", "CrashTestFailed", "ManualClock", "Trial", "crash_everywhere"]
