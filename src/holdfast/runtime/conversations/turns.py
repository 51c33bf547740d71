"""The turns of a stored conversation."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal

from holdfast.checkpoint.codec import Progress
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.turns import JournaledTurn, read_turns
from holdfast.core.errors import TurnFailed
from holdfast.core.execution.loop import Loop
from holdfast.core.message import NO_USAGE, Usage
from holdfast.core.result import OutputT, OutputT_co
from holdfast.core.turn import TurnStatus


@dataclass(frozen=True, kw_only=True)
class Turn(Generic[OutputT_co]):
    """One message to a conversation and what followed."""

    run_id: str
    #: The id of the message that began the turn.
    turn_id: str
    #: Counts up from 1.
    number: int
    status: TurnStatus | Literal["running"]
    #: The beginning of the message.
    prompt: str
    #: Of a turn that is done.
    output: OutputT_co
    #: Of a turn that failed or was interrupted.
    error: str
    #: Of this turn alone, child runs included. Zero while it is running.
    usage: Usage
    steps: int
    began_at: datetime
    ended_at: datetime | None
    #: The messages of this turn, as the agent's loop keeps them. Empty if a later turn compacted the history.
    messages: Sequence[Any]


class TurnReader(Generic[OutputT]):
    """Reads the turns of one conversation."""

    def __init__(self, store: CheckpointStore, run_id: str, loop: "Loop[OutputT]") -> None:
        self._store, self._run_id, self._loop = store, run_id, loop

    async def read_all(self) -> list[Turn[Any]]:
        """Return the turns that have begun, oldest first."""
        stored = await self._store.load(self._run_id)
        return [self._make_turn(turn) for turn in read_turns(self._run_id, stored.entries, self._loop.codec)]

    async def find_ended(self, progress: Progress, turn_id: str, *, scan: bool) -> JournaledTurn | None:
        """Return the turn of a message, if it has ended. For a recent one the journal before it is not read.

        Args:
            scan: read the whole journal for a turn that is not recent.
        """
        seq = progress.recent_turns.get(turn_id)
        if is_present(progress, turn_id) or (seq is None and not scan):
            return None
        stored = await self._store.load(self._run_id, after=-1 if seq is None else seq - 1)
        turns = read_turns(self._run_id, stored.entries, self._loop.codec)
        ended = (turn for turn in turns if turn.record is not None and turn.record.input.includes(turn_id))
        return next(ended, None)

    def finish(self, turn: JournaledTurn) -> Turn[OutputT]:
        """Return a turn that is done.

        Raises:
            TurnFailed: it ended without an answer.
        """
        if turn.record is not None and turn.record.status != "done":
            raise TurnFailed(self._run_id, turn.input.turn_id, turn.record.error)
        return self._make_turn(turn)

    def _make_turn(self, turn: JournaledTurn) -> Turn[OutputT]:
        began, record = turn.input, turn.record
        output: Any = None
        if record is not None and record.status == "done":
            output = self._loop.load_output(record.output)
        return Turn(
            run_id=self._run_id,
            turn_id=began.turn_id,
            number=began.number,
            status="running" if record is None else record.status,
            prompt=began.prompt,
            output=output,
            error="" if record is None else record.error,
            usage=NO_USAGE if record is None else record.usage,
            steps=0 if record is None else record.steps,
            began_at=began.at,
            ended_at=None if record is None else record.at,
            messages=tuple(turn.messages),
        )


def is_present(progress: Progress, turn_id: str) -> bool:
    """Whether the message belongs to the turn under way."""
    return progress.turn is not None and progress.turn.includes(turn_id)
