"""Transcript: the readable items of a journal (messages, calls, steps). Needs no agent's code."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, Self

import msgspec

from holdfast.adapters.readable import ReadableMessage, Resolution, Thinking, read_message
from holdfast.checkpoint.codec import Begin, Outcome, RecordedResult, Step, decode
from holdfast.checkpoint.errors import RecordDecodeError
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord
from holdfast.core.execution.native_calls import list_abandoned
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NO_USAGE, Reply, System, ToolCall, ToolResult, Usage, User
from holdfast.core.run.run_events import ABANDONED, PROGRESS, ItemProgress
from holdfast.core.run.state import NO_CALLS, PhaseOutput, StepCalls, StepTimes
from holdfast.core.run.turns import TurnInput, TurnRecord
from holdfast.core.run.waiting import Decision, WaitingCall, WaitKind

#: Without a result: `running` if a live worker executes the run; `needs approval` or `needs result` if the call waits
#: for an answer; `waiting` if it waits for a signal or a time; `open` if the run is terminal, or if the effect of the
#: call says that it is repeated and the run is not parked because of it; else `in doubt`.
CallState = Literal[
    "done", "error", "running", "needs approval", "needs result", "waiting", "in doubt", "open", "abandoned"
]

_REPEATED_EFFECTS = ("pure", "idempotent")

_WAIT_STATES: dict[WaitKind, CallState] = {
    "approval": "needs approval",
    "question": "needs result",
    "result": "needs result",
    "signal": "waiting",
    "timer": "waiting",
    "child": "waiting",
    "run": "waiting",
}

_ANSWERED_STATES = ("done", "error")


class CallRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A tool call, its state and its result, as all readers get it. What is stored of its token stays inside."""

    call_id: str
    tool: str
    #: The arguments that the tool is called with: those of the model, or those that a person has approved instead.
    arguments: Any
    state: CallState
    #: Plain data; `None` until there is a result.
    result: Any
    #: The arguments of the model, if a person has approved others.
    original_arguments: Any = None
    #: The tool's effect; `None` without the agent's code. The steps of a workflow have it on record.
    effect: str | None = None
    #: A step of a workflow that is undone if the workflow fails.
    can_undo: bool = False
    #: The answer of a person or the result, who gave it, and when. `expire`: none came in time.
    decision: Decision | None = None
    #: What the tool says about the call, while it waits.
    metadata: Any = None
    #: The following fields describe a call that waits: its run, what it waits for, and why.
    run_id: str = ""
    kind: WaitKind | None = None
    reason: str = ""
    #: Names this wait and the arguments. An answer that names it is for no other.
    digest: str = ""
    #: Who may decide: a label that the host checks.
    audience: str = ""
    asked_at: datetime | None = None
    #: When the wait ends without an answer. `None`: never.
    expires_at: datetime | None = None

    @classmethod
    def from_wait(cls, wait: WaitingCall) -> Self:
        """Return the record of a call that waits."""
        call = cls(call_id=wait.call_id, tool=wait.tool, arguments=wait.arguments, state="open", result=None)
        call.add_wait(wait)
        return call

    def add_wait(self, wait: WaitingCall) -> None:
        """Add what the call waits for."""
        self.state = _WAIT_STATES[wait.kind]
        for name in _WAIT_FIELDS:
            setattr(self, name, getattr(wait, name))

    def add_decision(self, decision: Decision) -> None:
        """Add the answer to a wait, and take the arguments that it gives."""
        if decision.kind == "approve" and decision.arguments is not None and self.decision is None:
            self.original_arguments, self.arguments = self.arguments, decision.arguments
        self.decision = decision


_WAIT_FIELDS = ("run_id", "kind", "reason", "metadata", "digest", "audience", "asked_at", "expires_at")


ItemKind = Literal[
    "begin",
    "system",
    "user",
    "thinking",
    "reply",
    "result",
    "resolution",
    "message",
    "step",
    "phase",
    "outcome",
    "input",
    "turn",
]


class TranscriptItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One readable part of an entry of the journal."""

    seq: int
    kind: ItemKind
    text: str = ""
    #: The calls that a reply asks for, and the model that has replied; empty if it is not known.
    calls: list[CallRecord] = []
    model: str = ""
    #: The call that a result or a resolution answers, the tool, and whether it is an error.
    call_id: str = ""
    tool: str = ""
    error: bool = False
    #: A result's content, an unknown message, the output of a phase, a turn or the run.
    content: Any = None
    #: The number of a step, and the time it finished. For the beginning of a turn (`input`, its text is the id) and
    #: its end: the number of the turn and the time.
    step: int = 0
    at: datetime | None = None
    #: The run's usage at a step or an outcome, its child runs included.
    usage: Usage = NO_USAGE
    #: The run's retries at a step.
    retries: int = 0
    #: The phase that a step belongs to.
    phase: str = ""
    #: How long the parts of a step took, if that was measured.
    times: StepTimes | None = None


class Transcript:
    """Reads a run's entries in order and collects its calls. Can be continued with later entries."""

    def __init__(self, loop: str, effects: Mapping[str, str] | None = None) -> None:
        """Start empty.

        Args:
            loop: of the run: see `get_loop_name`.
            effects: the known effects of the tools, by name.
        """
        self._loop, self._effects = loop, effects or {}
        self.calls: list[CallRecord] = []
        #: The latest call of each id: ids are unique only within a reply.
        self._calls_by_id: dict[str, CallRecord] = {}
        #: The latest progress of each `map_items`, by the name of its function.
        self.progress: dict[str, ItemProgress] = {}

    def read(self, entries: Iterable[Entry]) -> list[TranscriptItem]:
        """Return the items of the next entries. ADOPT entries have none: they refer to earlier results."""
        return [item for entry in entries for item in self._read_entry(entry)]

    @property
    def unanswered(self) -> list[CallRecord]:
        """Calls without a result, and those that the code of a workflow has not repeated."""
        return [call for call in self.calls if call.state not in _ANSWERED_STATES]

    def close(self, record: RunRecord) -> None:
        """Set the state of the calls without a result, after the last entry."""
        self._close_waits(record)
        reported = _read_calls(record).in_doubt
        for call in self.unanswered:
            if call.state == "open" and not record.is_terminal:
                is_repeated = call.effect in _REPEATED_EFFECTS and call.call_id not in reported
                call.state = "running" if record.owner_alive else "open" if is_repeated else "in doubt"

    def _close_waits(self, record: RunRecord) -> None:
        """Set the state and the decisions of the calls that wait, or waited, in the current step."""
        calls = _read_calls(record)
        self._record_decisions(calls.decisions)
        for wait in () if record.is_terminal else calls.undecided:
            call = self._calls_by_id.get(wait.call_id)
            if call is not None and call.state not in _ANSWERED_STATES:
                call.add_wait(wait)

    def _record_decisions(self, decisions: Mapping[str, Decision]) -> None:
        for call_id, decision in decisions.items():
            if (call := self._calls_by_id.get(call_id)) is not None:
                call.add_decision(decision)

    def _read_entry(self, entry: Entry) -> Iterator[TranscriptItem]:
        match entry.kind:
            case EntryKind.BEGIN:
                yield TranscriptItem(seq=entry.seq, kind="begin", text=decode(entry.body, Begin).info.prompt_text)
            case EntryKind.MESSAGE:
                yield from self._read_message(entry.seq, entry.body)
            case EntryKind.RESULT:
                recorded = decode(entry.body, RecordedResult)
                yield from self._read_message(entry.seq, bytes(recorded.message), recorded.call)
            case EntryKind.STEP:
                step = decode(entry.body, Step)
                self._record_decisions(step.decisions)
                yield _make_step_item(entry.seq, step)
            case EntryKind.PHASE:
                phase = decode(entry.body, PhaseOutput)
                yield TranscriptItem(
                    seq=entry.seq, kind="phase", text=phase.name, content=phase.output, step=phase.steps
                )
            case EntryKind.OUTCOME:
                outcome = decode(entry.body, Outcome)
                error = outcome.error or ""
                yield TranscriptItem(
                    seq=entry.seq,
                    kind="outcome",
                    content=outcome.output,
                    text=error,
                    error=bool(error),
                    usage=outcome.usage,
                )
            case EntryKind.INPUT:
                turn = decode(entry.body, TurnInput)
                yield TranscriptItem(seq=entry.seq, kind="input", text=turn.turn_id, step=turn.number, at=turn.at)
            case EntryKind.TURN:
                yield _read_turn(entry)
            case EntryKind.EVENT:
                self._read_event(entry.body)

    def _read_event(self, body: bytes) -> None:
        """Take the progress of a workflow, and mark the calls that it has not repeated when its function returned."""
        event = msgspec.json.decode(body)
        if event.get("type") != "custom":
            return
        if event.get("name") == PROGRESS:
            with suppress(msgspec.ValidationError):  # an event of the user's own code may have this name
                progress = msgspec.convert(event.get("value"), ItemProgress)
                self.progress[progress.name] = progress
        if event.get("name") == ABANDONED:
            self._abandon(event.get("value") or ())

    def _abandon(self, call_ids: Iterable[str]) -> None:
        for call_id in call_ids:
            if (call := self._calls_by_id.get(call_id)) is not None:
                call.state = "abandoned"

    def _read_message(self, seq: int, body: bytes, call_id: str = "") -> Iterator[TranscriptItem]:
        messages = read_message(self._loop, body)
        if messages is None:
            yield self._read_unknown_message(seq, body, call_id)
            return
        for message in messages:
            yield self._read_known_message(seq, message)

    def _read_known_message(self, seq: int, message: ReadableMessage) -> TranscriptItem:
        match message:
            case System(text):
                return TranscriptItem(seq=seq, kind="system", text=text)
            case User(text):
                return TranscriptItem(seq=seq, kind="user", text=text)
            case Thinking(text):
                return TranscriptItem(seq=seq, kind="thinking", text=text)
            case Reply():
                return TranscriptItem(
                    seq=seq,
                    kind="reply",
                    text=message.text,
                    calls=[self._record_call(each) for each in message.tool_calls],
                    model=message.model,
                )
            case ToolResult() | Resolution():
                self._record_result(message.call_id, message.content, error=message.error)
                if isinstance(message, ToolResult) and (lost := list_abandoned(message)):
                    self._abandon({call.call_id for call in self.unanswered}.intersection(lost))
                return TranscriptItem(
                    seq=seq,
                    kind="resolution" if isinstance(message, Resolution) else "result",
                    call_id=message.call_id,
                    tool=message.tool,
                    content=message.content,
                    error=message.error,
                )

    def _read_unknown_message(self, seq: int, body: bytes, call_id: str) -> TranscriptItem:
        """Read a message of another loop."""
        try:
            content = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            content = body.decode(errors="replace")
        if call_id:
            self._record_result(call_id, content)
        return TranscriptItem(seq=seq, kind="result" if call_id else "message", call_id=call_id, content=content)

    def _record_call(self, request: ToolCall) -> CallRecord:
        call = CallRecord(
            call_id=request.id,
            tool=request.name,
            arguments=request.arguments,
            state="open",
            result=None,
            effect=request.effect or self._effects.get(request.name),
            can_undo=request.can_undo,
        )
        self.calls.append(call)
        self._calls_by_id[call.call_id] = call
        return call

    def _record_result(self, call_id: str, content: Any, *, error: bool = False) -> None:
        if call := self._calls_by_id.get(call_id):
            call.state = "error" if error else "done"
            call.result = content


