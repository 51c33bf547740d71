"""The cost of a turn in a short and in a long conversation: turn 2 against turn 200 and later, on SQLite, interleaved.

Time of `send` until its result, and bytes that the store is given to write: entries, progress and mail. The last line
is the first turn of a process that has not executed the long conversation before: it loads the journal.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast import Agent, App, Conversation, Message, Reply, ToolSchema, store_from_url
from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.journal import Append, Entry
from holdfast.checkpoint.mail import Mail, Receipt
from holdfast.checkpoint.record import Release, StoredRun
from holdfast.checkpoint.store import CheckpointStore
from holdfast.stores.wrapper import StoreWrapper

ROOT = Path(__file__).parent.parent.parent

#: Turns of the long conversation before the measured ones, and the number of pairs that are measured.
LONG, PAIRS = 199, 40

QUESTION, ANSWER = "q" * 1000, "a" * 1000


class CountingStore(StoreWrapper):
    """Counts the bytes that it is given to write, and the entries that it returns."""

    def __init__(self, store: CheckpointStore) -> None:
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


async def measure(url: str) -> tuple[list[Cost], list[Cost], float]:
    """Return the costs of second turns and of late turns, and the seconds of a late turn in another process."""
    store = CountingStore(store_from_url(url))
    early, late = list[Cost](), list[Cost]()
    async with App([AGENT], store) as app:
        long = app.conversation(AGENT, "long")
        for _ in range(LONG):
            await long.send(QUESTION)
        for pair in range(PAIRS):
            short = app.conversation(AGENT, f"short-{pair}")
            await short.send(QUESTION)
            early.append(await _send(short, store))
            late.append(await _send(long, store))
    other = CountingStore(store_from_url(url))
    async with App([AGENT], other) as app:
        cold = await _send(app.conversation(AGENT, "long"), other)
    return early, late, cold.seconds


async def _send(chat: Conversation, store: CountingStore) -> Cost:
    began, before = time.perf_counter(), store.written
    await chat.send(QUESTION)
    return Cost(time.perf_counter() - began, store.written - before)


def main() -> None:
    """Print milliseconds and bytes of a turn, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    early, late, cold = list[Cost](), list[Cost](), list[float]()
    for _ in range(parser.parse_args().rounds):
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as folder:
            second, later, first = asyncio.run(measure(f"sqlite:{folder}/runs.db"))
        early, late, cold = early + second, late + later, [*cold, first]
    seconds = [statistics.median(cost.seconds for cost in costs) for costs in (early, late)]
    written = [statistics.mean(cost.written for cost in costs) for costs in (early, late)]
    for name, took, size in zip(("turn 2", f"turns {LONG + 1}-{LONG + PAIRS}"), seconds, written, strict=True):
        print(f"{name:<14} {took * 1000:6.2f} ms, {size:,.0f} bytes")
    print(f"ratio of time {seconds[1] / seconds[0]:.2f}, of bytes {written[1] / written[0]:.2f}")
    print(f"a late turn in another process {statistics.median(cold) * 1000:.2f} ms")


if __name__ == "__main__":
    main()
