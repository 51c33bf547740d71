"""persona: stored, versioned definitions of agents, which lower into the kernel's `Agent`.

What can go wrong with personas.

Personas: stored definitions of agents.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.batteries.definitions.markdown import from_markdown, to_markdown
from holdfast.batteries.definitions.repository import DefinitionRepository, DefinitionSource, check_name
from holdfast.batteries.definitions.store import DefinitionStore, MemoryDefinitions
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.agent import Agent, ModelTiers, Phase
from holdfast.core.errors import DefinitionError
from holdfast.core.info import RunInfo
from holdfast.core.tool import Tool

__all__ = [
    "Persona",
    "PersonaError",
    "PersonaPhase",
    "Personas",
    "allowed_by",
    "export_persona",
    "import_persona",
]


class PersonaError(DefinitionError):
    """A persona cannot be lowered into an agent as it is."""


class PersonaPhase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One phase of a persona. What is left out is the persona's own."""

    name: str
    prompt: str = "$prompt"
    instructions: str | None = None
    tools: list[str] | None = None
    model_tier: str | None = None


class Persona(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an agent is made of, as plain data."""

    owner: str
    name: str
    description: str = ""
    instructions: str = ""
    model_tier: str = ""
    #: Names of tools that the host has.
    tools: list[str] = []
    phases: list[PersonaPhase] = []
    #: Names of agents and skills that it may call.
    palette: list[str] = []
    #: A cron expression, for a host that runs it by itself.
    schedule: str | None = None

    def __post_init__(self) -> None:
        check_name(self.owner, self.name)


class Personas(DefinitionRepository[Persona]):
    """Creates, edits, shows and shares personas, and makes agents of them."""

    def __init__(
        self,
        tiers: ModelTiers,
        tools: Iterable[Tool] = (),
        *,
        store: DefinitionStore | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a collection of personas.

        Args:
            tiers: the models that model tiers stand for.
            tools: what personas may name.
            store: keeps the definitions; without one in memory, for this process alone.
        """
        super().__init__(Persona, self._build_agent, store or MemoryDefinitions("persona"), clock)
        self._tiers = tiers
        self._tools = {tool.name: tool for tool in tools}

    async def source(self, owner: str, name: str) -> DefinitionSource[Persona]:
        """What an App takes as an agent."""
        return DefinitionSource(self, await self._get_newest(owner, name))

    def _build_agent(self, definition: Persona) -> Agent:
        """The agent that a persona describes."""
        return Agent(
            name=f"{definition.owner}/{definition.name}",
            instructions=definition.instructions,
            model=self._tiers.model(definition.model_tier),
            model_tier=definition.model_tier,
            tools=self._find_tools(definition, definition.tools),
            phases=[self._build_phase(definition, phase) for phase in definition.phases],
        )

    def _build_phase(self, persona: Persona, phase: PersonaPhase) -> Phase:
        return Phase(
            name=phase.name,
            prompt=phase.prompt,
            instructions=phase.instructions,
            tools=None if phase.tools is None else self._find_tools(persona, phase.tools),
            model=None if phase.model_tier is None else self._tiers.model(phase.model_tier),
        )

    def _find_tools(self, persona: Persona, names: Sequence[str]) -> list[Tool]:
        unknown = [name for name in names if name not in self._tools]
        if unknown:
            known = ", ".join(sorted(self._tools)) or "none"
            raise PersonaError(f"persona {persona.owner}/{persona.name} names the tools {unknown}: known are {known}")
        return [self._tools[name] for name in names]


def allowed_by(sources: Iterable[DefinitionSource[Persona]]) -> Callable[[RunInfo], Sequence[str]]:
    """For an `AgentToolProvider`: a run may call what its persona's palette names."""
    known = {source.name: source for source in sources}
    return lambda info: known[info.agent_name].definition.palette if info.agent_name in known else ()


def export_persona(persona: Persona) -> str:
    """The persona as Markdown: its instructions, with everything else as front matter."""
    return to_markdown(persona, "instructions")


def import_persona(document: str) -> Persona:
    """The persona that a Markdown document describes.

    Raises:
        MalformedDefinition: the document is not one.
    """
    return from_markdown(document, Persona, "instructions")
