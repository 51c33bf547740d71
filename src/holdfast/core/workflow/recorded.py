"""What the code of a workflow calls beside tools: other agents, plain functions, the time, random values, races."""

import asyncio
import functools
import inspect
import typing
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool_context import find_workflow
from holdfast.core.errors import DefinitionError, RunError
from holdfast.core.run.run_events import ItemProgress
from holdfast.core.validation import check_count, check_text
from holdfast.core.workflow.first import Race
from holdfast.core.workflow.function.function_thread import FunctionThread
from holdfast.core.workflow.steps.step_calls import AgentStep, FunctionStep, ValueStep
from holdfast.core.workflow.undo import Saga
from holdfast.core.workflow.workflow_run import BRANCH_CALLS, WorkflowRun
from holdfast.ids import draw_between, make_uuid


def current_workflow(name: str) -> WorkflowRun:
    """Return the workflow whose function calls this.

    Raises:
        RunError: no function of a workflow calls it, or a tool does, which is a step itself.
    """
    run = find_workflow()
    if isinstance(run, FunctionThread):
        raise RunError(f"{name}() works in a plain workflow only in an async function that block_on() runs")
    if not isinstance(run, WorkflowRun):
        raise RunError(f"{name}() works only in the function of a workflow, and not inside of its tools")
    return run


async def first(key: str | None = None, /, **branches: Awaitable[Any]) -> tuple[str, Any]:
    """Wait for the first of several steps or coroutines, and return its name and value. The others are cancelled.

    The winner is recorded: in a later attempt of the run the other branches make no new step. If the winner raised an
    exception, it is raised.

    Args:
        key: tells it apart from a race of another task whose branches have the same names.
        branches: steps or coroutines, by name.

    Raises:
        RunError: not called by the function of a workflow.
        DefinitionError: a branch is a task or a `gather`, which has begun before.
        AmbiguousStep: another task has a race with the same names, and neither has a key.
    """
    return await Race(current_workflow("first"), branches, key).run()


def saga(key: str | None = None) -> Saga:
    """Undo the steps that are made within `async with saga():` if it is left by an exception, the last step first.

    Each undo is recorded and retried. Then the exception is raised, and the function may catch it and continue. When a
    whole workflow fails, its steps are undone without this.

    Args:
        key: tells it apart from the sagas of other tasks.

    Raises:
        RunError: not called by the function of a workflow.
    """
    return Saga(current_workflow("saga"), key=key)


