"""Whether a stored run would go on under the code at hand. Nothing is claimed, written or called."""

import msgspec

from holdfast.checkpoint.codec import Checkpoint, read_checkpoint
from holdfast.checkpoint.record import StoredRun
from holdfast.run.agent import Agent, AgentSource
from holdfast.run.effects import Effect
from holdfast.run.loop import PendingCall
from holdfast.run.native import loop_of
from holdfast.run.phases import unknown_phases


class AnyMessage:
    """A codec for messages of whatever loop: they are JSON, and what they mean does not matter here."""

    def encode(self, message: object) -> bytes:
        return msgspec.json.encode(message)

    def decode(self, body: bytes) -> object:
        return msgspec.json.decode(body)


ANY_MESSAGE = AnyMessage()


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run before it goes on."""

    #: Why it would not; empty if it would.
    trouble: str = ""
    #: Calls without a recorded result that must not be made again just so.
    in_doubt: list[str] = []


async def preflight(stored: StoredRun, source: AgentSource) -> Preflight:
    """Load the run as recovery would and compare it with its agent.

    Raises:
        CheckpointError: it cannot be loaded.
        Exception: whatever the agent's source raises when it is asked for the agent.
    """
    checkpoint = read_checkpoint(stored, loop_of(source).codec)
    agent = await source.build(checkpoint.meta.info())
    if unknown := unknown_phases(agent, checkpoint.state):
        return Preflight(trouble=f"it would be left alone: it has {unknown}")
    pending = _pending(agent, checkpoint)
    if agent.loop is not None:
        return Preflight(in_doubt=[f"{call.tool} {call.call_id}" for call in pending])
    finished = len(checkpoint.state.phases)
    tools = agent.profile(agent.phases[finished] if finished < len(agent.phases) else None).tools
    gone = sorted({call.tool for call in pending} - set(tools))
    doubtful = [
        f"{call.tool} {call.call_id}"
        for call in pending
        if call.tool in tools and tools[call.tool].effect is Effect.ONCE
    ]
    if gone and agent.removed_tools != "tell":
        fate = "left alone" if agent.removed_tools == "leave" else "parked"
        return Preflight(trouble=f"it would be {fate}: it calls {gone}, which the agent lacks", in_doubt=doubtful)
    return Preflight(in_doubt=doubtful)


def _pending(agent: Agent, checkpoint: Checkpoint) -> list[PendingCall]:
    state = checkpoint.state
    return [call for call in loop_of(agent).pending_calls(state.history) if call.call_id not in state.results]
