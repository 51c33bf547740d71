"""`@workflow`: a function whose runs survive their processes."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, overload

from holdfast.core.agents.agent import Agent, Bounds
from holdfast.core.agents.agent_tools import to_tool_name
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import current_call, find_workflow
from holdfast.core.errors import DefinitionError
from holdfast.core.run.info import RunInfo
from holdfast.core.run.result import OutputT
from holdfast.core.validation import check_callable
from holdfast.core.workflow.function.workflow_function import WorkflowFunction
from holdfast.core.workflow.restart import Restart
from holdfast.core.workflow.workflow_loop import WorkflowLoop
from holdfast.core.workflow.workflow_run import WorkflowRun

#: A workflow takes more steps than an agent: each call is one.
DEFAULT_BOUNDS = Bounds(max_steps=10_000)


class Workflow(Generic[OutputT]):
    """A durable function. It is an agent source: give it to an App, run, submit or schedule it by name."""

    def __init__(
        self,
        function: Callable[..., Awaitable[OutputT | Restart] | OutputT | Restart],
        *,
        name: str | None = None,
        description: str | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
        agent_id: str = "",
    ) -> None:
        """Make a workflow of a function. One that is not async runs in a thread, and uses `block_on`.

        Args:
            name: interrupted runs find their function by it. By default that of the function.
            description: for a model that may call it as a tool. By default the docstring.
            bounds: of a run. Each recorded call is a step.
            agent_id: stored with each run; tells versions of one function apart.

        Raises:
            DefinitionError: the function is a generator, or a parameter has no annotation.
        """
        check_callable("the function of a workflow", function)
        self.name: str = name if name is not None else str(getattr(function, "__name__", ""))
        self.description: str = description if description is not None else inspect.getdoc(function) or ""
        self.agent_id = agent_id
        self.function = function
        self.loop = WorkflowLoop(WorkflowFunction(function, self.name))
        self._agent: Agent[OutputT] = Agent(name=self.name, loop=self.loop, bounds=bounds, agent_id=agent_id)
        functools.update_wrapper(self, function, updated=())

    async def build(self, info: RunInfo) -> Agent[OutputT]:
        """Return the agent whose loop calls the function."""
        return self._agent

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself: nothing is recorded, for tests and as a part of another workflow.

        Raises:
            DefinitionError: a plain function is called by an async workflow, whose event loop it would block.
        """
        if self.loop.function.in_thread and isinstance(find_workflow(), WorkflowRun):
            raise DefinitionError(f"workflow {self.name} is a plain function: call it with run_agent()")
        return self.function(*args, **kwargs)

    def to_tool(self) -> Tool:
        """Return the workflow as a tool of an agent. Each call is a child run; a repeated call attaches to it."""

        @functools.wraps(self.function)
        async def call(**arguments: Any) -> Any:
            prompt = arguments.pop("prompt", "")
            return (await current_call().run(self, prompt, inputs=arguments)).output

        return Tool(call, name=to_tool_name(self.name), description=self.description, effect=Effect.IDEMPOTENT)

    def __repr__(self) -> str:
        return f"Workflow({self.name!r})"


class WorkflowDecorator:
    """Makes a workflow of a function, with options."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    @overload
    def __call__(self, function: Callable[..., Awaitable[OutputT | Restart]], /) -> Workflow[OutputT]: ...
    @overload
    def __call__(self, function: Callable[..., OutputT | Restart], /) -> Workflow[OutputT]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return Workflow(function, **self._options)


@overload
def workflow(function: Callable[..., Awaitable[OutputT | Restart]], /) -> Workflow[OutputT]: ...
@overload
def workflow(function: Callable[..., OutputT | Restart], /) -> Workflow[OutputT]: ...
@overload
def workflow(
    *, name: str | None = None, description: str | None = None, bounds: Bounds = DEFAULT_BOUNDS, agent_id: str = ""
) -> WorkflowDecorator: ...
def workflow(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a `Workflow` of a function, as a decorator with or without options, which are those of `Workflow`."""
    return WorkflowDecorator(options) if function is None else Workflow(function, **options)
