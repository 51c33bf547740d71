"""A delivery that says nothing, to be overridden where a test is about one of its methods."""

from typing import Any

from holdfast.run.info import RunInfo
from holdfast.run.ports import RunEvent


class Silent:
    async def progress(self, info: RunInfo, event: RunEvent) -> None: ...

    async def output(self, info: RunInfo, output: Any) -> None: ...

    async def error(self, info: RunInfo, error: BaseException) -> None: ...
