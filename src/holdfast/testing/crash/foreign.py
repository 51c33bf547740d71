"""Agents that another loop than the native one drives: what can be known of their runs."""

import msgspec

from holdfast.checkpoint.codec import Progress, decode, read_checkpoint
from holdfast.checkpoint.record import StoredRun
from holdfast.run.agent import AgentSource
from holdfast.run.loop import Loop
from holdfast.testing.crash.notes import Answer, Journal


class ForeignLoops:
    """The loops of agents by the agents' names. Their messages are read by them alone."""

    def __init__(self) -> None:
        self._loops: dict[str, Loop] = {}

    def learn(self, source: AgentSource) -> None:
        loop: Loop | None = getattr(source, "loop", None)
        if loop is not None:
            self._loops[source.name] = loop

    def __contains__(self, agent_name: str) -> bool:
        return agent_name in self._loops

    def journal(self, stored: StoredRun) -> Journal:
        """A run as it is in the store, with what its loop makes of it."""
        record = stored.record
        journal = Journal(
            run_id=record.run_id,
            status=record.status.value,
            reason=record.reason,
            entries=stored.entries,
            steps=decode(record.progress, Progress).iteration,
        )
        loop = self._loops.get(record.agent_name)
        if loop is None:
            return journal
        state = read_checkpoint(stored, loop.codec).state
        calls = loop.finished_calls(state.history, state.results)
        answers = [Answer(call_id=call.call_id, body=msgspec.json.encode(call)) for call in calls]
        replies = state.iteration + bool(loop.pending_calls(state.history))
        return msgspec.structs.replace(journal, answers=answers, replies=replies)
