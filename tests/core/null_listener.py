"""A listener that ignores everything; tests override one of its methods."""

from typing import Any

from holdfast.core.run.info import RunInfo
from holdfast.core.run.run_events import Event


class NullListener:
    async def on_event(self, info: RunInfo, event: Event) -> None: ...

    async def on_output(self, info: RunInfo, output: Any) -> None: ...

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...
