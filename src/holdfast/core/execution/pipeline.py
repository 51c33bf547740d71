"""From an agent to its conversations: one, or one for each phase that is not finished yet."""

from collections.abc import Sequence
from typing import Any

from holdfast.clock import Timer
from holdfast.core.agent import Agent, Bounds, Phase, Profile
from holdfast.core.errors import MissingDefinition, RuntimeExceeded
from holdfast.core.execution.child_runs import StartChild
from holdfast.core.execution.loop import Loop
from holdfast.core.execution.run import RunExecution
from holdfast.core.execution.steps import StepContext
from holdfast.core.ports import RunEvent
from holdfast.core.state import RunState
from holdfast.core.tool import Tool


class Pipeline:
    """Drives one run of one agent through its phases, or through its one conversation."""

    def __init__(
        self, run: RunExecution, agent: Agent, loop: Loop, extra_tools: Sequence[Tool], start_child: StartChild
    ) -> None:
        self._run, self._agent, self._loop = run, agent, loop
        self._extra_tools, self._start_child = extra_tools, start_child
        #: The conversation of the phase that ran last, or the only one.
        self.messages = run.state.history

    async def run(self) -> Any:
        """The output of the conversation, or of the last phase."""
        prompt, state = self._run.info.prompt, self._run.state
        if self._run.resumed:
            self._check_phases()
        if not self._agent.phases:
            state.phase = ""  # one in which nothing was said may have been begun
            return await self._run_loop(self._agent.profile(), prompt)
        phases = state.phases
        # Finished phases are skipped by position: two may share a name, and both have to run.
        for phase in self._agent.phases[len(phases) :]:
            state.phase = phase.name
            await self._run.emit(RunEvent(kind="phase", step=state.steps, name=phase.name))
            output = await self._run_phase(phase, phase.render(prompt, tuple(phases)))
            # What a throttle held back belongs to this phase's conversation, which ends here.
            await self._run.save(force=True)
            self._run.update_elapsed()
            self.messages = state.history
            state.finish_phase(phase.name, self._loop.dump_output(output))
            await self._run.save(force=True)
        return self._loop.load_output(phases[-1].output)

    async def _run_phase(self, phase: Phase, prompt: str) -> Any:
        timer = self._start_runtime_timer(phase.bounds)
        try:
            return await self._run_loop(self._agent.profile(phase), prompt)
        finally:
            if timer is not None:
                timer.cancel()

    async def _run_loop(self, profile: Profile, prompt: str) -> Any:
        drive = StepContext(self._run, profile.with_tools(self._extra_tools), prompt, self._start_child)
        try:
            return await self._loop.run(drive)
        finally:
            await drive.close()

    def _start_runtime_timer(self, bounds: Bounds | None) -> Timer | None:
        if bounds is None or bounds.max_runtime is None:
            return None
        self._run.update_elapsed()
        limit = bounds.max_runtime
        error = RuntimeExceeded(self._run.info.run_id, limit)
        return self._run.clock.call_later(limit - self._run.state.phase_elapsed, lambda: self._run.stop(error))

    def _check_phases(self) -> None:
        trouble = describe_unknown_phases(self._agent, self._run.state)
        if trouble:
            raise MissingDefinition(
                f"run {self._run.info.run_id} has {trouble}: it is left for a process that knows its phases"
            )


def describe_unknown_phases(agent: Agent, state: RunState) -> str:
    """What a saved run has done of phases that the agent does not have in their places; empty if it can go on.

    A phase in which nothing was said yet may become another one. A conversation that is not known to be in a phase,
    because the agent had none or the name was not kept, goes on as what the agent has in its place.
    """
    finished = [phase.name for phase in state.phases]
    known = [phase.name for phase in agent.phases]
    begun = finished
    if state.history and (finished or state.phase):
        begun = [*finished, state.phase or (known[len(finished) :] or ["?"])[0]]
    if known[: len(begun)] == begun:
        return ""
    under_way = f" and is in {begun[-1]!r}" if begun is not finished else ""
    return f"finished the phases {finished}{under_way}, but agent {agent.name} has {known}"
