"""What an agent's tools do to the world, said beside the agent or on the tools themselves.

Tools of holdfast's, such as those of a palette, for an agent of pydantic-ai.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import Tool as PydanticAITool
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.exceptions import ToolFailed as ModelVisibleError
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import FunctionToolset

from holdfast.core.effects import Effect, InDoubt, Reconcile
from holdfast.core.errors import DefinitionError, RunInterrupted, RunLost, RunParked, ToolFailed, format_error
from holdfast.core.tool import Tool

#: The effect of each tool by its name, or a function of its definition; `None` leaves it to the tool's metadata.
Effects = Mapping[str, Effect | str] | Callable[[ToolDefinition], Effect | str | None]


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """How calls of one tool are treated."""

    effect: Effect = Effect.ONCE
    reconcile: Reconcile | None = None
    in_doubt: InDoubt = "report"


#: Of a call that reaches no tool: the model made its name up.
UNKNOWN_TOOL_POLICY = ToolPolicy(Effect.PURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicies:
    """How calls of an agent's tools are treated. A tool that nobody says anything about is `once`."""

    effects: Effects = field(default_factory=dict)
    reconcile: Mapping[str, Reconcile] = field(default_factory=dict)
    in_doubt: Mapping[str, InDoubt] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if callable(self.effects):
            return
        for name, given in self.effects.items():
            if _parse_effect(name, given) is not Effect.ONCE and name in self.reconcile:
                raise DefinitionError(f"tool {name} is {given}: only a once tool has anything to reconcile")

    def get_policy(self, definition: ToolDefinition, holdfast_tools: Mapping[str, Tool]) -> ToolPolicy:
        """The policy of a tool as the model sees it. `own` are tools of holdfast's, which speak for themselves."""
        name = definition.name
        if name in holdfast_tools:
            return ToolPolicy(
                holdfast_tools[name].effect, holdfast_tools[name].reconcile, holdfast_tools[name].in_doubt
            )
        metadata: Mapping[str, Any] = definition.metadata or {}
        said = self.effects(definition) if callable(self.effects) else self.effects.get(name)
        said = metadata.get("effect", Effect.ONCE) if said is None else said
        in_doubt = self.in_doubt.get(name) or metadata.get("in_doubt", "report")
        return ToolPolicy(_parse_effect(name, said), self.reconcile.get(name), in_doubt)


def _parse_effect(name: str, value: Any) -> Effect:
    try:
        return Effect(value)
    except ValueError:
        raise DefinitionError(f"tool {name}: effect is {value!r}, not one of {[*Effect]}") from None


def make_toolset(tools: Mapping[str, Tool]) -> FunctionToolset[Any]:
    """The tools as pydantic-ai calls them."""
    return FunctionToolset(
        [
            PydanticAITool.from_schema(
                _make_function(tool),
                name=tool.name,
                description=tool.schema.description,
                json_schema=tool.schema.parameters,
                takes_ctx=False,
            )
            for tool in tools.values()
        ]
    )


def _make_function(tool: Tool) -> Callable[..., Awaitable[Any]]:
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
            raise ModelVisibleError(format_error(exc)) from exc

    return call
