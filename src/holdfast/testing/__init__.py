"""For tests of code that builds on holdfast: agents killed everywhere, a store's contract as tests, a clock.

`holdfast.testing.store_suite` holds the contract of stores and needs pytest, as does `holdfast.testing.pytest_plugin`;
nothing else here does.
"""

from holdfast.testing.clock import ManualClock
from holdfast.testing.crash import TRIAL_FOLDER, CrashReport, CrashTestFailed, Trial, crash_everywhere

__all__ = ["TRIAL_FOLDER", "CrashReport", "CrashTestFailed", "ManualClock", "Trial", "crash_everywhere"]
