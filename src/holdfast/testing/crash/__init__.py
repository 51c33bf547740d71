"""Crash tests for agents: kill the process at every crash point and check that the run resumes correctly."""

from holdfast.testing.crash.checks import CrashReport, CrashTestFailed, Trial
from holdfast.testing.crash.trial_process import TRIAL_FOLDER
from holdfast.testing.crash.trials import crash_everywhere

__all__ = ["TRIAL_FOLDER", "CrashReport", "CrashTestFailed", "Trial", "crash_everywhere"]
