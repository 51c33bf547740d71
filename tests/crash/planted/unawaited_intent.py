"""A handle whose saves return before they are written."""

import asyncio
from typing import Any

from tests.crash.agents import single

from holdfast.checkpoint.handle import StoreCheckpointer

_save = StoreCheckpointer.save
_under_way: set[asyncio.Task[None]] = set()


async def _save_some_time(self: StoreCheckpointer, state: Any, *, urgent: bool = False) -> None:
    if self.claim is None:
        await _save(self, state, urgent=urgent)
        return

    async def later() -> None:
        # Long enough for a tool to start meanwhile: else a quick store hides the bug.
        await asyncio.sleep(0.2)
        await _save(self, state, urgent=urgent)

    task = asyncio.create_task(later())
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)


StoreCheckpointer.save = _save_some_time  # type: ignore[method-assign]

agent = single
