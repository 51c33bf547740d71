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
from holdfast.core.errors import DefinitionError, ToolFailed, format_error
from holdfast.core.execution.attempts import call_tool
from holdfast.core.execution.run import RunExecution
from holdfast.core.retry import Retry
from holdfast.core.tool import Tool, check_tool_retry
from holdfast.core.tool_context import current_call

#: The effect of each tool by name, or as a function of its definition. `None`: the tool's metadata decides.
Effects = Mapping[str, Effect | str] | Callable[[ToolDefinition], Effect | str | None]


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """The policy for calls of one tool."""

    effect: Effect = Effect.ONCE
    reconcile: Reconcile | None = None
    in_doubt: InDoubt = "report"
    retry: Retry | None = None


#: For a call of a tool that does not exist.
UNKNOWN_TOOL_POLICY = ToolPolicy(Effect.PURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicies:
    """The policies for an agent's tools. The default effect is `once`."""

    effects: Effects = field(default_factory=dict)
    reconcile: Mapping[str, Reconcile] = field(default_factory=dict)
    in_doubt: Mapping[str, InDoubt] = field(default_factory=dict)
    retry: Mapping[str, Retry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, policy in self.retry.items():
            check_tool_retry(name, Effect.PURE, policy)
        if callable(self.effects):
            return
        for name, given in self.effects.items():
            if _parse_effect(name, given) is not Effect.ONCE and name in self.reconcile:
                raise DefinitionError(f"tool {name} is {given}: only a once tool has anything to reconcile")
            check_tool_retry(name, _parse_effect(name, given), self.retry.get(name))

    def get_policy(self, definition: ToolDefinition, holdfast_tools: Mapping[str, Tool]) -> ToolPolicy:
        """Return the policy of a tool. A holdfast tool has its own.

        Raises:
            DefinitionError: the effect is none, or a `once` tool is to be retried.
        """
        name = definition.name
        if name in holdfast_tools:
            return ToolPolicy(
                holdfast_tools[name].effect, holdfast_tools[name].reconcile, holdfast_tools[name].in_doubt
            )
        metadata: Mapping[str, Any] = definition.metadata or {}
        effect = self.effects(definition) if callable(self.effects) else self.effects.get(name)
        effect = metadata.get("effect", Effect.ONCE) if effect is None else effect
        in_doubt = self.in_doubt.get(name) or metadata.get("in_doubt", "report")
        effect = _parse_effect(name, effect)
        retry = check_tool_retry(name, effect, self.retry.get(name))
        return ToolPolicy(effect, self.reconcile.get(name), in_doubt, retry)


def _parse_effect(name: str, value: Any) -> Effect:
    try:
        return Effect(value)
    except ValueError:
        raise DefinitionError(f"tool {name}: effect is {value!r}, not one of {[*Effect]}") from None


def make_toolset(tools: Mapping[str, Tool], run: RunExecution) -> FunctionToolset[Any]:
    """Return the tools as a toolset of pydantic-ai, for one run."""
    return FunctionToolset(
        [
            PydanticAITool.from_schema(
                _make_function(tool, run),
                name=tool.name,
                description=tool.schema.description,
                json_schema=tool.schema.parameters,
                takes_ctx=False,
            )
            for tool in tools.values()
        ]
    )


def _make_function(tool: Tool, run: RunExecution) -> Callable[..., Awaitable[Any]]:
    async def call(**given: Any) -> Any:
        try:
            tool.check(given)
        except ValueError as exc:
            raise ModelRetry(f"The arguments do not fit: {exc}. The tool was not called.") from exc
        try:
            # Checked again for each attempt: the tool may have changed the arguments of an earlier one.
            return await call_tool(run, tool, current_call().call_id, lambda: tool.call(tool.check(given)))
        except Exception as exc:  # user code may raise anything: it is reported to the model or the caller
            if run.is_resumable_after(exc):
                raise  # from a child run, or the tool parks the run or announces a shutdown
            if tool.on_error == "raise":
                raise ToolFailed(tool.name, exc) from exc
            raise ModelVisibleError(format_error(exc)) from exc

    return call