def read_traces(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the tracebacks of failed calls, by call id. No transcript has them: they are for operators."""
    found: dict[str, str] = {}
    for entry in entries:
        if entry.kind is EntryKind.STEP and b'"traces"' in entry.body:
            found |= decode(entry.body, Step).traces
    return found


def _make_step_item(seq: int, step: Step) -> TranscriptItem:
    progress = step.progress
    return TranscriptItem(
        seq=seq,
        kind="step",
        step=progress.steps,
        at=step.at,
        usage=progress.usage,
        retries=progress.retry.count,
        phase=progress.phase,
        times=step.times,
    )


def _read_turn(entry: Entry) -> TranscriptItem:
    record = decode(entry.body, TurnRecord)
    return TranscriptItem(
        seq=entry.seq,
        kind="turn",
        step=record.input.number,
        at=record.at,
        content=record.output,
        text=record.error,
        error=record.status != "done",
    )


def read_record_waits(record: RunRecord) -> Sequence[WaitingCall]:
    """Return the calls of a run that wait. Empty if only a newer holdfast can decode them."""
    return _read_calls(record).undecided


def _read_calls(record: RunRecord) -> StepCalls:
    try:
        return decode(record.progress, Progress).calls
    except RecordDecodeError:
        return NO_CALLS


def get_loop_name(record: RunRecord) -> str:
    """Return the name of the run's loop. Empty if only a newer holdfast can decode it."""
    try:
        return decode(record.info, RunInfo).loop
    except RecordDecodeError:
        return ""
