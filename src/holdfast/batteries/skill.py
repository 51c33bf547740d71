"""skill: stored, versioned procedures that any agent may call as a tool. A call is a child run.

`Skills(tiers, tools)` keeps them in memory, `store=VersionTable(tables, "skill")` in a database.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from holdfast.batteries.definitions.repository import (
    DefinitionRepository,
    DefinitionSource,
    check_name,
    from_markdown,
    to_markdown,
)
from holdfast.batteries.definitions.store import DefinitionStore, MalformedDefinition, MemoryDefinitions
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.agents.agent import Agent, ModelTiers
from holdfast.core.agents.agent_tools import to_tool_name
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.errors import DefinitionError

__all__ = ["Parameter", "Skill", "SkillError", "SkillSource", "Skills", "export_skill", "import_skill"]


class SkillError(DefinitionError):
    """No agent, or no tool, can be built from a skill.

    What to do: Correct the skill as the message says.
    """


_PYTHON_TYPES: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool}


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One parameter of a skill."""

    name: str
    type: Literal["string", "integer", "number", "boolean"] = "string"
    description: str = ""
    required: bool = True


class Skill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The definition of a procedure, as plain data."""

    owner: str
    name: str
    description: str = ""
    parameters: list[Parameter] = []
    #: The instructions, step by step.
    procedure: str = ""
    model_tier: str = ""
    #: Names of tools of the host.
    tools: list[str] = []

    def __post_init__(self) -> None:
        check_name(self.owner, self.name)
        for parameter in self.parameters:
            if not parameter.name.isidentifier():
                raise MalformedDefinition(f"{parameter.name!r} cannot be a parameter: use letters, digits and _")


class Skills(DefinitionRepository[Skill]):
    """Stores, lists and shares skills, and builds agents and tools from them."""

    def __init__(
        self,
        tiers: ModelTiers,
        tools: Iterable[Tool] = (),
        *,
        store: DefinitionStore | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Create a repository of skills.

        Args:
            tiers: the model of each model tier.
            tools: the tools that skills may name.
            store: keeps the definitions. Default: in memory, for this process only.
        """
        super().__init__(Skill, store or MemoryDefinitions("skill"), clock)
        self._tiers = tiers
        self._tools = {tool.name: tool for tool in tools}

    async def save(self, definition: Skill) -> int:
        """Store a new version and return its number. New runs use it; existing runs keep the version they have.

        Raises:
            HoldfastError: no agent, or no tool, can be built from it. Nothing was stored.
        """

        async def not_called() -> None: ...

        _make_tool(definition, not_called)  # raises if the parameters are invalid
        return await super().save(definition)

    async def source(self, owner: str, name: str) -> "SkillSource":
        """Return the skill as an agent for an App; its `tool` is for other agents."""
        return SkillSource(self, await self._get_newest(owner, name))

    def build_agent(self, definition: Skill) -> Agent:
        """Build the agent that follows the skill's procedure."""
        unknown = [name for name in definition.tools if name not in self._tools]
        if unknown:
            known = ", ".join(sorted(self._tools)) or "none"
            raise SkillError(
                f"skill {definition.owner}/{definition.name} names unknown tools {unknown}: known are {known}"
            )
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
        """Return the skill as a tool with its current parameters. A repeated call attaches to the same child run."""

        async def call(**arguments: Any) -> object:
            prompt = "\n".join(f"{name}: {value}" for name, value in arguments.items() if value is not None)
            return (await current_call().run(self, prompt)).output

        return _make_tool(self.definition, call)


def _make_tool(skill: Skill, call: Callable[..., Any]) -> Tool:
    """Return `call` as a tool with the name and the parameters of the skill.

    Raises:
        SkillError: a name is used twice, or cannot be a parameter of a Python function.
    """
    name = f"{skill.owner}/{skill.name}"
    try:
        _set_signature(call, skill.parameters)
        return Tool(call, name=to_tool_name(name), description=skill.description, effect=Effect.IDEMPOTENT)
    except (ValueError, DefinitionError) as exc:
        raise SkillError(f"skill {name} cannot be a tool: {exc}") from exc


def _set_signature(function: Any, parameters: Sequence[Parameter]) -> None:
    """Set the signature of `function`, from which a tool derives its schema."""
    signature = []
    function.__annotations__ = {}
    for parameter in parameters:
        kind = _PYTHON_TYPES[parameter.type] if parameter.required else _PYTHON_TYPES[parameter.type] | None
        annotated: Any = Annotated  # subscripted at run time, which type checkers do not support
        hint = annotated[kind, msgspec.Meta(description=parameter.description)]
        default = inspect.Parameter.empty if parameter.required else None
        signature.append(
            inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
        )
        function.__annotations__[parameter.name] = hint
    function.__signature__ = inspect.Signature(signature)


def export_skill(skill: Skill) -> str:
    """Return the skill as Markdown: the procedure as text, all other fields as front matter."""
    return to_markdown(skill, "procedure")


def import_skill(document: str) -> Skill:
    """Parse a Markdown document into a skill.

    Raises:
        MalformedDefinition: the document is invalid.
    """
    return from_markdown(document, Skill, "procedure")
