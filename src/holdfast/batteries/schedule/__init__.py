"""schedule: runs agents by cron, each fire once, in one process or in a fleet.

`App(agents, schedule=Schedule())` keeps the jobs in the store of the App. `ScheduleRunner` is the loop alone, for a
host's own jobs.
"""

from holdfast.batteries.schedule.jobs import (
    Job,
    JobExists,
    JobNotFound,
    JobTable,
    Missed,
    ScheduleError,
    cron_next,
)
from holdfast.batteries.schedule.runner import Pass, ScheduleRunner
from holdfast.batteries.schedule.schedule import Fire, Schedule, Submit

__all__ = [
    "Fire",
    "Job",
    "JobExists",
    "JobNotFound",
    "JobTable",
    "Missed",
    "Pass",
    "Schedule",
    "ScheduleError",
    "ScheduleRunner",
    "Submit",
    "cron_next",
]
