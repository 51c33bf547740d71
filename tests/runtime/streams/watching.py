"""Helpers of the tests that watch runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from holdfast import Reply, emit_text, tool
from holdfast.checkpoint.record import StoredRun
from holdfast.checkpoint.workers import Claim
from holdfast.core import emit_reasoning
from holdfast.events import Event, TextDelta
from holdfast.stores.memory import MemoryStore
from holdfast.stores.wrapper import StoreWrapper


@tool(effect="pure")
async def look(city: str) -> str:
    return f"{city} is warm"


async def collect(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


def get_types(events: Sequence[Event], *, durable: bool = True) -> list[str]:
    return [event.type for event in events if (event.cursor is not None) is durable]


async def wait_for(events: AsyncIterator[Event], fits: Callable[[Event], bool]) -> Event:
    async for event in events:
        if fits(event):
            return event
    raise AssertionError("the stream has ended")


def is_text(event: Event) -> bool:
    return isinstance(event, TextDelta)


class StreamingModel:
    """Writes words, one each time it is released, and then replies."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self._steps = asyncio.Semaphore(0)
        self.errors: list[Exception] = []

    def release(self, words: int = 1) -> None:
        for _ in range(words):
            self._steps.release()

    async def _proceed(self) -> None:
        await self._steps.acquire()
        if self.errors:
            raise self.errors.pop()

    async def __call__(self, messages: object, tools: object) -> Reply:
        await emit_reasoning("hm")
        for word in self._words:
            await self._proceed()
            await emit_text(word)
        await self._proceed()
        return Reply(text="".join(self._words).encode(errors="replace").decode())


class CountingStore(StoreWrapper):
    """Counts reads of journals and writes of drafts."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.drafts = self.loads = 0

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        self.drafts += 1
        await super().put_draft(claim, draft)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        self.loads += 1
        return await super().load(run_id, after=after)
