"""Everything a run needs to go on."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.run.history import History
from holdfast.run.message import NATIVE_CODEC, MessageCodec
from holdfast.run.usage import NO_USAGE, Usage


class PhaseOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A finished phase."""

    name: str
    output: Any
    #: The run's iteration and driven time when the phase ended.
    iteration: int
    elapsed: timedelta = timedelta(0)


class StepEnd(msgspec.Struct, frozen=True, gc=False):
    """What had been used and noted when a step was finished. A save may come later, when there is more of both."""

    own_usage: Usage = NO_USAGE
    child_usage: Usage = NO_USAGE
    notes: dict[str, Any] = {}


_NO_STEP = StepEnd()


@dataclass(slots=True, kw_only=True)
class RunState:
    """What a run consists of at this moment. The loop changes it; a checkpointer reads it when it saves."""

    codec: MessageCodec = NATIVE_CODEC
    #: The conversation of the current phase.
    history: History = field(default_factory=History)
    #: Finished steps of the whole run.
    iteration: int = 0
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
    notes: dict[str, Any] = field(default_factory=dict)
    #: Of the last step that was finished in this process.
    step_end: StepEnd = _NO_STEP

    @property
    def usage(self) -> Usage:
        """All that was used for this run, its children included."""
        return self.own_usage + self.child_usage

    def finish_step(self) -> None:
        """The reply and all its tool results are in the history."""
        self.iteration += 1
        self.results.clear()
        self.history.finished = len(self.history)
        self.step_end = StepEnd(self.own_usage, self.child_usage, dict(self.notes) if self.notes else {})

    def finish_phase(self, name: str, output: Any) -> None:
        """The current phase is over; the conversation starts anew."""
        self.phases.append(PhaseOutput(name=name, output=output, iteration=self.iteration, elapsed=self.elapsed))
        self.phase = ""
        self.history = History()
        self.results.clear()

    @property
    def phase_elapsed(self) -> timedelta:
        """How long the current phase has been driven."""
        return self.elapsed - (self.phases[-1].elapsed if self.phases else timedelta(0))

    @property
    def phase_iteration(self) -> int:
        """Finished steps of the current phase."""
        return self.iteration - (self.phases[-1].iteration if self.phases else 0)
