"""The conversation of a run, so that what is new can be found without looking at what is old.

Everything a run needs to go on.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, overload

import msgspec

from holdfast.core.message import NATIVE_CODEC, NO_USAGE, MessageCodec, Usage


class History(Sequence[Any]):
    """A list of messages that grows at its end, or is rewritten as a whole.

    Whoever saves it remembers how far it came and the number of rewrites; both equal means that only the end is new.
    """

    __slots__ = ("_messages", "finished_count", "rewrites")

    def __init__(self, messages: Iterable[Any] = ()) -> None:
        self._messages = list(messages)
        #: So many of the messages were there when the last step was finished, or were put in the place of those.
        self.finished_count = len(self._messages)
        self.rewrites = 0

    def append(self, message: Any) -> None:
        self._messages.append(message)

    def extend(self, messages: Iterable[Any]) -> None:
        self._messages.extend(messages)

    def rewrite(self, messages: Iterable[Any]) -> None:
        """Put other messages in place of all that were there: compaction, or the next phase's beginning."""
        self._messages = list(messages)
        self.finished_count = len(self._messages)
        self.rewrites += 1

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._messages)

    def __repr__(self) -> str:
        return f"History({len(self._messages)} messages, {self.rewrites} rewrites)"


class PhaseOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A finished phase."""

    name: str
    output: Any
    #: The run's iteration and driven time when the phase ended.
    steps: int = msgspec.field(name="iteration")
    elapsed: timedelta = timedelta(0)


class StepEnd(msgspec.Struct, frozen=True):
    """What had been used and noted when a step was finished. A save may come later, when there is more of both."""

    own_usage: Usage = NO_USAGE
    child_usage: Usage = NO_USAGE
    annotations: dict[str, Any] = {}


_NO_STEP = StepEnd()


@dataclass(slots=True, kw_only=True)
class RunState:
    """What a run consists of at this moment. The loop changes it; a checkpointer reads it when it saves."""

    codec: MessageCodec = NATIVE_CODEC
    #: The conversation of the current phase.
    history: History = field(default_factory=History)
    #: Finished steps of the whole run.
    steps: int = 0
    #: Finished phases, by position.
    phases: list[PhaseOutput] = field(default_factory=list)
    #: The name of the current phase. Empty without phases, and in runs that were saved when it was not kept.
    phase: str = ""
    #: Results of tool calls that are not in the history yet, by call id.
    results: dict[str, Any] = field(default_factory=dict)
    #: What the run itself has used.
    own_usage: Usage = NO_USAGE
    #: What the runs it started have used.
    child_usage: Usage = NO_USAGE
    #: How long the run has been driven, without the time it was interrupted.
    elapsed: timedelta = timedelta(0)
    #: Small plain data that ports keep with the run, each under its own name.
    annotations: dict[str, Any] = field(default_factory=dict)
    #: Of the last step that was finished in this process.
    step_end: StepEnd = _NO_STEP

    @property
    def usage(self) -> Usage:
        """All that was used for this run, its children included."""
        return self.own_usage + self.child_usage

    def finish_step(self) -> None:
        """The reply and all its tool results are in the history."""
        self.steps += 1
        self.results.clear()
        self.history.finished_count = len(self.history)
        self.step_end = StepEnd(self.own_usage, self.child_usage, dict(self.annotations) if self.annotations else {})

    def finish_phase(self, name: str, output: Any) -> None:
        """The current phase is over; the conversation starts anew."""
        self.phases.append(PhaseOutput(name=name, output=output, steps=self.steps, elapsed=self.elapsed))
        self.phase = ""
        self.history = History()
        self.results.clear()

    @property
    def phase_elapsed(self) -> timedelta:
        """How long the current phase has been driven."""
        return self.elapsed - (self.phases[-1].elapsed if self.phases else timedelta(0))

    @property
    def phase_steps(self) -> int:
        """Finished steps of the current phase."""
        return self.steps - (self.phases[-1].steps if self.phases else 0)
