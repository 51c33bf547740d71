"""Tools of holdfast's, such as those of a palette, for an agent of pydantic-ai."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic_ai import Tool as PydanticAITool
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.exceptions import ToolFailed as ModelIsTold
from pydantic_ai.toolsets import FunctionToolset

from holdfast.run.errors import RunInterrupted, RunLost, RunParked, ToolFailed, described
from holdfast.run.tool import Tool


def as_toolset(tools: Mapping[str, Tool]) -> FunctionToolset[Any]:
    """The tools as pydantic-ai calls them."""
    return FunctionToolset(
        [
            PydanticAITool.from_schema(
                _function(tool),
                name=tool.name,
                description=tool.schema.description,
                json_schema=tool.schema.parameters,
                takes_ctx=False,
            )
            for tool in tools.values()
        ]
    )


def _function(tool: Tool) -> Callable[..., Awaitable[Any]]:
    async def call(**given: Any) -> Any:
        try:
            arguments = tool.check(given)
        except ValueError as exc:
            raise ModelRetry(f"The arguments do not fit: {exc}. The tool was not called.") from exc
        try:
            return await tool.call(arguments)
        except (RunInterrupted, RunParked, RunLost):
            raise  # of a child run: what stopped the child stops its parent
        except Exception as exc:  # the user's code may raise anything; the model or the caller is told
            if tool.on_error == "raise":
                raise ToolFailed(tool.name, exc) from exc
            raise ModelIsTold(described(exc)) from exc

    return call
