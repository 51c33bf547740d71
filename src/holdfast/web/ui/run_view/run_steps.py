"""The transcript of a run as steps: what was said, and each call with its result."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.record import RunRecord
from holdfast.core.run.state import StepTimes
from holdfast.runtime.reading.formatting import cut_text, format_value
from holdfast.runtime.reading.transcript import (
    CallRecord,
    CallState,
    Transcript,
    TranscriptItem,
    get_loop_name,
    read_traces,
)
from holdfast.web.ui.content import list_images

#: Longer content is cut; the rest is loaded when the reader asks for it.
FOLD_LENGTH = 3_000

#: Characters of the title of a step, and of an argument in one line.
_TITLE, _ARGUMENT = 60, 120

PartKind = Literal[
    "prompt", "user", "system", "thinking", "reply", "result", "message", "phase", "turn", "answer", "error"
]


#: Items that show the pictures of their entry.
_ILLUSTRATED = ("begin", "user", "reply", "result", "resolution", "message")


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A text, cut if it is long. `seq` and `number` say where the whole of it is."""

    text: str
    #: Characters of the whole text.
    length: int
    seq: int
    number: int
    #: How many pictures the entry has, if they are shown here.
    images: int = 0

    @property
    def is_cut(self) -> bool:
        return len(self.text) < self.length


class CallView(msgspec.Struct, kw_only=True):
    """A tool call. The result is added when it is read."""

    call: CallRecord
    arguments: Content
    result: Content | None = None
    is_resolution: bool = False
    #: In the process that finished the step; `None` if it is not known.
    took: timedelta | None = None
    #: The traceback of its error, if it is known and the reader is an operator.
    trace: str = ""

    @property
    def anchor(self) -> str:
        return f"call-{self.arguments.seq}-{self.arguments.number}"

    @property
    def state(self) -> str:
        return self.call.state

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        """The arguments that a person has changed, with the old and the new value."""
        old, new = self.call.original_arguments, self.call.arguments
        if not isinstance(old, dict) or not isinstance(new, dict):
            return [] if old is None else [("arguments", _format_line(old), _format_line(new))]
        names = [*old, *(name for name in new if name not in old)]
        return [
            (name, _format_line(old[name]) if name in old else "", _format_line(new[name]) if name in new else "")
            for name in names
            if (name in old, old.get(name)) != (name in new, new.get(name))
        ]


def _strip_marks(line: str) -> str:
    """Return a line of Markdown without its marks."""
    return line.strip().lstrip("#*-> ").replace("**", "").replace("`", "")


def _format_line(value: Any) -> str:
    return cut_text(msgspec.json.encode(value).decode(errors="replace"), _ARGUMENT)


class Part(msgspec.Struct, kw_only=True):
    """One message of a step."""

    kind: PartKind
    content: Content | None = None
    #: The calls that a reply asks for.
    calls: list[CallView] = []
    #: The tool of a result whose call is not shown, or the name of a phase.
    name: str = ""
    #: When a turn began.
    at: datetime | None = None
    #: The model that has replied; empty if it is not known.
    model: str = ""


class StepView(msgspec.Struct, kw_only=True):
    """A step: the messages from the end of the step before to its own end."""

    number: int
    first_seq: int
    parts: list[Part] = []
    #: The calls of earlier steps whose results are in this one, as those of a workflow that makes several at once.
    ended: list[CallView] = []
    finished: bool = False
    at: datetime | None = None
    took: timedelta | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    retries: int = 0
    #: Empty for an agent without phases.
    phase: str = ""
    times: StepTimes | None = None

    @property
    def anchor(self) -> str:
        return f"step-{self.number}"

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def calls(self) -> list[CallView]:
        return [view for part in self.parts for view in part.calls]

    @property
    def title(self) -> str:
        """What the step did, in a few words: the first line of its reply, or its tools."""
        said = next((part.content.text for part in self.parts if part.kind == "reply" and part.content), "")
        first = next((line for line in map(_strip_marks, said.splitlines()) if line), "")
        return cut_text(first, _TITLE) or ", ".join(view.call.tool for view in self.calls or self.ended) or "begins"

    @property
    def model(self) -> str:
        """The model that has replied; empty if it is not known."""
        return next((part.model for part in self.parts if part.model), "")


