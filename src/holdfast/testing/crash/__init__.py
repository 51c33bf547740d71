"""Crash tests for agents: kill them everywhere, and see whether they go on."""

from holdfast.testing.crash.everywhere import crash_everywhere
from holdfast.testing.crash.life import TRIAL_FOLDER
from holdfast.testing.crash.report import CrashReport, CrashTestFailed, Trial

__all__ = ["TRIAL_FOLDER", "CrashReport", "CrashTestFailed", "Trial", "crash_everywhere"]