async def map_items(
    function: Callable[[Any], Awaitable[Any]],
    items: Iterable[Any],
    *,
    limit: int = 8,
    return_exceptions: bool = False,
) -> list[Any]:
    """Call `function` with each item, at most `limit` at the same time, and return the results in order.

    The steps within are recorded one by one: a resumed workflow makes those that are missing. Watchers get a
    `CustomEvent` named `progress`, up to a hundred times: an `ItemProgress`, which `App.get` and `show` show too.

    Args:
        return_exceptions: return the exception of an item as its result. Otherwise it cancels the others.

    Raises:
        RunError: not called by the function of a workflow.
    """
    run = current_workflow("map_items")
    check_count("limit", limit)
    slots = asyncio.Semaphore(limit)

    progress = MapProgress(run, str(getattr(function, "name", getattr(function, "__name__", "items"))))

    async def call_one(item: Any) -> Any:
        async with slots:
            try:
                return await progress.call(function, item)
            except Exception as exc:  # user code may raise anything
                if not return_exceptions:
                    raise
                return exc

    tasks = [asyncio.ensure_future(call_one(item)) for item in items]
    progress.total = len(tasks)
    run.suspension.join({*tasks})
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        run.suspension.end_join()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class MapProgress:
    """Shows how many items of a `map_items` are done, those that an earlier attempt has done at once."""

    def __init__(self, run: WorkflowRun, name: str) -> None:
        self._run, self._name = run, name
        self._recorded = frozenset(run.steps.results)
        self._done = self._failed = 0
        self.total = 0

    async def call(self, function: Callable[[Any], Awaitable[Any]], item: Any) -> Any:
        """Call the function, and show that the item is done if that made a new step."""
        calls: set[str] = set()
        BRANCH_CALLS.set((*BRANCH_CALLS.get(), calls))  # in the task of the item
        try:
            result = await function(item)
        except Exception:  # user code may raise anything
            self._failed += 1
            await self._show(is_new=not calls <= self._recorded)
            raise
        await self._show(is_new=not calls <= self._recorded)
        return result

    async def _show(self, *, is_new: bool) -> None:
        self._done += 1
        is_shown = self._done == self.total or self._done % max(1, self.total // 100) == 0
        if is_shown and is_new and not self._run.suspension.is_unwinding:
            shown = ItemProgress(name=self._name, done=self._done, total=self.total, failed=self._failed)
            await self._run.show_progress(shown)


async def call(
    name: str,
    function: Callable[..., Any],
    *args: Any,
    effect: Effect | str = Effect.ONCE,
    key: str | None = None,
    **kwargs: Any,
) -> Any:
    """Call a function, sync or async, as a step with this name. Its arguments and its result are plain data.

    The result is made from its stored form by the return annotation of the function, if it has one.

    Args:
        effect: of calling it twice, as for tools.
        key: finds the step again, instead of the arguments.

    Raises:
        RunError: not called by the function of a workflow.
        StepFailed: the function raised an exception.
    """
    run = current_workflow("call")
    check_text("the name of a step", name)
    try:
        known_effect = Effect(effect)
    except ValueError:
        raise DefinitionError(f"effect is {effect!r}, not one of {[*Effect]}") from None
    if known_effect is Effect.TRANSACTION:
        raise DefinitionError(f"step {name}: make a tool of it, with @tool(effect='transaction')")
    return await run.call(
        FunctionStep(
            run.attempt,
            functools.partial(function, *args, **kwargs),
            tool=name,
            arguments={"args": list(args), **kwargs} if args else kwargs,
            effect=known_effect,
            key=key,
            returns=_find_return_type(function),
        )
    )


def _find_return_type(function: Callable[..., Any]) -> Any:
    try:
        found = typing.get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except (NameError, TypeError, AttributeError):
        return Any
    return found.get("return", Any)


async def run_agent(
    agent: AgentSource | str, prompt: str = "", *, inputs: Mapping[str, Any] | None = None, key: str | None = None
) -> Any:
    """Run an agent or another workflow as a child run, and return its output. A resumed workflow attaches to it.

    Args:
        agent: or the name of one that the App knows.

    Raises:
        RunError: not called by the function of a workflow.
        StepFailed: the child run failed.
    """
    run = current_workflow("run_agent")
    return await run.call(AgentStep(run.attempt, run.attempt.services.find_agent(agent), prompt, inputs, key))


async def now() -> datetime:
    """Return the current time, recorded: the same in every attempt of the run."""
    run = current_workflow("now")
    step = ValueStep(run.attempt, "now", run.attempt.services.clock.now)
    step.returns = datetime
    return await run.call(step)  # type: ignore[no-any-return]


async def uuid4() -> uuid.UUID:
    """Return a random UUID, recorded: the same in every attempt of the run."""
    run = current_workflow("uuid4")
    step = ValueStep(run.attempt, "uuid4", make_uuid)
    step.returns = uuid.UUID
    return await run.call(step)  # type: ignore[no-any-return]


async def random() -> float:
    """Return a random number from 0 to 1, recorded: the same in every attempt of the run."""
    run = current_workflow("random")
    step = ValueStep(run.attempt, "random", functools.partial(draw_between, 0.0, 1.0))
    step.returns = float
    return await run.call(step)  # type: ignore[no-any-return]
