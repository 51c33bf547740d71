"""Policies for the tools of a pydantic-ai agent, and holdfast tools as a pydantic-ai toolset."""

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

#: The effect of each tool by name, or as a function of its definition. `None`: the tool's metadata decides.
Effects = Mapping[str, Effect | str] | Callable[[ToolDefinition], Effect | str | None]


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """The policy for calls of one tool."""

    effect: Effect = Effect.ONCE
    reconcile: Reconcile | None = None
    in_doubt: InDoubt = "report"


#: For a call of a tool that does not exist.
UNKNOWN_TOOL_POLICY = ToolPolicy(Effect.PURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicies:
    """The policies for an agent's tools. The default effect is `once`."""

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
        """Return the policy of a tool. A holdfast tool has its own."""
        name = definition.name
        if name in holdfast_tools:
            return ToolPolicy(
                holdfast_tools[name].effect, holdfast_tools[name].reconcile, holdfast_tools[name].in_doubt
            )
        metadata: Mapping[str, Any] = definition.metadata or {}
        effect = self.effects(definition) if callable(self.effects) else self.effects.get(name)
        effect = metadata.get("effect", Effect.ONCE) if effect is None else effect
        in_doubt = self.in_doubt.get(name) or metadata.get("in_doubt", "report")
        return ToolPolicy(_parse_effect(name, effect), self.reconcile.get(name), in_doubt)


def _parse_effect(name: str, value: Any) -> Effect:
    try:
        return Effect(value)
    except ValueError:
        raise DefinitionError(f"tool {name}: effect is {value!r}, not one of {[*Effect]}") from None


def make_toolset(tools: Mapping[str, Tool]) -> FunctionToolset[Any]:
    """Return the tools as a toolset of pydantic-ai."""
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
            raise  # from a child run: it stops the parent too
        except Exception as exc:  # user code may raise anything: it is reported to the model or the caller
            if tool.on_error == "raise":
                raise ToolFailed(tool.name, exc) from exc
            raise ModelVisibleError(format_error(exc)) from exc

    return call
