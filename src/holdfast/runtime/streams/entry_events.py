"""Events from journal entries and records, and their cursors."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple, Self

import msgspec

from holdfast.checkpoint.codec import Begin, decode
from holdfast.checkpoint.errors import InvalidCursor, RecordDecodeError
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.core.run.run_events import (
    CallDecided,
    CallsWaiting,
    ErrorRecorded,
    Event,
    HistoryRewritten,
    MessageAdded,
    OutputRecorded,
    PhaseFinished,
    ReplyAdded,
    StatusChanged,
    StepFinished,
    StepStarted,
    ToolCalled,
    ToolReturned,
    TurnFinished,
    TurnStarted,
)
from holdfast.core.run.turns import TurnInput, TurnRecord
from holdfast.core.run.waiting import Decision
from holdfast.runtime.reading.transcript import Transcript, TranscriptItem, get_loop_name, read_record_waits

_PATTERN = re.compile(r"([0-9a-f]{1,16})-([0-9]{1,18})-([0-9]{1,9})", re.ASCII)


class EventCursor(NamedTuple):
    """The place after one durable event."""

    #: Tells the run apart from an earlier one with the same id.
    incarnation: str
    #: The number of the journal entry, and of the event within it.
    seq: int
    place: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the cursor.

        Raises:
            InvalidCursor: the text is none.
        """
        match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidCursor(str(text))
        return cls(match[1], int(match[2]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.incarnation}-{self.seq}-{self.place}"


def get_incarnation(created_at: datetime) -> str:
    """Return what the cursors of a run begin with."""
    return f"{int(created_at.timestamp() * 1_000_000):x}"


def check_cursor(cursor: EventCursor, record: RunRecord) -> None:
    """Refuse a cursor of another run, or one that this run has not reached.

    Raises:
        InvalidCursor: it is such a cursor.
    """
    if cursor.incarnation != get_incarnation(record.created_at) or cursor.seq >= record.next_seq:
        raise InvalidCursor(str(cursor))


#: The entries that precede the messages of a rewritten journal.
_REPEATED_KINDS = frozenset({EntryKind.PHASE, EntryKind.TURN, EntryKind.INPUT})

_NOTE_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)

#: A durable event and the number of its entry.
NumberedEvent = tuple[int, Event]


def read_events(record: RunRecord, entries: Sequence[Entry], after: EventCursor | None) -> Iterator[NumberedEvent]:
    """Return the events of `entries` after the cursor. The entries are those of one load, from the cursor's entry on.

    A rewritten journal repeats the conversation. A reader that was there before gets it as one `HistoryRewritten`; a
    reader that begins gets its messages like any others.
    """
    incarnation, loop, position = get_incarnation(record.created_at), get_loop_name(record), 0
    while position < len(entries):
        entry, count = entries[position], 1
        if entry.kind is EntryKind.BEGIN and entry.seq > 0 and after is not None:
            count += _count_repeated(entries, position)
            repeated = entries[position : position + count]
            events: list[Event] = [_read_rewrite(record.run_id, loop, repeated)]
        else:
            events = _read_entry(record.run_id, loop, entry)
        position += count
        seq = entries[position - 1].seq
        for index, event in enumerate(events):
            cursor = EventCursor(incarnation, seq, index)
            if after is None or cursor > after:
                yield seq, msgspec.structs.replace(event, cursor=str(cursor))


def _count_repeated(entries: Sequence[Entry], position: int) -> int:
    """Return how many entries after a `BEGIN` repeat phases, turns and messages that the journal had before."""
    messages, others = decode(entries[position].body, Begin).repeated, 0
    for entry in entries[position + 1 :]:
        if entry.kind not in _REPEATED_KINDS:
            break
        others += 1
    return others + messages


def _read_rewrite(run_id: str, loop: str, entries: Sequence[Entry]) -> HistoryRewritten:
    events = tuple(event for entry in entries for event in _read_entry(run_id, loop, entry))
    return HistoryRewritten(run_id=run_id, events=events)


