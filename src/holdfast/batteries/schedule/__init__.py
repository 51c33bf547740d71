"""schedule: runs agents by cron, each fire once, in one process or in a fleet.

`Schedule(app.submit)` with `add` and `loop`; `ScheduleRunner` is the loop alone, for a host's own jobs.
"""

from holdfast.batteries.schedule.jobs import (
    Job,
    JobExists,
    JobNotFound,
    JobStore,
    MemoryJobs,
    Missed,
    ScheduleError,
    cron_next,
)
from holdfast.batteries.schedule.runner import Pass, ScheduleRunner
from holdfast.batteries.schedule.schedule import Fire, Schedule, Submit
from holdfast.batteries.schedule.tables import JobTable

__all__ = [
    "Fire",
    "Job",
    "JobExists",
    "JobNotFound",
    "JobStore",
    "JobTable",
    "MemoryJobs",
    "Missed",
    "Pass",
    "Schedule",
    "ScheduleError",
    "ScheduleRunner",
    "Submit",
    "cron_next",
]
