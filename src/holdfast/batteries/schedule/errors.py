"""What can go wrong with schedules."""

from holdfast.errors import HoldfastError


class ScheduleError(HoldfastError):
    """A schedule, or its runner, was put together in a way that cannot work."""


class JobExists(ScheduleError):
    """A job of this name exists already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"a job named {name!r} exists already: remove it first, or choose another name")
        self.name = name


class JobNotFound(ScheduleError):
    """There is no job of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no job named {name!r}")
        self.name = name
