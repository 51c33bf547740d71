"""Ports of a tested App: what they are told is noted, and told to the user's own port if there is one."""

from collections.abc import Sequence
from typing import Any

from holdfast.run.info import RunInfo
from holdfast.run.loop import Loop
from holdfast.run.ports import Budget, Delivery, Palette, RunEvent
from holdfast.run.state import RunState
from holdfast.run.tool import Tool
from holdfast.testing.crash.instrument import Instruments
from holdfast.testing.crash.notes import Counted, Delivered, Notebook


class NotedDelivery:
    """Notes the output of the tested run."""

    def __init__(self, run_id: str, loop: Loop, notebook: Notebook, inner: Delivery | None) -> None:
        self._run_id, self._loop, self._notebook, self._inner = run_id, loop, notebook, inner

    async def progress(self, info: RunInfo, event: RunEvent) -> None:
        if self._inner is not None:
            await self._inner.progress(info, event)

    async def output(self, info: RunInfo, output: Any) -> None:
        if info.run_id == self._run_id:
            self._notebook.write(Delivered(output=self._loop.dump_output(output)))
        if self._inner is not None:
            await self._inner.output(info, output)

    async def error(self, info: RunInfo, error: BaseException) -> None:
        if self._inner is not None:
            await self._inner.error(info, error)


class NotedBudget:
    """Notes what runs have used."""

    def __init__(self, notebook: Notebook, inner: Budget | None) -> None:
        self._notebook, self._inner = notebook, inner

    async def check(self, info: RunInfo, state: RunState) -> None:
        if self._inner is not None:
            await self._inner.check(info, state)

    async def commit(self, info: RunInfo, state: RunState) -> None:
        self._notebook.write(
            Counted(run_id=info.run_id, steps=state.iteration, own=state.own_usage, children=state.child_usage)
        )
        if self._inner is not None:
            await self._inner.commit(info, state)


class NotedPalette:
    """Gives instrumented tools."""

    def __init__(self, inner: Palette, instruments: Instruments) -> None:
        self._inner, self._instruments = inner, instruments

    async def tools(self, info: RunInfo) -> Sequence[Tool]:
        return [self._instruments.tool(each) for each in await self._inner.tools(info)]
