"""Crashes a host at a named place of a run, as by SIGKILL, and resumes the run on another host."""

import asyncio
from typing import Any

from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.store import RunStore
from holdfast.core.agents.agent import Agent
from holdfast.core.run.result import Result

RUN = "r1"


class CrashSimulator:
    """Places in tools and models, some of them deadly. Each kills once."""

    def __init__(self, *deadly: str, saves: bool = True) -> None:
        """Die at these places, in this order.

        Args:
            saves: what the run did before its death is saved, as it would be a moment later anyway.
        """
        self._crash_points, self._saves = list(deadly), saves
        self._host: SimulatedHost | None = None
        self._crashed = asyncio.Event()
        #: The places that were passed, on all hosts.
        self.passed: list[str] = []

    async def reach(self, point: str, *, results: int = 0) -> None:
        """Die here, or pass.

        Args:
            results: die only when this many other calls of the batch have ended.
        """
        self.passed.append(point)
        if self._crash_points and self._crash_points[0] == point and self._host is not None:
            del self._crash_points[0]
            execution = self._host.executor.get_attempt(RUN)
            assert execution is not None
            while len(execution.state.results) < results:  # noqa: ASYNC110 - no event announces a result
                await asyncio.sleep(0)
            if self._saves:
                await execution.saver.save(force=True)
            await self._host.crash()
            self._crashed.set()
            await asyncio.Event().wait()

    async def run(
        self, agent: Agent, *, then: Agent | None = None, store: RunStore | None = None, **options: Any
    ) -> Result:
        """Run the agent, host after host, to its end. After the first crash `then` replaces it."""
        host = self._host = SimulatedHost(store, **options)
        running = asyncio.create_task(host.executor.run(agent, "go", run_id=RUN))
        return await self._run_to_end(running, host, then or agent, options)

    async def resume(self, agent: Agent, *, store: RunStore, **options: Any) -> Result:
        """The same for a run that another process left in the store."""
        host = self._host = SimulatedHost(store, **options)
        return await self._run_to_end(asyncio.create_task(host.resume(agent, RUN)), host, agent, options)

    async def _run_to_end(
        self, running: "asyncio.Task[Result]", host: SimulatedHost, agent: Agent, options: dict[str, Any]
    ) -> Result:
        while await self._wait_for_crash(running):
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            self._crashed.clear()
            host = self._host = SimulatedHost(host.inner, **options)
            running = asyncio.create_task(host.resume(agent, RUN))
        assert not self._crash_points, f"no process died at {self._crash_points}"
        return await running

    async def _wait_for_crash(self, running: "asyncio.Task[Result]") -> bool:
        died = asyncio.create_task(self._crashed.wait())
        await asyncio.wait({running, died}, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        return self._crashed.is_set()