class Steps(msgspec.Struct, kw_only=True):
    """A window of the transcript."""

    steps: Sequence[StepView]
    transcript: Transcript
    #: The result of the run, or its error; `None` if it has not ended.
    outcome: Content | None = None
    #: The number of the last finished step's entry, after which a later read may continue; -1: the beginning.
    last_step_seq: int


def build_steps(
    entries: Sequence[Entry],
    record: RunRecord,
    *,
    is_end: bool,
    finished_steps: int,
    fold: int = FOLD_LENGTH,
    with_images: bool = True,
    with_traces: bool = False,
) -> Steps:
    """Build the steps of consecutive entries. If they do not begin with the journal, the first step is left out.

    Args:
        is_end: whether the entries reach to the end of the journal.
        finished_steps: of the whole run, for the number of the step in progress.
        fold: longer texts are cut to this length.
        with_images: count the pictures, for a page that can load them.
        with_traces: add the tracebacks of failed calls. For operators: they name files and lines of code.
    """
    transcript = Transcript(get_loop_name(record))
    items = transcript.read(entries)
    base: TranscriptItem | None = None
    if entries and entries[0].seq > 0 and items and items[0].kind != "begin":
        first = next((at for at, item in enumerate(items) if item.kind == "step"), None)
        if first is not None:
            base, items = items[first], items[first + 1 :]
    if is_end:
        transcript.close(record)
    images = {entry.seq: len(list_images(entry)) for entry in entries} if with_images else {}
    builder = _Builder(base, record.created_at, finished_steps, Numbering(fold), images)
    for item in items:
        builder.add(item)
    finished = builder.finish()
    traces = read_traces(entries) if with_traces else {}
    for view in (view for step in finished for view in step.calls if traces):
        view.trace = traces.get(view.call.call_id, "") if view.state in ("error", "failed") else ""
    return Steps(
        steps=finished,
        transcript=transcript,
        outcome=builder.outcome,
        last_step_seq=builder.last_step_seq,
    )


class Numbering:
    """Numbers the contents of each entry, so that one can be found again."""

    def __init__(self, fold: int) -> None:
        self._fold = fold
        self._seq, self._count = -1, 0

    def read(self, item: TranscriptItem) -> Iterator[tuple[int, Content]]:
        """Yield the contents of the next item, with their numbers."""
        if item.seq != self._seq:
            self._seq, self._count = item.seq, 0
        for value in _list_contents(item):
            text = format_value(value)
            content = Content(text=text[: self._fold], length=len(text), seq=item.seq, number=self._count)
            yield self._count, content
            self._count += 1


