"""A journal as people read it: messages, calls, steps. Needs no agent's code; what it does not know stays JSON."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.checkpoint.codec import Begin, Outcome, Progress, RecordedResult, Step, decode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.run.message import NATIVE_CODEC, Reply, System, ToolResult, User
from holdfast.run.state import PhaseOutput

CallState = Literal["done", "error", "running", "in doubt", "open"]


class Call(msgspec.Struct, kw_only=True):
    """A tool call and what became of it."""

    call_id: str
    tool: str
    arguments: Any
    #: `pure`, `idempotent` or `once`; `None` where the agent's code is not at hand.
    effect: str | None = None
    #: `running`: a live worker drives the run. `in doubt`: nobody does, and no result was recorded. `open`: it never
    #: got a result, and the run is over.
    state: CallState = "open"
    result: Any = None


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that the journal tells."""

    seq: int
    kind: Literal["begin", "system", "user", "reply", "result", "message", "step", "phase", "outcome"]
    text: str = ""
    #: Of a reply.
    calls: list[Call] = []
    #: Of a result: the call it answers, the tool and whether it is an error.
    call_id: str = ""
    tool: str = ""
    error: bool = False
    #: A result's content, an unknown message, a phase's or the run's output.
    content: Any = None
    #: Of a step: its number, when it was finished, and what the run had used by then.
    step: int = 0
    at: datetime | None = None
    tokens: int = 0
    cost_usd: float = 0.0


class Transcript:
    """Takes a run's entries in order and keeps the calls. Can go on when more entries come."""

    def __init__(self, effects: Mapping[str, str] | None = None) -> None:
        """Begin with nothing. `effects` are those of the tools by name, as far as they are known."""
        self._effects = effects or {}
        self.calls: list[Call] = []
        #: By id, which is unique within a reply only: the last that was asked for is the one that is answered.
        self._last: dict[str, Call] = {}

    def read(self, entries: Iterable[Entry]) -> list[Item]:
        """What the next entries tell. Entries that only move what was told before tell nothing."""
        return [item for entry in entries if (item := self._item(entry)) is not None]

    @property
    def unanswered(self) -> list[Call]:
        """Calls without a result."""
        return [call for call in self.calls if call.state not in ("done", "error")]

    def close(self, *, live: bool, over: bool) -> None:
        """Say what calls without a result are, now that all there is was read."""
        for call in self.unanswered:
            call.state = "running" if live else "open" if over else "in doubt"

    def _item(self, entry: Entry) -> Item | None:
        match entry.kind:
            case EntryKind.BEGIN:
                return Item(seq=entry.seq, kind="begin", text=decode(entry.body, Begin).meta.prompt)
            case EntryKind.MESSAGE:
                return self._message(entry.seq, entry.body)
            case EntryKind.RESULT:
                recorded = decode(entry.body, RecordedResult)
                return self._message(entry.seq, bytes(recorded.message), recorded.call)
            case EntryKind.STEP:
                return _step(entry)
            case EntryKind.PHASE:
                phase = decode(entry.body, PhaseOutput)
                return Item(seq=entry.seq, kind="phase", text=phase.name, content=phase.output, step=phase.iteration)
            case EntryKind.OUTCOME:
                outcome = decode(entry.body, Outcome)
                error = outcome.error or ""
                return Item(seq=entry.seq, kind="outcome", content=outcome.output, text=error, error=bool(error))
            case EntryKind.ADOPT:
                return None

    def _message(self, seq: int, body: bytes, call_id: str = "") -> Item:
        try:
            message = NATIVE_CODEC.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return self._unknown(seq, body, call_id)
        match message:
            case System(text):
                return Item(seq=seq, kind="system", text=text)
            case User(text):
                return Item(seq=seq, kind="user", text=text)
            case Reply():
                return Item(
                    seq=seq, kind="reply", text=message.text, calls=[self._asked(each) for each in message.tool_calls]
                )
            case ToolResult():
                self._answered(message.call_id, message.content, error=message.error)
                return Item(
                    seq=seq, kind="result", call_id=message.call_id, tool=message.tool, content=message.content,
                    error=message.error,
                )  # fmt: skip
        raise AssertionError(f"the native codec gave a {type(message).__name__}")

    def _unknown(self, seq: int, body: bytes, call_id: str) -> Item:
        """A message of another loop."""
        try:
            content = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            content = body.decode(errors="replace")
        if call_id:
            self._answered(call_id, content)
        return Item(seq=seq, kind="result" if call_id else "message", call_id=call_id, content=content)

    def _asked(self, given: Any) -> Call:
        call = Call(call_id=given.id, tool=given.name, arguments=given.arguments, effect=self._effects.get(given.name))
        self.calls.append(call)
        self._last[call.call_id] = call
        return call

    def _answered(self, call_id: str, content: Any, *, error: bool = False) -> None:
        if call := self._last.get(call_id):
            call.state = "error" if error else "done"
            call.result = content


def _step(entry: Entry) -> Item:
    step = decode(entry.body, Step)
    progress = decode(bytes(step.progress), Progress)
    usage = progress.usage
    return Item(
        seq=entry.seq, kind="step", step=progress.iteration, at=step.at, tokens=usage.total_tokens,
        cost_usd=usage.cost_usd,
    )  # fmt: skip
