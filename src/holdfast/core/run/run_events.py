"""Events: what happens in a run, for listeners in the executing process and for watchers in any process.

*Durable* events come from the journal and have a cursor: a watcher that continues after a cursor gets every later one
exactly once and in order. The others describe the current state, such as the status or the text of a reply in progress.
A watcher that was away gets the current state, not each change.

`event.type` is the name of an event in JSON: `msgspec.json.decode(text, type=Event)` is the inverse of
`msgspec.json.encode(event)`.
"""

from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from holdfast.core.run.messages import NO_USAGE, Usage
from holdfast.core.run.waiting import Decision, WaitingCall
from holdfast.root_error import HoldfastError


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What every event has."""

    run_id: str
    #: Continues a stream after this event. Only durable events have one, and only from `App.events`.
    cursor: str | None = None
    #: When it happened, if that is known.
    at: datetime | None = None
    #: The step in which it happened. Zero if that is not known: the journal records it only for steps and retries.
    step: int = 0

    @property
    def type(self) -> str:
        """The name of the kind of event, such as `text_delta`."""
        return str(self.__struct_config__.tag)


class StatusChanged(RunEvent, frozen=True, kw_only=True, tag="status"):
    """The status of the run has changed. A stream shows the current one after the events that were missed."""

    #: A `RunStatus`, such as `running`.
    status: str
    #: Why the run is parked or failed, or what it waits for.
    reason: str = ""
    #: For listeners: this process resumes the run.
    resumed: bool = False


class TurnStarted(RunEvent, frozen=True, kw_only=True, tag="turn_started"):
    """A conversation has begun to answer a message. Durable."""

    #: The id of the message.
    turn_id: str
    #: Counts up from 1.
    number: int = 0
    #: The beginning of the message, as text.
    prompt: str = ""


class TurnFinished(RunEvent, frozen=True, kw_only=True, tag="turn_finished"):
    """A conversation has answered a message, or the turn has failed or was interrupted. Durable."""

    turn_id: str
    number: int = 0
    status: Literal["done", "failed", "interrupted"] = "done"
    #: The output, once the turn is done, as plain data.
    output: Any = None
    #: Why a turn that is not done ended.
    error: str = ""
    #: What this turn alone used, child runs included.
    usage: Usage = NO_USAGE


class PhaseStarted(RunEvent, frozen=True, kw_only=True, tag="phase_started"):
    """A phase of a pipeline has begun."""

    name: str


class PhaseFinished(RunEvent, frozen=True, kw_only=True, tag="phase_finished"):
    """A phase of a pipeline has ended. Durable."""

    name: str
    output: Any = None


class StepStarted(RunEvent, frozen=True, kw_only=True, tag="step_started"):
    """The run works on this step."""


class StepFinished(RunEvent, frozen=True, kw_only=True, tag="step_finished"):
    """The step is finished: the reply and all its tool results are recorded. Durable."""

    #: What the run and its child runs used up to this step.
    usage: Usage = NO_USAGE
    #: How many calls of the run were retried after a transient error, up to this step.
    retries: int = 0


class MessageAdded(RunEvent, frozen=True, kw_only=True, tag="message"):
    """The prompt, the instructions or a message that was sent to the run has entered the conversation. Durable."""

    role: Literal["user", "system"]
    #: Text, or content parts in which files are shortened to their type and size.
    content: Any


class TextDelta(RunEvent, frozen=True, kw_only=True, tag="text_delta"):
    """Further text of the reply in progress: a draft. Then comes the whole `ReplyAdded`, or `DraftRetracted`."""

    text: str


class ReasoningDelta(RunEvent, frozen=True, kw_only=True, tag="reasoning_delta"):
    """Further reasoning before the reply in progress. A draft, as `TextDelta` is."""

    text: str


class DraftRetracted(RunEvent, frozen=True, kw_only=True, tag="draft_retracted"):
    """The deltas since the last reply are void: the reply was cut off. The model call is repeated."""


class ReplyAdded(RunEvent, frozen=True, kw_only=True, tag="reply"):
    """The complete reply of the model. Its tool calls follow. Durable."""

    text: str = ""
    reasoning: str = ""


class ToolCalled(RunEvent, frozen=True, kw_only=True, tag="tool_call"):
    """The model asks for a tool call. Durable from `App.events`; a listener gets it when the tool starts."""

    call_id: str
    tool: str
    arguments: Any = None


class ToolReturned(RunEvent, frozen=True, kw_only=True, tag="tool_result"):
    """The result of a tool call. Durable."""

    call_id: str
    tool: str = ""
    content: Any = None
    #: The call failed or was refused; `content` says why.
    error: bool = False


class RetryScheduled(RunEvent, frozen=True, kw_only=True, tag="retry"):
    """A model call or a tool call has failed and is retried after a pause. Durable."""

    #: The tool call; empty for a model call.
    call_id: str = ""
    tool: str = ""
    error: str = ""
    #: How many attempts have failed.
    attempt: int = 0
    delay: timedelta = timedelta(0)


class CallsWaiting(RunEvent, frozen=True, kw_only=True, tag="waiting"):
    """The run waits for these calls: an approval, an answer, a signal, a time, a result or a child run."""

    calls: tuple[WaitingCall, ...]


class CallDecided(RunEvent, frozen=True, kw_only=True, tag="decision"):
    """A call that waited was approved, denied or answered. Durable."""

    call_id: str
    tool: str = ""
    decision: Decision


class ChildStarted(RunEvent, frozen=True, kw_only=True, tag="child_started"):
    """A tool call has started a run. Durable."""

    child_run_id: str
    agent: str = ""
    #: The tool call that started it.
    call_id: str = ""


class ChildFinished(RunEvent, frozen=True, kw_only=True, tag="child_finished"):
    """A run that a tool call started has ended. Durable."""

    child_run_id: str
    status: Literal["done", "failed", "cancelled"]


#: The names of custom events of workflows: the items of a `map_items` that are done, and all; the ids of recorded calls
#: that the code has not repeated when its function returned.
PROGRESS, ABANDONED = "progress", "abandoned"


class ItemProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a `map_items` is."""

    #: The name of its function.
    name: str = ""
    #: Items that have ended, those of them that failed, and all.
    done: int
    total: int
    failed: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.done} of {self.total}{f', {self.failed} failed' if self.failed else ''}".strip()


