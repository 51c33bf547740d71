"""When a job fires: a cron expression in a time zone, and what is done about fires that were missed."""

from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast.batteries.schedule.errors import ScheduleError

#: What becomes of fires that were missed while nothing ran: one for all of them, every one, or none.
Missed = Literal["once", "all", "none"]

#: A fire that is late by no more than this was not missed.
PUNCTUAL = timedelta(minutes=1)


def cron_next(expression: str, timezone: str, after: datetime) -> datetime:
    """The first fire after a time, in UTC. Summer time is as one expects: nothing is skipped, nothing fires twice.

    Raises:
        ScheduleError: the expression or the time zone cannot be read, or never fires; or the library is not installed.
    """
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as exc:
        raise ScheduleError("cron schedules need the package cronsim: pip install 'holdfast[schedule]'") from exc
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:  # such as a directory of zones, or a name too long
        raise ScheduleError(f"{timezone!r} is no time zone: use a name such as Europe/Lisbon") from exc
    try:
        fires = (fire.astimezone(UTC) for fire in CronSim(expression, after.astimezone(zone)))
        # In the hour that the end of summer time repeats, it may begin with one of the hour before.
        return next(fire for fire in fires if fire > after)
    except CronSimError as exc:
        raise ScheduleError(f"{expression!r} is no cron expression: {exc}") from exc
    except StopIteration as exc:
        raise ScheduleError(f"{expression!r} never fires") from exc
