"""What one attempt executes: the loop of its agent, the phases that are not finished, or one turn."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from holdfast.clock import Timer
from holdfast.core.agents.agent import Agent, AgentSource, Bounds, Phase, Profile
from holdfast.core.agents.tool import Tool
from holdfast.core.errors import DefinitionError, MissingDefinition, RuntimeExceeded
from holdfast.core.execution.attempt import Attempt, log
from holdfast.core.execution.step import StepContext, take_messages
from holdfast.core.loop import Loop
from holdfast.core.run.info import WORKFLOW_LOOP_NAME, RunInfo
from holdfast.core.run.mail import Mail
from holdfast.core.run.messages import NATIVE_CODEC, Reply
from holdfast.core.run.result import Result
from holdfast.core.run.run_events import PhaseStarted
from holdfast.core.run.state import RunState
from holdfast.core.run.turns import Totals, TurnMessage


async def build_agent(source: AgentSource, info: RunInfo) -> Agent:
    """Build the agent of a run, and those of its phases."""
    agent = await source.build(info)
    if all(phase.agent is None for phase in agent.phases):
        return agent
    phases = [
        phase if phase.agent is None else replace(phase, agent=await phase.agent.build(info)) for phase in agent.phases
    ]
    return replace(agent, phases=phases)


def stop_later(attempt: Attempt, limit: timedelta, delay: timedelta) -> Timer:
    """Stop the attempt after this delay, because its run reaches the limit then."""
    return attempt.services.clock.call_later(
        delay, functools.partial(attempt.stop, RuntimeExceeded(attempt.info.run_id, limit))
    )


class Pipeline:
    """What one attempt of a run executes: its loop once, once for each phase that is not finished, or one turn."""

    def __init__(
        self, attempt: Attempt, agent: Agent, loop: Loop, extra_tools: Sequence[Tool], turn_mail: Mail | None
    ) -> None:
        self._attempt, self._agent, self._loop, self._extra_tools = attempt, agent, loop, extra_tools
        self._turn_mail = turn_mail
        #: The conversation of the last phase, or the only one.
        self._messages = attempt.state.history

    async def run(self) -> Any:
        """Return the output of the conversation, or of the last phase."""
        attempt, info = self._attempt, self._attempt.info
        if attempt.resumed and (unknown := describe_unknown_phases(self._agent, attempt.state)):
            raise MissingDefinition(
                f"run {attempt.info.run_id} has {unknown}: it is left for a process with those phases"
            )
        if attempt.info.conversation:
            return await self._run_turn()
        if not self._agent.phases:
            attempt.state.phase = ""  # an agent that had phases may have begun one without a message
            return await self._run_loop(self._loop, self._agent.profile(), info.prompt)
        finished = attempt.state.phases
        # Finished phases are skipped by position: two may share a name, and both have to run.
        phases = self._agent.phases
        if len(finished) >= len(phases):
            await self._drop_messages()
        for phase in phases[len(finished) :]:
            attempt.state.phase = phase.name
            await attempt.observers.publish(PhaseStarted(run_id=info.run_id, step=attempt.state.steps, name=phase.name))
            await self._run_phase(phase, phase.render(info, tuple(finished)), last=len(finished) == len(phases) - 1)
        return self._loop.load_output(finished[-1].output)

    async def _drop_messages(self) -> None:
        """Consume the messages of a run whose last phase was saved as finished: no conversation could read them."""
        attempt = self._attempt
        if texts := take_messages(attempt):
            log.warning("run %s: messages after its last phase are not read: %s", attempt.info.run_id, texts)
            await attempt.saver.save(force=True)

    async def _run_phase(self, phase: Phase, prompt: str | list[Any], *, last: bool) -> None:
        attempt, state, profile = self._attempt, self._attempt.state, self._agent.profile(phase)
        loop = self._loop if phase.agent is None else attempt.services.get_loop(phase.agent)
        if (kind := _find_other_kind(loop, state.history)) is not None:
            raise MissingDefinition(
                f"run {attempt.info.run_id} has begun its phase {phase.name} as {kind}: it is left to a process with it"
            )
        state.turn_totals = Totals(steps=self._count_other_steps(phase))
        timer = self._start_phase_timer(profile.phase_bounds)
        try:
            output = await self._run_loop(loop, profile, prompt)
        finally:
            if timer is not None:
                timer.cancel()
        # Progress that the save interval deferred belongs to this phase's conversation, which ends here.
        await attempt.saver.save(force=True)
        attempt.saver.update_elapsed()
        self._messages = state.history
        state.finish_phase(phase.name, loop.dump_output(output))
        if not last:  # the last one ends with the run, unless a message has come for its conversation
            await attempt.saver.save(force=True)

    def _count_other_steps(self, phase: Phase) -> int:
        """Return the finished steps that do not count towards the `max_steps` that hold for this phase."""
        finished = self._attempt.state.phases
        if phase.agent is not None:
            return finished[-1].steps if finished else 0
        ends = [0, *(each.steps for each in finished)]
        took = zip(self._agent.phases, ends, ends[1:], strict=False)
        return sum(end - start for each, start, end in took if each.agent is not None)

    async def _run_turn(self) -> Any:
        if self._agent.phases:
            raise DefinitionError(f"agent {self._agent.name} has phases: a conversation needs an agent without them")
        mail = self._turn_mail
        prompt = "" if mail is None else TurnMessage.from_mail(mail).prompt
        return await self._run_loop(self._loop, self._agent.profile(), prompt)

    async def _run_loop(self, loop: Loop, profile: Profile, prompt: str | list[Any]) -> Any:
        cancel = self._attempt.stop_state.undo_error
        if cancel is not None and loop.name != WORKFLOW_LOOP_NAME:
            raise cancel  # it has nothing to undo
        profile = profile.with_tools(self._extra_tools)
        context = StepContext(self._attempt, profile, prompt, turn_mail=self._turn_mail)
        try:
            if self._attempt.state.calls.waits:
                await context.waits.end_expired()
            output = await loop.run(context)
            if self._turn_mail is not None and context.begins:
                raise DefinitionError(f"agent {self._agent.name}: its loop does not support conversations")
            return output
        finally:
            await context.close()

    def _start_phase_timer(self, bounds: Bounds | None) -> Timer | None:
        if bounds is None or bounds.max_runtime is None:
            return None
        self._attempt.saver.update_elapsed()
        return stop_later(self._attempt, bounds.max_runtime, bounds.max_runtime - self._attempt.state.phase_elapsed)

    def make_result(self, output: Any) -> Result:
        state = self._attempt.state
        return Result(
            run_id=self._attempt.info.run_id,
            output=output,
            usage=state.usage,
            steps=state.steps,
            phases=tuple(state.phases),
            messages=self._messages,
        )


def _find_other_kind(loop: Loop, history: Sequence[Any]) -> str | None:
    """Return who has made the calls of a phase, a workflow or a model, if this loop is of the other kind."""
    calls = next((message.tool_calls for message in history if isinstance(message, Reply) and message.tool_calls), ())
    if not calls or loop.codec is not NATIVE_CODEC or (loop.name == WORKFLOW_LOOP_NAME) == bool(calls[0].effect):
        return None
    return "a workflow" if calls[0].effect else "a conversation with a model"


def describe_unknown_phases(agent: Agent, state: RunState) -> str:
    """Describe the phases of a saved run that the agent does not have in their places; empty if it can resume.

    A phase without messages may become another one. A conversation that is not known to belong to a phase continues
    as the phase that the agent has in its place.
    """
    finished = [phase.name for phase in state.phases]
    known = [phase.name for phase in agent.phases]
    begun = finished
    if state.history and (finished or state.phase):
        begun = [*finished, state.phase or (known[len(finished) :] or ["?"])[0]]
    if known[: len(begun)] == begun:
        return ""
    current = f" and is in {begun[-1]!r}" if begun is not finished else ""
    return f"finished the phases {finished}{current}, but agent {agent.name} has {known}"
