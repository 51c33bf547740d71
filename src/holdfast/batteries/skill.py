"""skill: stored, versioned procedures that any agent may call as a tool, as a child run.

What can go wrong with skills.

Skills: stored, reusable procedures that any agent may call.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from holdfast.batteries.definitions.markdown import from_markdown, to_markdown
from holdfast.batteries.definitions.repository import DefinitionRepository, DefinitionSource, check_name
from holdfast.batteries.definitions.store import DefinitionStore, MalformedDefinition, MemoryDefinitions
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.agent import Agent, ModelTiers
from holdfast.core.agent_tools import to_tool_name
from holdfast.core.effects import Effect
from holdfast.core.errors import DefinitionError
from holdfast.core.tool import Tool
from holdfast.core.tool_context import current_call

__all__ = ["Parameter", "Skill", "SkillError", "SkillSource", "Skills", "export_skill", "import_skill"]


class SkillError(DefinitionError):
    """A skill cannot be lowered into an agent or a tool as it is."""


_PYTHON_TYPES: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool}


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a skill has to be given."""

    name: str
    type: Literal["string", "integer", "number", "boolean"] = "string"
    description: str = ""
    required: bool = True


class Skill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A procedure, as plain data."""

    owner: str
    name: str
    description: str = ""
    parameters: list[Parameter] = []
    #: What to do, step by step, in words.
    procedure: str = ""
    model_tier: str = ""
    #: Names of tools that the host has.
    tools: list[str] = []

    def __post_init__(self) -> None:
        check_name(self.owner, self.name)
        for parameter in self.parameters:
            if not parameter.name.isidentifier():
                raise MalformedDefinition(f"{parameter.name!r} cannot be a parameter: use a plain name")


class Skills(DefinitionRepository[Skill]):
    """Creates, edits, shows and shares skills, and makes agents and tools of them."""

    def __init__(
        self,
        tiers: ModelTiers,
        tools: Iterable[Tool] = (),
        *,
        store: DefinitionStore | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a collection of skills.

        Args:
            tiers: the models that model tiers stand for.
            tools: what skills may name.
            store: keeps the definitions; without one in memory, for this process alone.
        """
        super().__init__(Skill, self._build_agent, store or MemoryDefinitions("skill"), clock)
        self._tiers = tiers
        self._tools = {tool.name: tool for tool in tools}

    async def save(self, definition: Skill) -> int:
        """Keep the skill as it is now. Returns its new version, for new runs; those that have begun keep theirs.

        Raises:
            HoldfastError: it cannot be lowered into an agent, or into a tool, as it is. Nothing was kept.
        """
        _make_tool(definition, lambda: None)
        return await super().save(definition)

    async def source(self, owner: str, name: str) -> "SkillSource":
        """What an App takes as an agent, and what gives other agents a tool."""
        return SkillSource(self, await self._get_newest(owner, name))

    def _build_agent(self, definition: Skill) -> Agent:
        """The agent that follows the skill's procedure."""
        unknown = [name for name in definition.tools if name not in self._tools]
        if unknown:
            known = ", ".join(sorted(self._tools)) or "none"
            raise SkillError(f"skill {definition.owner}/{definition.name} names the tools {unknown}: known are {known}")
        return Agent(
            name=f"{definition.owner}/{definition.name}",
            instructions=definition.procedure,
            model=self._tiers.model(definition.model_tier),
            model_tier=definition.model_tier,
            tools=[self._tools[name] for name in definition.tools],
        )


class SkillSource(DefinitionSource[Skill]):
    """A skill as an App's agent, and as a tool of other agents."""

    def tool(self) -> Tool:
        """The skill as a tool, with the parameters it has now. A call is a child run, which it meets if made again."""

        async def call(**arguments: Any) -> object:
            prompt = "\n".join(f"{name}: {value}" for name, value in arguments.items() if value is not None)
            return (await current_call().run(self, prompt)).output

        return _make_tool(self.definition, call)


def _make_tool(skill: Skill, call: Callable[..., Any]) -> Tool:
    """`call` as a tool with the name and the parameters of the skill.

    Raises:
        SkillError: a parameter is named as Python allows none, or as another.
    """
    name = f"{skill.owner}/{skill.name}"
    try:
        _set_signature(call, skill.parameters)
        return Tool(call, name=to_tool_name(name), description=skill.description, effect=Effect.IDEMPOTENT)
    except (ValueError, DefinitionError) as exc:
        raise SkillError(f"skill {name} cannot be a tool: {exc}") from exc


def _set_signature(function: Any, parameters: Sequence[Parameter]) -> None:
    """Make `function` look as if it had been written with these parameters: tools read their schema from there."""
    shown = []
    function.__annotations__ = {}
    for parameter in parameters:
        # Made by subscription at run time, which no type checker follows.
        kind = _PYTHON_TYPES[parameter.type] if parameter.required else _PYTHON_TYPES[parameter.type] | None
        annotated: Any = Annotated
        hint = annotated[kind, msgspec.Meta(description=parameter.description)]
        default = inspect.Parameter.empty if parameter.required else None
        shown.append(
            inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
        )
        function.__annotations__[parameter.name] = hint
    function.__signature__ = inspect.Signature(shown)


def export_skill(skill: Skill) -> str:
    """The skill as Markdown: its procedure, with everything else as front matter."""
    return to_markdown(skill, "procedure")


def import_skill(document: str) -> Skill:
    """The skill that a Markdown document describes.

    Raises:
        MalformedDefinition: the document is not one.
    """
    return from_markdown(document, Skill, "procedure")
