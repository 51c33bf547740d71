"""Calls that wait for a person, with what the reader needs to decide."""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.waiting import PERSON_KINDS, WaitingCall
from holdfast.runtime.reading import RunSummary, summarize_run
from holdfast.runtime.transcript import Transcript

#: The reply that made a call is among the last entries of its run.
_CONTEXT_ENTRIES = 12
_ANSWERABLE = PERSON_KINDS | {"result"}


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for an answer."""

    call: WaitingCall
    run: RunSummary
    #: What the model said when it made the call.
    context: str = ""

    @property
    def anchor(self) -> str:
        """An id for the page: that of a call may contain anything."""
        return hashlib.sha256(f"{self.call.run_id} {self.call.id}".encode()).hexdigest()[:12]

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


def list_tasks(record: RunRecord, calls: Iterable[WaitingCall]) -> list[Task]:
    """Return the calls of a run that can be answered, without context."""
    run = summarize_run(record)
    return [Task(call=call, run=run) for call in calls if call.kind in _ANSWERABLE]


async def read_tasks(store: CheckpointStore, calls: Sequence[WaitingCall]) -> list[Task]:
    """Return the tasks of these calls, with context. Those of runs that are gone are left out."""
    tasks: list[Task] = []
    for call in calls:
        try:
            record = await store.get_record(call.run_id)
            stored = await store.load(call.run_id, after=max(-1, record.next_seq - _CONTEXT_ENTRIES - 1))
        except RunNotFound:
            continue
        replies = [item for item in Transcript().read(stored.entries) if item.kind == "reply"]
        said = [item.text for item in replies if any(each.call_id == call.call_id for each in item.calls)]
        tasks.append(Task(call=call, run=summarize_run(record), context=said[-1] if said else ""))
    return tasks
