"""From an agent to its conversations: one, or one for each phase that is not finished yet."""

from collections.abc import Sequence
from typing import Any

from holdfast.clock import Timer
from holdfast.run.agent import Agent, Bounds, Phase, Profile
from holdfast.run.children import StartChild
from holdfast.run.drive import Drive
from holdfast.run.errors import NotKnownHere, RuntimeExceeded
from holdfast.run.live import LiveRun
from holdfast.run.loop import Loop
from holdfast.run.ports import RunEvent
from holdfast.run.tool import Tool


class Pipeline:
    """Drives one run of one agent through its phases, or through its one conversation."""

    def __init__(
        self, live: LiveRun, agent: Agent, loop: Loop, extra_tools: Sequence[Tool], start_child: StartChild
    ) -> None:
        self._live, self._agent, self._loop = live, agent, loop
        self._extra_tools, self._start_child = extra_tools, start_child
        #: The conversation of the phase that ran last, or the only one.
        self.messages = live.state.history

    async def run(self) -> Any:
        """The output of the conversation, or of the last phase."""
        prompt = self._live.info.prompt
        if not self._agent.phases:
            return await self._converse(self._agent.profile(), prompt)
        self._check_finished()
        phases = self._live.state.phases
        # Finished phases are skipped by position: two may share a name, and both have to run.
        for phase in self._agent.phases[len(phases) :]:
            await self._live.emit(RunEvent(kind="phase", iteration=self._live.state.iteration, name=phase.name))
            output = await self._run_phase(phase, phase.render(prompt, tuple(phases)))
            # What a throttle held back belongs to this phase's conversation, which ends here.
            await self._live.save(urgent=True)
            self._live.count_time()
            self.messages = self._live.state.history
            self._live.state.finish_phase(phase.name, self._loop.dump_output(output))
            await self._live.save(urgent=True)
        return self._loop.load_output(phases[-1].output)

    async def _run_phase(self, phase: Phase, prompt: str) -> Any:
        timer = self._end_after(phase.bounds)
        try:
            return await self._converse(self._agent.profile(phase), prompt)
        finally:
            if timer is not None:
                timer.cancel()

    async def _converse(self, profile: Profile, prompt: str) -> Any:
        drive = Drive(self._live, profile.with_tools(self._extra_tools), prompt, self._start_child)
        try:
            return await self._loop.drive(drive)
        finally:
            await drive.close()

    def _end_after(self, bounds: Bounds | None) -> Timer | None:
        if bounds is None or bounds.max_runtime is None:
            return None
        self._live.count_time()
        limit = bounds.max_runtime
        error = RuntimeExceeded(self._live.info.run_id, limit)
        return self._live.clock.call_later(limit - self._live.state.phase_elapsed, lambda: self._live.stop(error))

    def _check_finished(self) -> None:
        finished = [phase.name for phase in self._live.state.phases]
        known = [phase.name for phase in self._agent.phases]
        if known[: len(finished)] != finished:
            raise NotKnownHere(
                f"run {self._live.info.run_id} has finished the phases {finished}, but agent {self._agent.name} has "
                f"{known}: it is left for a process that knows them"
            )
