"""The program for agents: what the model asks for, decided by the effects that have a result."""

import asyncio
from collections.abc import Collection

from bench.scorecard.ledger import BATCH, Ledger

#: Each call of the model, and the effects that it asks for. The looks follow one another, so an agent asks its model
#: before each of them. The ledger has these two calls too: one that is repeated counts.
SCRIPT = (
    ("model-1", ("look-a",)),
    ("model-1b", ("look-b",)),
    ("model-1c", ("look-c",)),
    ("model-2", ("pay",)),
    ("model-3", BATCH),
    ("model-4", ()),
)
#: How long the model takes to answer. Real ones take longer.
MODEL_SECONDS = 0.15


async def ask_model(ledger: Ledger, finished: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """Call the model: return its text, and the effects that it asks for."""
    await asyncio.sleep(MODEL_SECONDS)
    name, wanted = next((name, wanted) for name, wanted in SCRIPT if not set(wanted) & set(finished) or not wanted)
    return ledger.perform(name), wanted