def _read_entry(run_id: str, loop: str, entry: Entry) -> list[Event]:
    """Return the events of one entry, without cursors."""
    if entry.kind is EntryKind.INPUT:
        return [_make_turn_start(run_id, decode(entry.body, TurnInput))]
    if entry.kind is EntryKind.TURN:
        return [_make_turn_end(run_id, decode(entry.body, TurnRecord))]
    if entry.kind is EntryKind.EVENT:
        return _read_recorded(run_id, entry.body)
    events: list[Event] = []
    reasoning: list[str] = []
    # A new transcript for each entry: it would collect all calls of the run.
    for item in Transcript(loop).read([entry]):
        if item.kind == "thinking":
            reasoning.append(item.text)
        else:
            events += _read_item(run_id, item, "\n".join(reasoning))
    return events


def _read_recorded(run_id: str, body: bytes) -> list[Event]:
    try:
        # A fork has the notes of the run that it was made from.
        return [msgspec.structs.replace(_NOTE_DECODER.decode(body), run_id=run_id)]
    except msgspec.MsgspecError:  # of a newer holdfast
        return []


def _make_turn_start(run_id: str, turn: TurnInput) -> TurnStarted:
    return TurnStarted(run_id=run_id, at=turn.at, turn_id=turn.turn_id, number=turn.number, prompt=turn.prompt)


def _make_turn_end(run_id: str, turn: TurnRecord) -> TurnFinished:
    return TurnFinished(
        run_id=run_id,
        at=turn.at,
        turn_id=turn.input.turn_id,
        number=turn.input.number,
        status=turn.status,
        output=turn.output,
        error=turn.error,
        usage=turn.usage,
    )


def _read_item(run_id: str, item: TranscriptItem, reasoning: str) -> Iterator[Event]:
    match item.kind:
        case "system" | "user":
            yield MessageAdded(run_id=run_id, role=item.kind, content=item.text)
        case "message":  # of a loop that is not known here
            yield MessageAdded(run_id=run_id, role="user", content=item.content)
        case "reply":
            yield ReplyAdded(run_id=run_id, text=item.text, reasoning=reasoning)
            for call in item.calls:
                yield ToolCalled(run_id=run_id, call_id=call.call_id, tool=call.tool, arguments=call.arguments)
        case "result":
            yield ToolReturned(
                run_id=run_id, call_id=item.call_id, tool=item.tool, content=item.content, error=item.error
            )
        case "resolution":
            decision = Decision(kind="value", value=item.content)
            yield CallDecided(run_id=run_id, call_id=item.call_id, tool=item.tool, decision=decision)
        case "step":
            yield StepFinished(run_id=run_id, at=item.at, step=item.step, usage=item.usage, retries=item.retries)
        case "phase":
            yield PhaseFinished(run_id=run_id, name=item.text, output=item.content, step=item.step)
        case "outcome" if item.error:
            yield ErrorRecorded(run_id=run_id, error=item.text)
        case "outcome":
            yield OutputRecorded(run_id=run_id, output=item.content, usage=item.usage)


def describe_present(record: RunRecord) -> tuple[Event, ...]:
    """Return the events that describe the run as it is now."""
    run_id, status = record.run_id, record.current_status
    events: list[Event] = [StatusChanged(run_id=run_id, status=status.value, reason=record.reason)]
    if status is RunStatus.RUNNING:
        events.append(StepStarted(run_id=run_id, step=_read_steps(record) + 1))
    elif status is RunStatus.WAITING:
        events.append(CallsWaiting(run_id=run_id, calls=tuple(read_record_waits(record))))
    return tuple(events)


def _read_steps(record: RunRecord) -> int:
    try:
        return decode(record.progress, Progress).steps
    except RecordDecodeError:  # only a newer holdfast can decode it
        return 0
