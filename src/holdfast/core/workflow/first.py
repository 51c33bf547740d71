"""`first`: the first of several branches wins, and the winner is recorded."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

from holdfast.core.errors import DefinitionError
from holdfast.core.workflow.steps.step_calls import ValueStep
from holdfast.core.workflow.steps.step_log import FIRST
from holdfast.core.workflow.workflow_run import BRANCH_CALLS, WorkflowRun


class Race:
    """The branches of one `first`."""

    def __init__(self, run: WorkflowRun, branches: dict[str, Awaitable[Any]]) -> None:
        if not branches:
            raise DefinitionError("first() got no branches: give each a name, as first(paid=..., late=...)")
        self._run, self._branches = run, branches
        self._calls: dict[str, set[str]] = {name: set() for name in branches}

    async def run(self) -> tuple[str, Any]:
        """Return the name and the value of the branch that ended first. It may raise instead."""
        step = ValueStep(self._run.attempt, FIRST, self._decide, {"branches": list(self._branches)})
        recorded = self._run.find(step)
        if recorded is not None:
            return await self._repeat(step.load(recorded)["winner"])
        tasks = {name: asyncio.ensure_future(self._enter(name, each)) for name, each in self._branches.items()}
        self._tasks = tasks
        try:
            self._run.suspension.join({*tasks.values()})
            try:
                await asyncio.wait({*tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._run.suspension.end_join()
            self._raise_if_unwound()
            winner = step.load(await self._run.make(step))["winner"]
            return winner, tasks[winner].result()
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _enter(self, name: str, branch: Awaitable[Any]) -> Any:
        BRANCH_CALLS.set((*BRANCH_CALLS.get(), self._calls[name]))
        return await branch

    def _raise_if_unwound(self) -> None:
        for task in self._tasks.values():
            error = task.exception() if task.done() and not task.cancelled() else None
            if error is not None and not isinstance(error, Exception):
                raise error

    def _decide(self) -> dict[str, Any]:
        """Return what is recorded: the winner, and the calls of the others, which no later attempt repeats."""
        winner = next(name for name, task in self._tasks.items() if task.done())
        lost = set[str]().union(*(calls for name, calls in self._calls.items() if name != winner))
        return {"winner": winner, "abandoned": sorted(lost - self._calls[winner])}

    async def _repeat(self, winner: str) -> tuple[str, Any]:
        """Enter the branch that has won in an earlier attempt, and no other."""
        for name, branch in self._branches.items():
            if name != winner:
                _close(branch)
        return winner, await self._branches[winner]


def _close(branch: Awaitable[Any]) -> None:
    if isinstance(branch, Coroutine):
        branch.close()
    elif isinstance(branch, asyncio.Future):
        branch.cancel()
