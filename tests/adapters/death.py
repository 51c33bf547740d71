"""Ends a host's life at a named place of a run, as by SIGKILL, and goes on in another."""

import asyncio
from typing import Any

from tests.life import Life

from holdfast.checkpoint.store import CheckpointStore
from holdfast.run.agent import Agent
from holdfast.run.outcome import Result

RUN = "r1"


class Deaths:
    """Places in tools and models, some of them deadly. Each kills once."""

    def __init__(self, *deadly: str) -> None:
        self._deadly = list(deadly)
        self._life: Life | None = None
        self._died = asyncio.Event()
        #: The places that were passed, in all lives.
        self.passed: list[str] = []

    async def here(self, place: str, *, results: int = 0) -> None:
        """Die here, or pass. What the run did so far is saved, as it would be a moment later anyway.

        Args:
            results: die only when so many other calls of the batch have ended.
        """
        self.passed.append(place)
        if self._deadly and self._deadly[0] == place and self._life is not None:
            del self._deadly[0]
            live = self._life.executor.live(RUN)
            assert live is not None
            while len(live.state.results) < results:  # noqa: ASYNC110 - nobody tells of a result
                await asyncio.sleep(0)
            await live.save(urgent=True)
            await self._life.die()
            self._died.set()
            await asyncio.Event().wait()

    async def run(
        self, agent: Agent, *, then: Agent | None = None, store: CheckpointStore | None = None, **options: Any
    ) -> Result:
        """Run the agent, life after life, until it comes to its end. After its first death it may be another."""
        life = self._life = Life(store, **options)
        running = asyncio.create_task(life.executor.run(agent, "go", run_id=RUN))
        return await self._see_through(running, life, then or agent, options)

    async def go_on(self, agent: Agent, *, store: CheckpointStore, **options: Any) -> Result:
        """The same for a run that somebody else left in the store."""
        life = self._life = Life(store, **options)
        return await self._see_through(asyncio.create_task(life.resume(agent, RUN)), life, agent, options)

    async def _see_through(
        self, running: "asyncio.Task[Result]", life: Life, agent: Agent, options: dict[str, Any]
    ) -> Result:
        while await self._dies(running):
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            self._died.clear()
            life = self._life = Life(life.inner, **options)
            running = asyncio.create_task(life.resume(agent, RUN))
        assert not self._deadly, f"nobody died at {self._deadly}"
        return await running

    async def _dies(self, running: "asyncio.Task[Result]") -> bool:
        died = asyncio.create_task(self._died.wait())
        await asyncio.wait({running, died}, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        return self._died.is_set()
