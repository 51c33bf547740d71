"""Crashes a host at a named place of a graph, as by SIGKILL, and resumes the run on another host."""

import asyncio

from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.store import RunStore
from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.agents.agent import Agent
from holdfast.core.run.result import Result
from holdfast.core.run.waiting import Answer
from holdfast.runtime.operations.mailing import Mailer

RUN = "r1"


class Crash:
    """Places in nodes and tools. The host dies at each of `points`, once and in this order."""

    def __init__(self, *points: str) -> None:
        self._points = list(points)
        self._host = SimulatedHost()
        self._crashed = False
        #: The places that were passed, on all hosts.
        self.passed: list[str] = []

    async def reach(self, point: str, *, results: int = 0) -> None:
        """Die here, or pass. What the run did so far is saved, as it would be a moment later anyway.

        Args:
            results: die only when this many other calls of the batch have ended.
        """
        self.passed.append(point)
        if self._points[:1] != [point]:
            return
        del self._points[0]
        execution = self._host.executor.get_attempt(RUN)
        assert execution is not None
        while len(execution.state.results) < results:  # noqa: ASYNC110 - no event announces a result
            await asyncio.sleep(0)
        await execution.saver.save(force=True)
        await self._host.crash()
        self._crashed = True
        execution.abandon(with_task=True)
        await asyncio.Event().wait()

    async def run(self, agent: Agent, store: RunStore | None = None, *, then: Agent | None = None) -> Result:
        """Run the agent, host after host, to its end. After the first crash `then` replaces it."""
        self._host = SimulatedHost(store)
        return await self._run_to_end(
            then or agent, asyncio.create_task(self._host.executor.run(agent, "go", run_id=RUN))
        )

    async def answer(self, call_id: str, answer: Answer) -> None:
        """Answer a call of the run, which waits."""
        await Mailer(self._host.inner, clock=SYSTEM_CLOCK).answer(RUN, call_id, answer)

    async def resume(self, agent: Agent, *points: str) -> Result:
        """Resume the run, and die at these points."""
        self._points, self._host = list(points), SimulatedHost(self._host.inner)
        return await self._run_to_end(agent, asyncio.create_task(self._host.resume(agent, RUN)))

    async def _run_to_end(self, agent: Agent, running: "asyncio.Task[Result]") -> Result:
        while True:
            await asyncio.wait([running])
            if not self._crashed:
                assert not self._points, f"no host died at {self._points}"
                return running.result()
            running.exception()  # of a host that is gone
            self._crashed, self._host = False, SimulatedHost(self._host.inner)
            running = asyncio.create_task(self._host.resume(agent, RUN))