class _Builder:
    def __init__(
        self,
        base: TranscriptItem | None,
        created_at: datetime,
        finished_steps: int,
        numbers: Numbering,
        images: dict[int, int],
    ) -> None:
        self._last = base
        self._last_at = base.at if base is not None else created_at
        self._finished_steps = finished_steps
        self._steps: list[StepView] = []
        self._parts: list[Part] = []
        self._ended: list[CallView] = []
        self._first_seq: int | None = None
        self._calls: dict[str, CallView] = {}
        self._prompt = ""
        self._numbers = numbers
        #: By entry: the pictures that are not placed yet.
        self._images = images
        self.last_step_seq = base.seq if base is not None else -1
        self.outcome: Content | None = None

    def add(self, item: TranscriptItem) -> None:
        if self._first_seq is None:
            self._first_seq = item.seq
        if item.kind == "step":
            self._end_step(item)
        else:
            self._add_part(item)

    def finish(self) -> list[StepView]:
        """Return the steps. What follows the last finished one is the step in progress, or the end of the run."""
        if self._parts:
            number = self._finished_steps + 1
            self._steps.append(StepView(number=number, first_seq=self._first_seq or 0, parts=self._parts))
        return self._steps

    def _end_step(self, item: TranscriptItem) -> None:
        last = self._last
        for time in item.times.calls if item.times is not None else ():
            if view := self._calls.get(time.call_id):
                view.took = timedelta(milliseconds=time.end - time.start)
        self._steps.append(
            StepView(
                number=item.step,
                first_seq=self._first_seq or 0,
                parts=self._parts,
                ended=self._ended,
                finished=True,
                at=item.at,
                took=item.at - self._last_at if item.at and self._last_at else None,
                input_tokens=item.usage.input_tokens - (last.usage.input_tokens if last else 0),
                output_tokens=item.usage.output_tokens - (last.usage.output_tokens if last else 0),
                cost_usd=max(0.0, item.usage.cost_usd - (last.usage.cost_usd if last else 0.0)),
                retries=item.retries - (last.retries if last else 0),
                phase=item.phase,
                times=item.times,
            )
        )
        self._last, self._last_at, self.last_step_seq = item, item.at, item.seq
        self._parts, self._ended, self._first_seq = [], [], None

    def _add_part(self, item: TranscriptItem) -> None:
        contents = [content for _, content in self._numbers.read(item)]
        if item.kind == "outcome":
            self.outcome = contents[0]
        if item.kind in _ILLUSTRATED and contents:
            contents[0] = msgspec.structs.replace(contents[0], images=self._images.pop(item.seq, 0))
        match item.kind:
            case "begin" if item.text:  # a conversation has none
                self._prompt = item.text
                self._parts.append(Part(kind="prompt", content=contents[0]))
            case "user" if item.text == self._prompt:
                self._prompt = ""  # the prompt is there already
            case "system" | "user" | "thinking" | "message":
                self._parts.append(Part(kind=item.kind, content=contents[0]))
            case "reply":
                calls = [
                    CallView(call=call, arguments=each) for call, each in zip(item.calls, contents[1:], strict=True)
                ]
                self._calls.update((view.call.call_id, view) for view in calls)
                self._parts.append(Part(kind="reply", content=contents[0], calls=calls, model=item.model))
            case "result" | "resolution":
                self._add_result(item, contents[0])
            case "phase":
                self._parts.append(Part(kind="phase", content=contents[0], name=item.text))
            case "input":
                self._parts.append(Part(kind="turn", name=str(item.step), at=item.at))
            case "turn" if item.error and item.text:
                self._parts.append(Part(kind="error", content=contents[0]))
            case "outcome" if item.error or not self._is_last_reply(contents[0]):
                self._parts.append(Part(kind="error" if item.error else "answer", content=contents[0]))

    def _is_last_reply(self, content: Content) -> bool:
        """Whether the answer of the run is the text of its last reply, which is shown already."""
        parts = [*(self._steps[-1].parts if self._steps else []), *self._parts]
        replies = [part.content for part in parts if part.kind == "reply"]
        return bool(replies) and replies[-1] is not None and replies[-1].text == content.text

    def _add_result(self, item: TranscriptItem, content: Content) -> None:
        view = self._calls.get(item.call_id)
        if view is None:  # the call was made before the window
            state: CallState = "error" if item.error else "done"
            name = item.tool or item.call_id
            call = CallRecord(call_id=item.call_id, tool=name, arguments=None, state=state, result=item.content)
            view = CallView(call=call, arguments=Content(text="", length=0, seq=content.seq, number=content.number))
            self._calls[item.call_id] = view
            self._parts.append(Part(kind="result", content=content, name=name, calls=[view]))
        elif not any(view in part.calls for part in self._parts):
            self._ended.append(view)
        view.result, view.is_resolution = content, item.kind == "resolution"


def _list_contents(item: TranscriptItem) -> Iterable[Any]:
    match item.kind:
        case "reply":
            return [item.text, *(call.arguments for call in item.calls)]
        case "outcome" | "turn":
            return [item.text if item.error else item.content]
        case "result" | "resolution" | "message" | "phase":
            return [item.content]
        case _:
            return [item.text]


def find_content(loop: str, entry: Entry, number: int) -> str | None:
    """Return a whole text of an entry; `None` if it has no such content."""
    numbering = Numbering(2**62)
    for item in Transcript(loop).read([entry]):
        for found, content in numbering.read(item):
            if found == number:
                return content.text
    return None
