"""The checkpointer of a run without a store."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.core.message import Usage
from holdfast.core.state import RunState


class NullCheckpointer:
    """The checkpointer of a run without a store: every method succeeds and does nothing."""

    async def save(self, state: RunState, *, force: bool = False) -> None:
        return

    async def verify_claim(self) -> None:
        return

    async def complete(self, output: Any, usage: Usage) -> bool:
        return True

    async def wait(
        self, reason: str, wake_at: datetime | None, wake_on: Sequence[str], *, cancel_children: bool = False
    ) -> bool:
        return True

    async def fail(self, error: BaseException, *, may_have_children: bool = False) -> None:
        return

    async def park(self, reason: str) -> None:
        return

    async def release(self, reason: str = "", delay: timedelta = timedelta(0), *, strike: bool = False) -> None:
        return
