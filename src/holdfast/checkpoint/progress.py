"""Progress, AttemptRecord, AttemptLog: the small part of a run that every save replaces, and that listings read."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.checkpoint.workers import Claim
from holdfast.core.json_value import to_json_value
from holdfast.core.run.messages import NO_USAGE, Usage
from holdfast.core.run.state import (
    NO_CALLS,
    NO_FAULTS,
    NO_RETRY,
    Faults,
    PortData,
    RetryState,
    RunState,
    StepCalls,
    StepEnd,
)
from holdfast.core.run.status import AttemptEnd
from holdfast.core.run.turns import TurnInput

#: The number of attempts that a run keeps.
MAX_ATTEMPTS = 10


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One attempt to execute a run: from the claim of a worker to the end of that claim."""

    #: Counts from 1. A run keeps its newest attempts; those that ended by waiting are dropped first.
    number: int
    worker_id: str
    #: `None` if the worker died before its first save: no other process knows when it began.
    began_at: datetime | None = None
    #: Its last save: when the attempt ended, if it did.
    saved_at: datetime | None = None
    #: `None`: it works, or its process died; readers tell these apart.
    end: AttemptEnd | None = None


class AttemptLog(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of a run, as the process that holds its claim writes them."""

    earlier: tuple[AttemptRecord, ...] = ()
    #: `None`: the process does not execute the run.
    present: AttemptRecord | None = None

    @classmethod
    def begin(cls, worker_id: str, now: datetime, earlier: Sequence[AttemptRecord] = ()) -> "AttemptLog":
        """Begin an attempt. Its first save records it.

        If there are too many, one that ended by waiting is dropped first: a run may wait a thousand times, and crashes
        matter more.
        """
        kept = list(earlier)
        number = kept[-1].number + 1 if kept else 1
        while len(kept) >= MAX_ATTEMPTS:
            kept.remove(next((attempt for attempt in kept if attempt.end is AttemptEnd.WAITING), kept[0]))
        present = AttemptRecord(number=number, worker_id=worker_id, began_at=now, saved_at=now)
        return cls(earlier=tuple(kept), present=present)

    @classmethod
    def resume(cls, claim: Claim, now: datetime, earlier: Sequence[AttemptRecord]) -> "AttemptLog":
        """Begin the next attempt of a run, which `claim` may have taken from a worker that died."""
        last = earlier[-1] if earlier else None
        if claim.taken_from is None:
            if last is not None and last.end is None and last.saved_at == last.began_at:
                earlier = earlier[:-1]  # a concurrency limit kept the process that made the run from executing it
        elif last is None or last.end is not None or last.worker_id != claim.taken_from:
            died = AttemptRecord(number=last.number + 1 if last is not None else 1, worker_id=claim.taken_from)
            earlier = (*earlier, died)
        return cls.begin(claim.worker_id, now, earlier)

    def at_create(self) -> tuple[AttemptRecord, ...]:
        """Return the attempts for the write that creates the run. It may leave the run queued."""
        return () if self.present is None else (self.present,)

    def at_save(self, now: datetime, end: AttemptEnd | None = None) -> tuple[AttemptRecord, ...]:
        """Return the attempts for a save. `end`: how the current one ends with it."""
        present = self.present
        if present is None:
            return self.earlier
        saved = AttemptRecord(
            number=present.number, worker_id=present.worker_id, began_at=present.began_at, saved_at=now, end=end
        )
        return (*self.earlier, saved)


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Progress of a run. Stored beside the journal, replaced by every write, shown in listings.

    The fields have the names and meanings of `RunState`.
    """

    steps: int = 0
    own_usage: Usage = NO_USAGE
    child_usage: Usage = NO_USAGE
    elapsed: timedelta = timedelta(0)
    #: Number of finished phases, and the name of the current one.
    phases: int = 0
    phase: str = ""
    #: Neither these nor `nudges` and `attempts` are in the progress of a `STEP` entry.
    calls: StepCalls = NO_CALLS
    retry: RetryState = NO_RETRY
    nudges: tuple[str, ...] = ()
    faults: Faults = NO_FAULTS
    port_data: dict[str, Any] = {}
    loop_data: Any = None
    undo_on_cancel: bool = False
    starts_runs: bool = False
    #: Only in conversations: the number of turns that have ended, the current turn, and the first entry of each of the
    #: newest turns, by message id.
    turns: int = 0
    turn: TurnInput | None = None
    recent_turns: dict[str, int] = {}
    #: The newest attempts to execute the run, the current one included.
    attempts: tuple[AttemptRecord, ...] = ()

    @property
    def usage(self) -> Usage:
        return self.own_usage + self.child_usage

    @classmethod
    def from_state(
        cls, state: RunState, recent_turns: dict[str, int], attempts: tuple[AttemptRecord, ...]
    ) -> "Progress":
        """Return the progress of a run.

        Raises:
            PayloadError: data of a port or of the loop has no JSON form.
        """
        return cls(
            steps=state.steps,
            own_usage=state.own_usage,
            child_usage=state.child_usage,
            elapsed=state.elapsed,
            phases=len(state.phases),
            phase=state.phase,
            calls=state.calls,
            retry=state.retry,
            nudges=state.nudges,
            faults=state.faults,
            port_data=_dump_port_data(state.port_data) if state.port_data else {},
            loop_data=None if state.loop_data is None else _dump_loop_data(state.loop_data),
            undo_on_cancel=state.undo_on_cancel,
            starts_runs=state.starts_runs,
            turns=len(state.turns),
            turn=state.turn,
            recent_turns=recent_turns,
            attempts=attempts,
        )

    @classmethod
    def at_step_end(cls, state: RunState, end: StepEnd) -> "Progress":
        """Return the progress for a `STEP` entry, as of `end`: the run may have continued since."""
        return cls(
            steps=state.steps,
            own_usage=end.own_usage,
            child_usage=end.child_usage,
            elapsed=state.elapsed,
            phases=len(state.phases),
            phase=state.phase,
            retry=end.retry,
            faults=state.faults,
            port_data=_dump_port_data(end.port_data) if end.port_data else {},
            loop_data=None if end.loop_data is None else _dump_loop_data(end.loop_data),
            turns=len(state.turns),
        )


def _dump_port_data(data: PortData) -> dict[str, Any]:
    return to_json_value(dict(data), "the data of a port")  # type: ignore[no-any-return]


def _dump_loop_data(data: Any) -> Any:
    return to_json_value(data, "the data of the loop")
