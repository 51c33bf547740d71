"""The policies for calls of an agent's tools: their effects, and what follows from a call whose outcome is unknown."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agents import FunctionTool

from holdfast.core.effects import Effect, InDoubt, Reconcile
from holdfast.core.errors import DefinitionError
from holdfast.core.retry import Retry
from holdfast.core.tool import check_tool_retry

#: The effect of each tool by name, or as a function of the tool. `None`: the default.
Effects = Mapping[str, Effect | str] | Callable[[FunctionTool], Effect | str | None]


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """The policy for calls of one tool."""

    effect: Effect = Effect.ONCE
    reconcile: Reconcile | None = None
    in_doubt: InDoubt = "report"
    retry: Retry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicies:
    """The policies for the tools of an agent. The default effect is `once`."""

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
            effect = _parse_effect(name, given)
            if effect is not Effect.ONCE and name in self.reconcile:
                raise DefinitionError(f"tool {name} is {given}: only a once tool has anything to reconcile")
            check_tool_retry(name, effect, self.retry.get(name))

    def get_policy(self, tool: FunctionTool) -> ToolPolicy:
        """Return the policy of a tool.

        Raises:
            DefinitionError: the effect is none, or a `once` tool is to be retried.
        """
        return self._make_policy(tool.name, self.effects(tool) if callable(self.effects) else None, Effect.ONCE)

    def get_handoff_policy(self, tool_name: str, default: Effect) -> ToolPolicy:
        """Return the policy of a handoff. Raises as `get_policy`."""
        return self._make_policy(tool_name, None, default)

    def _make_policy(self, name: str, given: Any, default: Effect) -> ToolPolicy:
        if given is None and not callable(self.effects):
            given = self.effects.get(name)
        effect = default if given is None else _parse_effect(name, given)
        retry = check_tool_retry(name, effect, self.retry.get(name))
        return ToolPolicy(effect, self.reconcile.get(name), self.in_doubt.get(name, "report"), retry)


def _parse_effect(name: str, value: Any) -> Effect:
    try:
        return Effect(value)
    except ValueError:
        raise DefinitionError(f"tool {name}: effect is {value!r}, not one of {[*Effect]}") from None
