"""How the claim of a run ends: done, failed, cancelled, or left interrupted, waiting or parked."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.checkpoint.codec import Outcome, encode
from holdfast.checkpoint.delta import Delta
from holdfast.checkpoint.errors import RunEnded, RunNotFound
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.record import TERMINAL_STATUSES, Notice, Release, RunStatus
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.checkpoint.workers import Claim, backoff
from holdfast.config import Retention
from holdfast.core.errors import RunCancelled, format_error
from holdfast.core.ports import Leave
from holdfast.core.run.info import RunInfo
from holdfast.core.run.mail import CHILD_TOPIC, MESSAGE_TOPIC, EndNotice, Mail, make_ended_topic
from holdfast.core.run.messages import NO_USAGE, Usage
from holdfast.core.run.status import AttemptEnd
from holdfast.core.run.turns import INPUT_TOPICS
from holdfast.ids import make_id

_STATUSES = {
    AttemptEnd.INTERRUPTED: RunStatus.INTERRUPTED,
    AttemptEnd.WAITING: RunStatus.WAITING,
    AttemptEnd.PARKED: RunStatus.PARKED,
}


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a claim ends, beside what is new in the run's state. The fields are those of `Release`."""

    status: RunStatus
    despite_cancel: bool = False
    reason: str = ""
    #: The body of the last entry of a run that has ended.
    outcome: bytes | None = None
    strikes: int = 0
    delay: timedelta = timedelta(0)
    retention: timedelta | None = None
    wake_at: datetime | None = None
    wake_on: Sequence[str] = ()

    #: The run is removed after the release.
    is_removed: bool = False


def end_done(output: Any, usage: Usage, info: RunInfo, retention: Retention) -> Ending:
    """Return the end of a run that has succeeded. It does not end while it has unread messages."""
    return Ending(
        status=RunStatus.DONE,
        outcome=encode(Outcome(output=output, usage=usage)),
        retention=retention.done,
        is_removed=_is_removed(info, retention.done),
        wake_on=INPUT_TOPICS if info.conversation else (MESSAGE_TOPIC,),
    )


def end_failed(error: BaseException, usage: Usage, info: RunInfo, retention: Retention) -> Ending:
    """Return the end of a run that has failed or was cancelled."""
    is_cancelled = isinstance(error, RunCancelled | asyncio.CancelledError)
    status = RunStatus.CANCELLED if is_cancelled else RunStatus.FAILED
    text, kept_for = format_error(error), retention.of(status)
    return Ending(
        status=status,
        reason=text,
        outcome=encode(Outcome(error=text, usage=usage)),
        retention=kept_for,
        is_removed=_is_removed(info, kept_for),
    )


def _is_removed(info: RunInfo, kept_for: timedelta) -> bool:
    """A child without a retention is kept until its parent is removed: a resumed parent reads its outcome."""
    return not kept_for and info.parent_run_id is None


def end_left(leaving: Leave, claim: Claim | None, now: datetime, *, progressed: bool) -> Ending:
    """Return the end of an attempt whose run has not ended.

    Args:
        progressed: a step was finished under the claim.
    """
    status, strikes, delay = _STATUSES[leaving.end], 0, leaving.delay
    if claim is not None and not progressed and status is not RunStatus.PARKED:
        strikes = max(0, claim.strikes - (not leaving.strike))
    if leaving.strike:
        delay = max(delay, backoff(strikes))
    if leaving.wake_at is not None:
        # The clock of the store may be ahead: the run would be resumed too early, again and again.
        delay = max(timedelta(0), leaving.wake_at - now)
    return Ending(
        status=status,
        despite_cancel=leaving.despite_cancel,
        reason=leaving.reason,
        strikes=strikes,
        delay=delay,
        wake_at=leaving.wake_at,
        wake_on=leaving.wake_on,
    )


def make_notice(info: RunInfo, status: RunStatus, usage: Usage, token: int) -> Notice | None:
    """Return the notice to the run that has started this one in the background; `None` if it has not ended, or no run.

    Args:
        token: of the claim that ends. A run that is resumed by hand may end more than once.
    """
    if info.starter is None or status not in TERMINAL_STATUSES:
        return None
    notice = {
        "run_id": info.run_id,
        "agent": info.agent_name,
        "status": status.value,
        "usage": NO_USAGE if info.parent_run_id is None else usage,
    }
    topic = make_ended_topic(info.run_id)
    mail = Mail(mail_id=f"{topic}:{token}", topic=topic, body=encode(msgspec.convert(notice, EndNotice)))
    return Notice(run_id=info.starter, mail=mail)


async def wake_parents(store: RunStore, run_id: str) -> None:
    """Notify the runs above a child that has mail: only its parent resumes it. Does nothing for other runs."""
    with suppress(RunNotFound, RunEnded):
        record = await get_record(store, run_id)
        while record.parent_run_id is not None and not record.background:
            record = await get_record(store, record.parent_run_id)
            # Also to one that does not wait: it may be about to.
            with suppress(RunEnded):
                await store.post(record.run_id, Mail(mail_id=make_id(), topic=CHILD_TOPIC, body=b"{}"))


def make_release(
    ending: Ending, delta: Delta | None, next_seq: int, progress: bytes | None, notify: Notice | None
) -> Release:
    """Return the release that ends the claim, and adds what is unsaved and the outcome in the same write.

    Args:
        delta: what is new since the last save. `None`: nothing, or it cannot be saved.
        next_seq: the number of the next entry, if there is no delta.
        progress: replaces the run's progress, if there is no delta. `None`: it stays.
    """
    entries: list[Entry] = []
    consumed: Sequence[str] = ()
    if delta is not None:
        entries += delta.write.entries
        next_seq, progress, consumed = delta.next_watermark.next_seq, delta.write.progress, delta.write.consumed
    if ending.outcome is not None:
        entries.append(Entry(seq=next_seq, kind=EntryKind.OUTCOME, body=ending.outcome))
    return Release(
        status=ending.status,
        despite_cancel=ending.despite_cancel,
        # Stores need not be able to keep half a surrogate pair or a NUL.
        reason=ending.reason.encode(errors="replace").decode().replace("\0", "\ufffd"),
        entries=entries,
        progress=progress,
        strikes=ending.strikes,
        delay=ending.delay,
        retention=ending.retention,
        consumed=consumed,
        wake_at=ending.wake_at,
        wake_on=ending.wake_on,
        notify=notify,
    )
