"""The policies for calls of a framework's tools: effects, approvals, and what follows from an unknown outcome."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.agents.calls import Effect, InDoubt, Reconcile
from holdfast.core.agents.retry import Retry
from holdfast.core.agents.tool import Approval, check_approval, check_tool_retry
from holdfast.core.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """The policy for calls of one tool."""

    effect: Effect = Effect.ONCE
    reconcile: Reconcile | None = None
    in_doubt: InDoubt = "report"
    retry: Retry | None = None
    approval: Approval = False


#: For a call of a tool that does not exist.
UNKNOWN_TOOL_POLICY = ToolPolicy(Effect.PURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicies:
    """The policies for the tools of an agent, by tool name. The default effect is `once`."""

    #: By name, or a function of the framework's tool. `None`: its metadata decides.
    effects: Mapping[str, Effect | str] | Callable[[Any], Effect | str | None] = field(default_factory=dict)
    reconcile: Mapping[str, Reconcile] = field(default_factory=dict)
    in_doubt: Mapping[str, InDoubt] = field(default_factory=dict)
    retry: Mapping[str, Retry] = field(default_factory=dict)
    approvals: Mapping[str, Approval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, policy in self.retry.items():
            check_tool_retry(name, Effect.PURE, policy)
        for name, approval in self.approvals.items():
            check_approval(name, approval)
        if callable(self.effects):
            return
        for name, given in self.effects.items():
            effect = _parse_effect(name, given)
            if effect is not Effect.ONCE and name in self.reconcile:
                raise DefinitionError(f"tool {name} is {given}: only a once tool has anything to reconcile")
            check_tool_retry(name, effect, self.retry.get(name))

    def get_policy(
        self, name: str, tool: Any, metadata: Mapping[str, Any] | None = None, *, default: Effect = Effect.ONCE
    ) -> ToolPolicy:
        """Return the policy of a tool.

        Args:
            name: of the tool.
            tool: the framework's object, for a function that tells its effect. `None`: that function is not asked.
            metadata: what the tool says of itself.
            default: its effect if nothing else tells it.

        Raises:
            DefinitionError: the effect is none, or a `once` tool is to be retried.
        """
        metadata = metadata or {}
        given: Any = None
        if not callable(self.effects):
            given = self.effects.get(name)
        elif tool is not None:
            given = self.effects(tool)
        effect = _parse_effect(name, metadata.get("effect", default) if given is None else given)
        retry = check_tool_retry(name, effect, self.retry.get(name))
        in_doubt = self.in_doubt.get(name) or metadata.get("in_doubt", "report")
        return ToolPolicy(effect, self.reconcile.get(name), in_doubt, retry, self.approvals.get(name, False))


def _parse_effect(name: str, value: Any) -> Effect:
    try:
        return Effect(value)
    except ValueError:
        raise DefinitionError(f"tool {name}: effect is {value!r}, not one of {[*Effect]}") from None
