"""Events without a cursor that describe the present: status, step, waiting calls."""

import msgspec

from holdfast.checkpoint.codec import Progress, decode
from holdfast.checkpoint.errors import RecordDecodeError
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.core.events import CallsWaiting, Event, StatusChanged, StepStarted
from holdfast.runtime.reading import present_status
from holdfast.runtime.transcript import read_record_waits


def describe_present(record: RunRecord) -> tuple[Event, ...]:
    """Return the events that describe the run as it is now."""
    run_id, status = record.run_id, present_status(record)
    events: list[Event] = [StatusChanged(run_id=run_id, status=status.value, reason=record.reason)]
    if status is RunStatus.RUNNING:
        events.append(StepStarted(run_id=run_id, step=_read_steps(record) + 1))
    elif status is RunStatus.WAITING:
        # The token of a call allows to complete it. Watchers may not.
        calls = tuple(msgspec.structs.replace(call, token="") for call in read_record_waits(record))
        events.append(CallsWaiting(run_id=run_id, calls=calls))
    return tuple(events)


def _read_steps(record: RunRecord) -> int:
    try:
        return decode(record.progress, Progress).steps
    except RecordDecodeError:  # only a newer holdfast can decode it
        return 0
