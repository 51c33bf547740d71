"""The program for systems whose workflows are functions that name their steps."""

import asyncio
from collections.abc import Awaitable, Callable

from bench.scorecard.ledger import BATCH, EFFECTS, Ledger
from bench.scorecard.programs.command import sleep_for_turn

#: Runs a function once and records its result under a name.
Step = Callable[[str, Callable[[], Awaitable[str]]], Awaitable[str]]


async def run_program(ledger: Ledger, step: Step, wait_for_approval: Callable[[], Awaitable[object]]) -> str:
    """Take the steps in order, wait before the payment, and take those of the batch concurrently."""

    async def take(effect: str) -> str:
        async def perform() -> str:
            if effect in BATCH:
                await sleep_for_turn(effect)
            return ledger.perform(effect)

        return await step(effect, perform)

    for effect in EFFECTS[:5]:
        await take(effect)
    await wait_for_approval()
    await take("pay")
    await take("model-3")
    await asyncio.gather(*map(take, BATCH))
    return await take(EFFECTS[-1])
