"""What an agent's tools do to the world, said beside the agent or on the tools themselves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.tools import ToolDefinition

from holdfast.run.effects import Effect, InDoubt, Reconcile
from holdfast.run.errors import DefinitionError
from holdfast.run.tool import Tool

#: The effect of each tool by its name, or a function of its definition; `None` leaves it to the tool's metadata.
Effects = Mapping[str, Effect | str] | Callable[[ToolDefinition], Effect | str | None]


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """How calls of one tool are treated."""

    effect: Effect = Effect.ONCE
    reconcile: Reconcile | None = None
    in_doubt: InDoubt = "tell"


#: Of a call that reaches no tool: the model made its name up.
NO_TOOL = ToolPolicy(Effect.PURE)


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
            if _effect(name, given) is not Effect.ONCE and name in self.reconcile:
                raise DefinitionError(f"tool {name} is {given}: only a once tool has anything to reconcile")

    def of(self, definition: ToolDefinition, own: Mapping[str, Tool]) -> ToolPolicy:
        """The policy of a tool as the model sees it. `own` are tools of holdfast's, which speak for themselves."""
        name = definition.name
        if name in own:
            return ToolPolicy(own[name].effect, own[name].reconcile, own[name].in_doubt)
        metadata: Mapping[str, Any] = definition.metadata or {}
        said = self.effects(definition) if callable(self.effects) else self.effects.get(name)
        said = metadata.get("effect", Effect.ONCE) if said is None else said
        in_doubt = self.in_doubt.get(name) or metadata.get("in_doubt", "tell")
        return ToolPolicy(_effect(name, said), self.reconcile.get(name), in_doubt)


def _effect(name: str, said: Any) -> Effect:
    try:
        return Effect(said)
    except ValueError:
        raise DefinitionError(f"tool {name}: effect is {said!r}, not one of {[*Effect]}") from None
