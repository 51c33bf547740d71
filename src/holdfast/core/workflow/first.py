"""`first`: the first of several branches wins, and the winner is recorded."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

from holdfast.core.errors import DefinitionError
from holdfast.core.execution.native_calls import FIRST
from holdfast.core.workflow.steps.step_calls import ValueStep
from holdfast.core.workflow.suspension import QUIET_PERIOD
from holdfast.core.workflow.workflow_run import BRANCH_CALLS, LOST_CALLS, WorkflowRun


class Race:
    """The branches of one `first`.

    A later attempt enters all branches again. Those that have lost find their recorded calls and make no new one: their
    steps can be undone, and an equal call after the race is another one.
    """

    def __init__(self, run: WorkflowRun, branches: dict[str, Awaitable[Any]], key: str | None = None) -> None:
        """Make a race.

        Raises:
            DefinitionError: there are no branches, or one of them has begun before the race.
        """
        if not branches:
            raise DefinitionError("first() got no branches: give each a name, as first(paid=..., late=...)")
        begun = [name for name, each in branches.items() if isinstance(each, asyncio.Future)]
        if begun:
            for each in branches.values():
                _close(each)
            raise DefinitionError(
                f"first() got a task or a gather() as {', '.join(begun)}, whose steps belong to no branch: give it an "
                "`async def` that awaits them"
            )
        self._run, self._branches, self._key = run, branches, key
        self._calls: dict[str, set[str]] = {name: set() for name in branches}
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    async def run(self) -> tuple[str, Any]:
        """Return the name and the value of the branch that ended first. It may raise instead."""
        try:
            step = ValueStep(self._run.attempt, FIRST, self._decide, {"branches": list(self._branches)}, self._key)
            recorded = self._run.find(step)
        except BaseException:
            for branch in self._branches.values():
                _close(branch)
            raise
        decided = None if recorded is None else step.load(recorded)
        for name, branch in self._branches.items():
            lost = decided["abandoned"] if decided is not None and decided["winner"] != name else None
            self._tasks[name] = asyncio.ensure_future(self._enter(name, branch, lost))
        tasks = {*self._tasks.values()}
        self._run.suspension.join(tasks)
        try:
            if decided is None:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                self._raise_if_unwound()
                decided = step.load(await self._run.make(step))
            else:
                await asyncio.wait({self._tasks[decided["winner"]]})
                if self._run.lacks_undo(decided["abandoned"]):
                    await asyncio.wait(tasks, timeout=QUIET_PERIOD.total_seconds())
            return decided["winner"], self._tasks[decided["winner"]].result()
        finally:
            self._run.suspension.end_join()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _enter(self, name: str, branch: Awaitable[Any], lost: list[str] | None) -> Any:
        BRANCH_CALLS.set((*BRANCH_CALLS.get(), self._calls[name]))
        if lost is not None:
            LOST_CALLS.set((LOST_CALLS.get() or frozenset()).union(lost))
        return await branch

    def _raise_if_unwound(self) -> None:
        for task in self._tasks.values():
            error = task.exception() if task.done() and not task.cancelled() else None
            if error is not None and not isinstance(error, Exception):
                raise error

    def _decide(self) -> dict[str, Any]:
        """Return what is recorded: the winner, and the calls of the others."""
        winner = next(name for name, task in self._tasks.items() if task.done())
        lost = set[str]().union(*(calls for name, calls in self._calls.items() if name != winner))
        return {"winner": winner, "abandoned": sorted(lost - self._calls[winner])}


def _close(branch: Awaitable[Any]) -> None:
    if isinstance(branch, Coroutine):
        branch.close()
    elif isinstance(branch, asyncio.Future):
        branch.add_done_callback(_retrieve)
        branch.cancel()


def _retrieve(branch: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of a cancelled `gather`. Otherwise asyncio logs it."""
    if not branch.cancelled():
        branch.exception()