class CustomEvent(RunEvent, frozen=True, kw_only=True, tag="custom"):
    """Data that the run's own code shows: a chunk of a LangGraph stream, the progress of a workflow. Durable.

    A node that runs again after a crash shows its chunks again.
    """

    #: The stream: `custom`, or `updates`, which has what a node returned, by the name of the node.
    name: str
    value: Any = None
    #: The subgraphs around the node, from the outside in.
    path: tuple[str, ...] = ()


class OutputRecorded(RunEvent, frozen=True, kw_only=True, tag="output"):
    """The run is done, with this output as plain data. Durable."""

    output: Any = None
    usage: Usage = NO_USAGE


class ErrorRecorded(RunEvent, frozen=True, kw_only=True, tag="error"):
    """The run has failed or was cancelled. Durable. A person may resume it: then more events follow."""

    error: str


class HistoryRewritten(RunEvent, frozen=True, kw_only=True, tag="history_rewritten"):
    """The conversation was replaced by a shorter one, by compaction, or by the restart of a workflow. Durable.

    Events between this one and the cursor that a watcher continued after may be gone.
    """

    #: The conversation as it is now, as events without cursors. A watcher that knows the earlier ones can ignore them.
    events: "tuple[Event, ...]" = ()


Event = (
    StatusChanged
    | TurnStarted
    | TurnFinished
    | PhaseStarted
    | PhaseFinished
    | StepStarted
    | StepFinished
    | MessageAdded
    | TextDelta
    | ReasoningDelta
    | DraftRetracted
    | ReplyAdded
    | ToolCalled
    | ToolReturned
    | RetryScheduled
    | CallsWaiting
    | CallDecided
    | ChildStarted
    | ChildFinished
    | CustomEvent
    | OutputRecorded
    | ErrorRecorded
    | HistoryRewritten
)

#: Events that are recorded as notes in the journal, because nothing else in it records them.
RecordedEvent = RetryScheduled | CallDecided | ChildStarted | ChildFinished | CustomEvent


class ReaderTooSlow(HoldfastError):
    """A watcher did not take its events in time, and was disconnected. No event is lost: continue after `cursor`.

    What to do: Watch again with `after=error.cursor`, and take events faster.
    """

    def __init__(self, run_id: str, cursor: str | None) -> None:
        super().__init__(f"a watcher of run {run_id} was too slow: watch again with after={cursor!r}")
        self.run_id = run_id
        self.cursor = cursor
