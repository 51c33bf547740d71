"""A checkpointer whose saves return before they are written."""

import asyncio
from typing import Any

from tests.testing.crash.agents import single

from holdfast.checkpoint.checkpointer import StoreCheckpointer

_save = StoreCheckpointer.save
_pending_saves: set[asyncio.Task[None]] = set()


async def _save_later(self: StoreCheckpointer, state: Any, *, force: bool = False) -> None:
    if self.claim is None:
        await _save(self, state, force=force)
        return

    async def later() -> None:
        # Long enough for a tool to start in the meantime; else a fast store hides the bug.
        await asyncio.sleep(0.2)
        await _save(self, state, force=force)

    task = asyncio.create_task(later())
    _pending_saves.add(task)
    task.add_done_callback(_pending_saves.discard)


StoreCheckpointer.save = _save_later  # type: ignore[method-assign]

agent = single
