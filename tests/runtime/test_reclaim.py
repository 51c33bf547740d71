"""A worker that lost a run in the middle of a long call, and then claims it again."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Reply, tool
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.workers import Claim
from holdfast.core import Message
from holdfast.stores.memory import MemoryStore


class CountingStore(MemoryStore):
    """Counts the runs that were taken."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    async def claim_next(self, worker_id: str, **options: Any) -> Sequence[Claim]:
        claims = await super().claim_next(worker_id, **options)
        self.taken += len(claims)
        return claims


async def _answer(messages: Sequence[Message]) -> Reply:
    return Reply(text=str(getattr(messages[-1], "content", "")))


async def test_what_it_drove_under_the_lost_claim_is_ended() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    agent = Agent(name="agent", model=ScriptedModel(tool_reply(call("one", "wait")), _answer), tools=[wait])
    store = CountingStore()
    async with App([agent], store, worker=False) as app:
        serving = asyncio.create_task(app.serve())
        run_id = await app.submit(agent, "wait")
        await started.wait()
        # Another worker takes the run, and goes down in good order before it has done anything.
        claim = await store.claim(run_id, "another", steal=True)
        await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        result = await app.result(run_id)
        assert ended.is_set()
        assert "Unknown outcome" in result.output
        assert store.taken == 2
        await app.shutdown()
        await serving
