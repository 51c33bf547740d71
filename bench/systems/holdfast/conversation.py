"""A turn in a short and in a long conversation, and the first turn of a process that has to load the journal."""

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from bench.systems.holdfast.agent import store_url
from bench.systems.protocol import Job, Result

from holdfast import Agent, App, Reply
from holdfast.checkpoint.journal import Append, Entry
from holdfast.checkpoint.record import Mail, Receipt, Release, StoredRun
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.core import Message, ToolSchema
from holdfast.results import Conversation
from holdfast.stores import store_from_url
from holdfast.stores.wrapper import StoreWrapper

#: Second turns and late turns that are measured, in turn.
PAIRS = 40

QUESTION, ANSWER = "q" * 1000, "a" * 1000


class CountingStore(StoreWrapper):
    """Counts the bytes that it is given to write, and the entries that it returns."""

    def __init__(self, store: RunStore) -> None:
        super().__init__(store)
        self.written = self.loaded = 0

    async def append(self, claim: Claim, write: Append) -> None:
        self._count(write.entries, write.progress)
        await super().append(claim, write)

    async def release(self, claim: Claim, release: Release) -> None:
        self._count(release.entries, release.progress or b"")
        await super().release(claim, release)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        self._count((), mail.body)
        return await super().post(run_id, mail)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id, after=after)
        self.loaded += len(stored.entries)
        return stored

    def _count(self, entries: Sequence[Entry], rest: bytes) -> None:
        self.written += sum(len(entry.body) for entry in entries) + len(rest)


async def answer(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    return Reply(text=ANSWER)


AGENT = Agent(name="bench", model=answer)


class Cost(NamedTuple):
    """Seconds and bytes of one turn."""

    seconds: float
    written: int


async def conversation(job: Job) -> Result:
    store = CountingStore(store_from_url(store_url(job)))
    early, late = list[Cost](), list[Cost]()
    async with App([AGENT], store) as app:
        long = app.conversation(AGENT, "long")
        for _ in range(job["turns"] - 1):
            await long.send(QUESTION)
        for pair in range(PAIRS):
            short = app.conversation(AGENT, f"short-{pair}")
            await short.send(QUESTION)
            early.append(await _send(short, store))
            late.append(await _send(long, store))
    other = CountingStore(store_from_url(store_url(job)))
    async with App([AGENT], other) as app:
        cold = await _send(app.conversation(AGENT, "long"), other)
    return {
        "second_seconds": statistics.median(cost.seconds for cost in early),
        "second_bytes": statistics.mean(cost.written for cost in early),
        "late_seconds": statistics.median(cost.seconds for cost in late),
        "late_bytes": statistics.mean(cost.written for cost in late),
        "cold_seconds": cold.seconds,
    }


async def _send(chat: Conversation, store: CountingStore) -> Cost:
    began, before = time.perf_counter(), store.written
    await chat.send(QUESTION)
    return Cost(time.perf_counter() - began, store.written - before)
