"""Ports of a tested App: what they are told is noted, and told to the user's own port if there is one."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from holdfast.run.call import CallContext
from holdfast.run.info import RunInfo
from holdfast.run.loop import Loop
from holdfast.run.ports import Audit, Budget, Delivery, Palette, Recorder, RunEvent
from holdfast.run.state import RunState
from holdfast.run.tool import Tool
from holdfast.run.usage import Usage
from holdfast.testing.crash.foreign import ForeignLoops
from holdfast.testing.crash.instrument import Instruments
from holdfast.testing.crash.notes import Counted, Delivered, Effected, Notebook, Said


class NotedDelivery:
    """Notes the output of the tested run; and where another loop calls tools, that is where a process may crash."""

    def __init__(
        self,
        run_id: str,
        loop: Loop,
        notebook: Notebook,
        instruments: Instruments,
        foreign: ForeignLoops,
        inner: Delivery | None,
    ) -> None:
        self._run_id, self._loop, self._notebook, self._inner = run_id, loop, notebook, inner
        self._instruments, self._foreign = instruments, foreign

    async def progress(self, info: RunInfo, event: RunEvent) -> None:
        if self._inner is not None:
            await self._inner.progress(info, event)
        if info.agent_name not in self._foreign:
            return
        run_id, step, call_id, tool = info.run_id, event.iteration, event.call_id, event.name
        if event.kind == "tool_start":
            self._instruments.start(run_id, step, call_id, tool, "")
        elif event.kind == "tool_end":
            self._instruments.end(run_id, step, call_id, tool, returned=not event.error)
        elif event.kind == "reply":
            self._notebook.write(Said(run_id=run_id, step=step))

    async def output(self, info: RunInfo, output: Any) -> None:
        if info.run_id == self._run_id:
            self._notebook.write(Delivered(output=self._loop.dump_output(output)))
        if self._inner is not None:
            await self._inner.output(info, output)

    async def error(self, info: RunInfo, error: BaseException) -> None:
        if self._inner is not None:
            await self._inner.error(info, error)


class NotedAudit:
    """Notes the effects of tools that another loop has called."""

    def __init__(self, notebook: Notebook, foreign: ForeignLoops, inner: Audit | None) -> None:
        self._notebook, self._foreign, self._inner = notebook, foreign, inner

    def begin(self, info: RunInfo, state: RunState) -> Recorder:
        inner = self._inner.begin(info, state) if self._inner is not None else None
        return NotedRecorder(self._notebook if info.agent_name in self._foreign else None, inner)


class NotedRecorder:
    """The audit of one run."""

    def __init__(self, notebook: Notebook | None, inner: Recorder | None) -> None:
        self._notebook, self._inner = notebook, inner

    def start(self, *, resumed: bool) -> None:
        if self._inner is not None:
            self._inner.start(resumed=resumed)

    def step(self, iteration: int, usage: Usage) -> None:
        if self._inner is not None:
            self._inner.step(iteration, usage)

    def tool(self, call: CallContext, *, effect: str, error: bool, took: timedelta) -> None:
        if self._notebook is not None:
            self._notebook.write(Effected(run_id=call.run_id, call_id=call.call_id, effect=effect))
        if self._inner is not None:
            self._inner.tool(call, effect=effect, error=error, took=took)

    def event(self, name: str, detail: str) -> None:
        if self._inner is not None:
            self._inner.event(name, detail)

    def close(self, status: str, usage: Usage, error: BaseException | None) -> None:
        if self._inner is not None:
            self._inner.close(status, usage, error)


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
