"""A finished fan-out, kept in the store so that its responses can be compared, and one of them picked."""

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from holdfast.checkpoint.codec import Outcome, encode
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.store import RunStore
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Usage
from holdfast.fanout.checkpoint import FanoutCheckpoint
from holdfast.fanout.snapshot import ModelResponse
from holdfast.fanout.storage import AGENT_NAME, encode_phase, read_stored_checkpoint
from holdfast.runtime.finished_runs import store_finished_run
from holdfast.runtime.operations.verdicts import Pick, read_pick


class FinishedFanout(msgspec.Struct, frozen=True, kw_only=True):
    """The responses of a fan-out whose models have all finished."""

    prompt: str
    responses: tuple[ModelResponse, ...]
    #: What a person has picked on the web UI or over the HTTP API.
    pick: Pick | None = None

    @property
    def picked(self) -> ModelResponse | None:
        """The response that a person has picked."""
        picked = self.pick.result if self.pick is not None else None
        return next((response for response in self.responses if response.model_id == picked), None)


async def load_finished(store: RunStore, run_id: str) -> FinishedFanout:
    """Return a finished fan-out of the open `store`. `Fanout.finished_id` is its id.

    Raises:
        RunNotFound: there is no such run, or its retention has passed.
        CorruptCheckpoint: it is not a fan-out.
    """
    checkpoint = read_stored_checkpoint(await store.load(run_id))
    responses = tuple(snapshot.to_response() for snapshot in checkpoint.snapshots)
    return FinishedFanout(prompt=checkpoint.prompt, responses=responses, pick=await read_pick(store, run_id))


async def keep_finished(store: RunStore, checkpoint: FanoutCheckpoint, retention: timedelta) -> str:
    """Keep the responses of a fan-out that has finished, as a run that is done. Return its id.

    The id is the same if this is repeated after a crash. It is not the id of the fan-out, which may run again.
    """
    info = RunInfo(
        run_id=f"{checkpoint.fanout_id[:170]}:{checkpoint.timestamp:%Y%m%d-%H%M%S-%f}",
        agent_name=AGENT_NAME,
        prompt=checkpoint.prompt,
        labels={"fanout": checkpoint.fanout_id},
    )
    answered = sum(snapshot.completed for snapshot in checkpoint.snapshots)
    outcome = Outcome(
        output=f"{answered} of {len(checkpoint.snapshots)} models have answered",
        usage=_sum_usage([snapshot.to_response() for snapshot in checkpoint.snapshots]),
    )
    phase = encode_phase(encode(checkpoint))
    await store_finished_run(store, info, outcome, retention, [(EntryKind.PHASE, phase)])
    return info.run_id


def _sum_usage(responses: Sequence[ModelResponse]) -> Usage:
    return Usage(
        input_tokens=sum(response.input_tokens for response in responses),
        output_tokens=sum(response.output_tokens for response in responses),
        reasoning_tokens=sum(response.reasoning_tokens for response in responses),
        cost_usd=sum(response.cost_usd for response in responses),
        tool_calls=sum(sum(response.tool_calls.values()) for response in responses),
    )
