"""skill: stored, versioned procedures that any agent may call as a tool. A call is a child run.

`App(agents, tools=[Skills(tiers, tools)])` keeps them in the store of the App, and offers them to every run.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from holdfast.batteries.definitions.repository import (
    Definition,
    DefinitionRepository,
    DefinitionSource,
    from_markdown,
    to_markdown,
)
from holdfast.batteries.definitions.versions import MalformedDefinition
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.agent_tools import to_tool_name
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.errors import DefinitionError
from holdfast.core.run.info import RunInfo

__all__ = ["Parameter", "Skill", "SkillError", "Skills", "export_skill", "import_skill"]


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


class Skill(Definition, frozen=True, kw_only=True):
    """The definition of a procedure, as plain data."""

    parameters: list[Parameter] = msgspec.field(default_factory=list)
    #: The instructions, step by step.
    procedure: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for parameter in self.parameters:
            if not parameter.name.isidentifier():
                raise MalformedDefinition(f"{parameter.name!r} cannot be a parameter: use letters, digits and _")


#: A run with this many runs above it is offered no skills.
_MAX_DEPTH = 3


class Skills(DefinitionRepository[Skill]):
    """Stores, lists and shares skills, and builds agents and tools from them. A `ToolProvider`."""

    kind = "skill"
    error = SkillError
    definition_type = Skill

    async def tools(self, info: RunInfo) -> Sequence[Tool]:
        """Return all skills as tools, except the run's own and those of the runs above it."""
        if len(info.lineage) >= _MAX_DEPTH:
            return ()
        above = {*info.lineage, info.agent_name}
        return [_offer(source) for name, source in self.agents.items() if name not in above]

    async def tool(self, owner: str, name: str) -> Tool:
        """Return the newest version of a skill as a tool for agents. A repeated call attaches to the same child run."""
        return _offer(await self.source(owner, name))

    async def save(self, definition: Skill) -> int:
        """Store a new version and return its number. New runs use it; existing runs keep the version they have.

        Raises:
            HoldfastError: no agent, or no tool, can be built from it. Nothing was stored.
        """

        async def not_called() -> None: ...

        _make_tool(definition, not_called)  # raises if the parameters are invalid
        return await super().save(definition)

    def build_agent(self, definition: Skill) -> Agent:
        """Build the agent that follows the skill's procedure."""
        return Agent(
            name=f"{definition.owner}/{definition.name}",
            instructions=definition.procedure,
            model=self._tiers.model(definition.model_tier),
            model_tier=definition.model_tier,
            tools=self.find_tools(definition, definition.tools),
        )


def _offer(skill: DefinitionSource[Skill]) -> Tool:
    """Return the skill as a tool with its current parameters."""

    async def call(**arguments: Any) -> object:
        prompt = "\n".join(f"{name}: {value}" for name, value in arguments.items() if value is not None)
        return (await current_call().run(skill, prompt)).output

    return _make_tool(skill.definition, call)


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
