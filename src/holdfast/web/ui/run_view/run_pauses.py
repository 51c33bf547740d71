"""When no process executed a run, and why: pauses between its attempts, and the deaths of its workers."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.checkpoint.progress import AttemptRecord
from holdfast.core.run.status import AttemptEnd
from holdfast.runtime.reading.formatting import format_span
from holdfast.runtime.reading.run_summary import RunSummary, round_times
from holdfast.web.ui.run_view.run_steps import StepView

#: What a run does after an attempt that has ended in this way.
_CAUSES = {
    AttemptEnd.WAITING: "waiting",
    AttemptEnd.PARKED: "parked",
    AttemptEnd.FAILED: "failed",
    AttemptEnd.CANCELLED: "cancelled",
}
_QUEUED, _UNOWNED = "queued", "without a worker"
#: Shorter pauses are not named.
_MIN_NAMED = timedelta(seconds=1)
#: The attempts say why a run waited if they account for all of it, but for this part or time.
_TOLERANCE, _MIN_TOLERANCE = 0.02, timedelta(seconds=1)


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a worker's process, and the attempt that followed."""

    worker_id: str
    at: datetime
    next: AttemptRecord | None = None

    @property
    def gap(self) -> timedelta | None:
        """The time until another worker resumed the run."""
        began = None if self.next is None else self.next.began_at
        return None if began is None else max(began - self.at, timedelta(0))


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch between two attempts."""

    cause: str
    start: datetime
    end: datetime


class StepNotes(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the run during one step, beside what the step did."""

    deaths: Sequence[Death] = ()
    parked: Sequence[Pause] = ()


def list_deaths(attempts: Sequence[AttemptRecord], start: datetime, end: datetime) -> Iterator[Death]:
    """Yield the deaths since `start`. One after `end` is placed there."""
    for place, attempt in enumerate(attempts):
        following = attempts[place + 1] if place + 1 < len(attempts) else None
        # A process that died before its first save is known by the attempt that followed.
        at = attempt.saved_at or (None if following is None else following.began_at)
        if attempt.end is AttemptEnd.DIED and at is not None and at >= start:
            yield Death(worker_id=attempt.worker_id, at=min(at, end), next=following)


def list_pauses(attempts: Sequence[AttemptRecord], end: datetime | None) -> list[Pause]:
    """Return the stretches after attempts. `end`: the run has ended then; `None`: its last attempt works."""
    ends = [*(attempt.began_at for attempt in attempts[1:]), end]
    return [
        Pause(cause=_CAUSES.get(attempt.end, _UNOWNED), start=attempt.saved_at, end=max(attempt.saved_at, following))
        for attempt, following in zip(attempts, ends, strict=False)
        if attempt.end is not None and attempt.saved_at is not None and following is not None
    ]


def list_parked(attempts: Sequence[AttemptRecord], now: datetime) -> list[Pause]:
    """Return the stretches in which the run was parked."""
    return [pause for pause in list_pauses(attempts, now) if pause.cause == "parked"]


def describe_waited(run: RunSummary, attempts: Sequence[AttemptRecord], now: datetime, *, is_terminal: bool) -> str:
    """Say what a run waited for: `41 min waiting, 12 min parked`. Empty if its attempts do not account for it."""
    if not attempts or attempts[0].number != 1 or attempts[0].began_at is None:
        return ""
    pauses = [
        Pause(cause=_QUEUED, start=run.created_at, end=attempts[0].began_at),
        *list_pauses(attempts, run.updated_at if is_terminal else now),
    ]
    totals: dict[str, timedelta] = {}
    for pause in pauses:
        totals[pause.cause] = totals.get(pause.cause, timedelta(0)) + max(timedelta(0), pause.end - pause.start)
    missing = abs(sum(totals.values(), timedelta(0)) - run.waited)
    if missing > max(_MIN_TOLERANCE, run.waited * _TOLERANCE):
        return ""
    unit, (_, _, waited) = round_times(run)
    named = {cause: round(length / unit) * unit for cause, length in totals.items() if length >= _MIN_NAMED}
    if not named:
        return ""
    # The parts add up to what the page shows: the longest takes what rounding and short pauses leave.
    (length, longest), *others = sorted(((length, cause) for cause, length in named.items()), reverse=True)
    length += waited - sum(named.values(), timedelta(0))
    return ", ".join(f"{format_span(length)} {cause}" for length, cause in [(length, longest), *others])


def note_steps(steps: Sequence[StepView], attempts: Sequence[AttemptRecord], now: datetime) -> dict[str, StepNotes]:
    """Return the notes of those steps that have some, by their anchors."""
    parked, notes = list_parked(attempts, now), dict[str, StepNotes]()
    for step in steps:
        if not step.finished or step.at is None or step.took is None:
            continue
        began, ended = step.at - step.took, step.at
        deaths = [death for death in list_deaths(attempts, began, now) if death.at <= ended and death.next]
        pauses = [pause for pause in parked if began <= pause.start < ended]
        if deaths or pauses:
            notes[step.anchor] = StepNotes(deaths=deaths, parked=pauses)
    return notes
