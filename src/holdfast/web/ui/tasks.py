"""What a person decides about a run: calls that wait for an answer, and calls whose outcome is not known."""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.core.run.waiting import PERSON_KINDS, WaitingCall
from holdfast.runtime.reading.run_summary import RunSummary, summarize_run
from holdfast.runtime.reading.transcript import CallRecord, Transcript, get_loop_name
from holdfast.web.ui.argument_form import Field, make_fields

#: The reply that made a call is among the last entries of its run.
_CONTEXT_ENTRIES = 12
#: The same for calls in doubt: a batch of calls, and their results.
_DOUBT_ENTRIES = 200
_ANSWERABLE = PERSON_KINDS | {"result"}


def make_anchor(run_id: str, call_id: str) -> str:
    """Return an id for the page: that of a call may contain anything."""
    return hashlib.sha256(f"{run_id} {call_id}".encode()).hexdigest()[:12]


class WaitingTask(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for an answer."""

    call: WaitingCall
    run: RunSummary
    #: What the model said when it made the call.
    context: str = ""
    #: The arguments of an approval; empty if they are edited as JSON.
    fields: Sequence[Field] = ()
    #: The edited JSON, and what is wrong with the edit as a whole.
    edit: str = ""
    error: str = ""

    @property
    def anchor(self) -> str:
        return make_anchor(self.call.run_id, self.call.id)

    @property
    def is_open(self) -> bool:
        """Whether an edit was refused."""
        return bool(self.error) or any(field.error for field in self.fields)

    @property
    def question(self) -> str:
        """What is asked, or why an approval is."""
        asked = self.call.arguments.get("question") if isinstance(self.call.arguments, dict) else None
        return asked if self.call.kind == "question" and isinstance(asked, str) else self.call.reason

    @property
    def options(self) -> list[str]:
        """The answers that a question offers."""
        given = self.call.arguments.get("options") if isinstance(self.call.arguments, dict) else None
        return [each for each in given if isinstance(each, str)] if isinstance(given, list) else []


def make_task(run: RunSummary, call: WaitingCall, context: str = "") -> WaitingTask:
    """Make the task of a call."""
    fields = make_fields(call.arguments, call.schema) if call.kind == "approval" else ()
    return WaitingTask(call=call, run=run, context=context, fields=fields)


def list_tasks(record: RunRecord, calls: Iterable[WaitingCall]) -> list[WaitingTask]:
    """Return the calls of a run that can be answered, without context."""
    run = summarize_run(record)
    return [make_task(run, call) for call in calls if call.kind in _ANSWERABLE]


async def read_task(store: RunStore, record: RunRecord, call: WaitingCall) -> WaitingTask | None:
    """Return the task of a call with its context; `None` if its run is gone."""
    try:
        stored = await store.load(call.run_id, after=max(-1, record.next_seq - _CONTEXT_ENTRIES - 1))
    except RunNotFound:
        return None
    replies = [item for item in Transcript(get_loop_name(record)).read(stored.entries) if item.kind == "reply"]
    said = [item.text for item in replies if any(each.call_id == call.call_id for each in item.calls)]
    return make_task(summarize_run(record), call, said[-1] if said else "")


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """A call without a result."""

    call: CallRecord
    #: Unless a person resolves it, the model reads that its outcome is unknown. Others are made when the run resumes.
    is_reported: bool


class DoubtTask(msgspec.Struct, frozen=True, kw_only=True):
    """The calls in doubt of one parked run."""

    run: RunSummary
    doubts: Sequence[Doubt]

    @property
    def anchor(self) -> str:
        return make_anchor(self.run.run_id, "")


async def read_doubts(store: RunStore, record: RunRecord) -> Sequence[Doubt]:
    """Return the calls of a parked run that have no result; none if it is not parked."""
    if record.status is not RunStatus.PARKED:
        return []
    stored = await store.load(record.run_id, after=max(-1, record.next_seq - _DOUBT_ENTRIES - 1))
    transcript = Transcript(get_loop_name(record))
    transcript.read(stored.entries)
    transcript.close(stored.record)
    return list_doubts(stored.record, transcript)


def list_doubts(record: RunRecord, transcript: Transcript) -> Sequence[Doubt]:
    """The same, from a transcript that has the step in progress."""
    if record.status is not RunStatus.PARKED:
        return []
    in_doubt = decode(record.progress, Progress).calls.in_doubt
    return [
        Doubt(call=call, is_reported=call.call_id in in_doubt)
        for call in transcript.unanswered
        if call.state == "in doubt"
    ]
