"""A listener that ignores everything; tests override one of its methods."""

from typing import Any

from holdfast.core.info import RunInfo
from holdfast.core.ports import RunEvent


class NullListener:
    async def on_event(self, info: RunInfo, event: RunEvent) -> None: ...

    async def on_output(self, info: RunInfo, output: Any) -> None: ...

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...
