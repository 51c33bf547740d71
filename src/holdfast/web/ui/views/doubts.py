"""The calls of a parked run whose outcome a person has to find out."""

from collections.abc import Sequence

import msgspec

from holdfast.checkpoint.codec import Progress, decode
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.execution.calls import IN_DOUBT_KEY
from holdfast.runtime.transcript import Call, Transcript

#: The reply that made the calls is among the last entries: a batch of calls, and their results.
_ENTRIES = 200


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """A call without a result."""

    call: Call
    #: Unless a person resolves it, the model reads that its outcome is unknown. Others are made when the run resumes.
    is_reported: bool


async def read_doubts(store: CheckpointStore, record: RunRecord) -> Sequence[Doubt]:
    """Return the calls of a parked run that have no result; none if it is not parked."""
    if record.status is not RunStatus.PARKED:
        return []
    stored = await store.load(record.run_id, after=max(-1, record.next_seq - _ENTRIES - 1))
    transcript = Transcript()
    transcript.read(stored.entries)
    transcript.close(stored.record)
    in_doubt = decode(stored.record.progress, Progress).annotations.get(IN_DOUBT_KEY, ())
    return [
        Doubt(call=call, is_reported=call.call_id in in_doubt)
        for call in transcript.unanswered
        if call.state == "in doubt"
    ]
